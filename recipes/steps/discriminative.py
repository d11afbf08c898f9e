"""Sequence-discriminative training: denominator lattices, and sMBR on them (C8)."""

from pathlib import Path

from recipes.steps.data import has_copies, lattice_lm_config, transcripts_of
from recipes.steps.decoding import network_lang
from recipes.steps.gmm import align_config
from toolkit.align.corpus import align_corpus
from toolkit.align.store import AlignmentStore, PdfAlignments
from toolkit.decode.denominators import make_lattices
from toolkit.decode.graph import make_decoding_graph
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import FeatureStore
from toolkit.fsa.discriminative import PdfClasses
from toolkit.fsa.lattice_store import LatticeStore
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.lm import prepare_lm
from toolkit.models.scorer import NeuralScorer
from toolkit.stages.run import Run
from toolkit.train.sequence import train_sequence


def make_denominators(
    run: Run,
    system: str,
    features: Path,
    name: str = "denominators",
    normaliser: Path | None = None,
) -> dict[str, float]:
    """Make denominator lattices with a weak LM, and reference alignments, of the training data.

    With `sequence_copies`, augmented copies get them too.
    """
    out, lang = run.make(name), network_lang(run)
    senones = Senones.load(run.need("senones"))
    words = Lang.load(lang)
    lm = lattice_lm_config(run)
    texts = {"train": transcripts_of(run, "train")}
    prepare_lm(lm, texts, words.vocabulary, out, policy=words.policy)
    make_decoding_graph(lang, out / "lm.arpa", senones, out / "graph.safetensors")
    normaliser = normaliser or features / "normaliser.json"
    made: dict[str, float] = {}
    for part in _sequence_parts(run):
        scorer = NeuralScorer(run.need(system), normaliser, features / part, device=run.device)
        for folder in ("ali", "lattices"):
            (out / part / folder).mkdir(parents=True, exist_ok=True)
        align_corpus(scorer, senones, lang, align_config(run), out / part / "ali", run.jobs)
        found = make_lattices(
            scorer,
            out / "graph.safetensors",
            run.config.lattices,
            out / part / "lattices",
            run.jobs,
            progress=run.progress,
        )
        made |= {name if part == "train" else f"{name} {part}": x for name, x in found.items()}
    return made


def _sequence_parts(run: Run) -> list[str]:
    """Return the names of the feature stores for sequence training."""
    return ["train", "copies"] if has_copies(run) and run.config.sequence_copies else ["train"]


def train_on_lattices(
    run: Run,
    system: str,
    start: str,
    features: Path,
    name: str = "denominators",
    normaliser: Path | None = None,
) -> dict[str, float]:
    """Train a network further with sMBR on its lattices from `make_denominators`."""
    senones = Senones.load(run.need("senones"))
    denominators, parts = run.need(name), _sequence_parts(run)
    graph = denominators / "graph.safetensors"
    return train_sequence(
        model=run.need(start),
        features=[FeatureStore(features / part) for part in parts],
        lattices=[LatticeStore(denominators / part / "lattices", graph) for part in parts],
        references=[
            PdfAlignments(AlignmentStore(denominators / part / "ali"), senones) for part in parts
        ],
        classes=PdfClasses.of(senones),
        normaliser=Normaliser.load(normaliser or features / "normaliser.json"),
        config=run.config.sequence,
        out=run.make(system),
        device=run.device,
        progress=run.progress,
    )
