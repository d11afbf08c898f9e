"""A recipe with the data stages, feature extraction and a dummy training, and a tiny corpus."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import soundfile

from recipes.steps.data import check_splits, extract_splits, get_corpus, texts, write_corpus
from tests.log_lines import untimed
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.features.config import ExtractConfig, FrontendConfig
from toolkit.features.shards import FeatureStore
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
        vocabulary = sorted(
            {w for split in texts(run).values() for t in split.values() for w in t.split()}
        )
        write_atomically(run.make("words.txt"), "\n".join(vocabulary))

    @recipe.stage(6, "Extract features")
    def features(run):
        return extract_splits(run, run.config.fbank, run.make("fbank"), also_copies=False)

    @recipe.stage(7, "Train")
    def train(run):
        store = FeatureStore(run.need("fbank/train"))
        total = sum(float(features.double().sum()) for _, features in store.iter())
        write_atomically(run.make("model.txt"), f"{total!r}\n")

    return recipe


ALL = [1, 2, 3, 4, 6, 7]
SPEAKERS = {"train": ("ann", "ben", "cleo"), "dev": ("dora",), "test": ("emil",)}


@dataclass
class Result:
    output: str

    @property
    def ran(self):
        """Numbers of the stages that ran."""
        return [int(line.split()[1]) for line in self.output.splitlines() if line[:3] == "== "]


@dataclass
class Small:
    """The small recipe with a corpus of four seconds in its own folder."""

    folder: Path
    corpus: Path
    exp: Path
    capsys: pytest.CaptureFixture

    def run(self, *arguments, status=0, root=None):
        root = root or self.corpus / "table.csv"
        settings = ("--set", f"corpus.root={root}", "--exp", str(self.exp), "--jobs", "1")
        recipe = declare(self.folder / "recipe" / "run.py")
        with pytest.raises(SystemExit) as end:
            recipe.main([*settings, *map(str, arguments)])
        captured = self.capsys.readouterr()
        assert end.value.code == status, captured.out + captured.err
        return Result(untimed(captured.out))

    def states(self):
        """Return the state of each stage as `--list` prints it, with the reasons below it."""
        states, number = {}, 0
        for row in self.run("--list").output.splitlines():
            number = int(row.split()[0]) if row[0].isdigit() else number
            states[number] = f"{states[number]} {row.strip()}" if number in states else row
        return {number: row for number, row in states.items() if number}

    def contents(self):
        """Return {path: bytes} of the stages' outputs."""
        paths = [p for p in sorted(self.exp.rglob("*")) if p.is_file()]
        named = {str(p.relative_to(self.exp)): p for p in paths}
        log_names = ("stages/", ".partial/", "log.txt", "check/report")
        return {name: p.read_bytes() for name, p in named.items() if not name.startswith(log_names)}


def noise(path, seed, seconds=0.5):
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, (3000 * rng.standard_normal(round(16000 * seconds))).astype("i2"), 16000)


def write_table(folder):
    """Write a corpus; one audio file is missing, so a fault and excluded.tsv name its path."""
    rows = ["audio,text,speaker,split"]
    for split, speakers in SPEAKERS.items():
        for speaker in speakers:
            for number in range(2):
                name = f"wav/{speaker}/{number}.wav"
                noise(folder / name, len(rows))
                rows.append(f"{name},a cat,{speaker},{split}")
    rows.append("wav/ann/missing.wav,a cat,ann,train")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
