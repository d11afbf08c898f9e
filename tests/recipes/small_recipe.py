"""The data stages of the recipes, and two that stand for all that follow them."""

from dataclasses import dataclass, field

from recipes.steps.data import get_corpus, texts, write_corpus
from recipes.steps.features import extract_splits
from recipes.steps.language import check_splits
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.features.extract import ExtractConfig
from toolkit.features.frontend import FrontendConfig
from toolkit.features.store import FeatureStore
from toolkit.lang.config import LangConfig
from toolkit.stages.recipe import Recipe
from toolkit.storage.files import write_atomically

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Config:
    corpus: CorpusConfig = field(default_factory=lambda: CorpusConfig("table"))
    check: CheckConfig = field(default_factory=CheckConfig)
    lang: LangConfig = field(default_factory=lambda: LangConfig(lexicon="graphemes"))
    # A shard for every speaker of a second.
    fbank: ExtractConfig = field(
        default_factory=lambda: ExtractConfig(FrontendConfig(num_mel_bins=8), 0.0003)
    )


def declare(script):
    """Declare the recipe in the folder of `script`, as a `run.py` there does."""
    recipe = Recipe("small", script, {"base": Config})
    recipe.stage(1, "Get the audio")(get_corpus)
    recipe.stage(2, "Write the manifests")(write_corpus)
    recipe.stage(3, "Check the data")(check_splits)

    @recipe.stage(4, "Write the words")
    def words(run):
        found = sorted(
            {w for split in texts(run).values() for t in split.values() for w in t.split()}
        )
        write_atomically(run.make("words.txt"), "\n".join(found))

    @recipe.stage(6, "Extract features")
    def features(run):
        return extract_splits(run, run.config.fbank, run.make("fbank"), also_copies=False)

    @recipe.stage(7, "Train")
    def train(run):
        store = FeatureStore(run.need("fbank/train"))
        total = sum(float(features.double().sum()) for _, features in store.iter())
        write_atomically(run.make("model.txt"), f"{total!r}\n")

    return recipe
