"""What the stages of the hybrid recipes share: the steps that a run repeats for each system."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recipes.steps.data import (
    copies,
    cuts,
    has_copies,
    lattice_lm_config,
    need_user_files,
    splits,
    texts,
)
from recipes.steps.language import lang_config
from toolkit.align.corpus import align_corpus
from toolkit.align.gmm.adaptation import adapt_speakers
from toolkit.align.gmm.features import write_gmm_features
from toolkit.align.gmm.low_rate import tie_low_rate
from toolkit.align.recordings.bundle import write_aligner_bundle
from toolkit.align.scorer import GmmScorer, Scorer
from toolkit.align.store import AlignmentStore, LowRateAlignments, PdfAlignments
from toolkit.corpus.manifest import text_of
from toolkit.decode.denominators import make_lattices
from toolkit.decode.first_pass import Decoder
from toolkit.decode.graph import make_decoding_graph
from toolkit.decode.nbest import explore_system
from toolkit.decode.recogniser import write_bundle
from toolkit.decode.system import Pass, decode_passes, decode_system
from toolkit.features.extract import ExtractConfig, extract
from toolkit.features.normalise import Normaliser, estimate_normaliser
from toolkit.features.store import FeatureStore
from toolkit.fsa.lattice_store import LatticeStore
from toolkit.fsa.sequence import PdfClasses
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lm import prepare_lm
from toolkit.lang.prepare import source_lexicon
from toolkit.models.scorer import NeuralScorer
from toolkit.score.read import read_transcripts
from toolkit.stages.run import Run
from toolkit.train.cross_entropy import CrossEntropyConfig
from toolkit.train.realignment import train_with_realignment
from toolkit.train.sequence.training import train_sequence


def extract_splits(run: Run, config: ExtractConfig, out: Path, also_copies: bool) -> dict:
    """Extract the features of every split and of the copies, if there are any."""
    hours = {}
    for split in splits(run).all:
        hours[split] = extract(cuts(run, split), config, out / split, run.jobs)["hours"]
    if also_copies and has_copies(run):
        hours["copies"] = extract(copies(run), config, out / "copies", run.jobs)["hours"]
    return hours


def extract_fbank(run: Run, out: Path) -> dict[str, float]:
    """Extract the networks' features of all splits and copies, and estimate their normaliser."""
    hours = extract_splits(run, run.config.fbank, out, also_copies=True)
    _write_normaliser(run, out)
    return {f"hours {split}": found for split, found in hours.items()}


def _write_normaliser(run: Run, features: Path) -> None:
    normaliser = estimate_normaliser(FeatureStore(features / "train"), run.config.prior_frames)
    normaliser.save(features / "normaliser.json")


def train_gmm(
    run: Run, train: Callable[..., dict[str, float]], system: str, spoken: str = "train"
) -> dict[str, float]:
    """Train a GMM system on the training data's cepstra, or on those of clean twins of its."""
    config = getattr(run.config, system)
    if hasattr(config, "tree"):
        need_user_files(run, config.tree.questions, config.tree.roots)
    return train(
        cepstra=run.need(f"plp/{spoken}"),
        transcripts={cut.id: text_of(cut).split() for cut in cuts(run, "train")},
        lang=run.need("lang"),
        config=config,
        out=run.make(system),
        jobs=run.jobs,
        progress=run.progress,
    )


def decode_gmm(
    run: Run, system: str, transforms: Mapping[str, Path] | None = None
) -> dict[str, float]:
    """Decode with a GMM system, adapted to the speakers if there are transforms."""
    model = run.need(system)
    scorers: dict[str, Scorer] = {
        s: GmmScorer(model, run.need(f"plp/{s}"), (transforms or {}).get(s))
        for s in splits(run).decoded
    }
    out = run.make(f"decode/{system}")
    compose_graph(run, Senones.load(model), out / "graph.safetensors")
    return decode_system(
        system,
        scorers,
        graph=out / "graph.safetensors",
        words=run.need("lang/words.txt"),
        lm=f"{run.config.lm.order}gram",
        config=run.config.gmm_decode,
        **decoding_options(run, out),
    )


def compose_graph(run: Run, senones: Senones, graph: Path) -> None:
    """Compose H, C, L and G, unless an earlier run has got that far."""
    if not graph.exists():
        make_decoding_graph(run.need("lang"), run.need("lm/lm.arpa"), senones, graph)


def decoding_options(run: Run, out: Path) -> dict[str, Any]:
    """What all ways of decoding take."""
    return {
        "tune_on": splits(run).tune,
        "out": out,
        "jobs": run.jobs,
        "command": run.command,
        "progress": run.progress,
    }


def adapt(run: Run, adapted: str, first_pass: str) -> dict[str, Path]:
    """Estimate the speakers' transforms from what a first pass has recognised, by split."""
    transforms = {}
    for split in splits(run).decoded:
        hypotheses = read_transcripts(run.need(f"decode/{first_pass}/{split}/text"), "text").texts
        words = {utterance: text.split() for utterance, text in hypotheses.items()}
        transforms[split] = run.make(f"fmllr/{split}.safetensors")
        estimate_transforms(run, adapted, first_pass, split, words, transforms[split])
    return transforms


def estimate_transforms(
    run: Run, adapted: str, independent: str, split: str, words: dict[str, list[str]], out: Path
) -> None:
    """Estimate the transforms of a split's speakers from words, right or recognised."""
    adapt_speakers(
        run.need(adapted),
        run.need(independent),
        run.need(f"plp/{split}"),
        words,
        run.need("lang"),
        getattr(run.config, adapted).em,
        out,
        run.jobs,
    )


def write_adapted(run: Run, adapted: str, independent: str, out: Path) -> None:
    """Write the features that an adapted system sees: of training, copies and decoded splits."""
    if _written(out):
        return
    transforms = {"train": run.need(adapted) / "fmllr.safetensors"}
    transforms |= {s: run.need(f"fmllr/{s}.safetensors") for s in splits(run).decoded}
    if has_copies(run):
        transforms["copies"] = out / "copies.safetensors"
        words = {cut.id: text_of(cut).split() for cut in copies(run)}
        estimate_transforms(run, adapted, independent, "copies", words, transforms["copies"])
    _write_features(run, adapted, transforms, out)


def write_independent(run: Run, independent: str, out: Path) -> None:
    """Write the features of LDA + MLLT alone: of training, copies and decoded splits."""
    if not _written(out):
        parts = ["train", *splits(run).decoded, *(["copies"] if has_copies(run) else [])]
        _write_features(run, independent, dict.fromkeys(parts), out)


def _written(features: Path) -> bool:
    """Whether a run that was killed while it trained has written them all: this file is last."""
    return (features / "normaliser.json").exists()


def _write_features(
    run: Run, system: str, transforms: Mapping[str, Path | None], out: Path
) -> None:
    for part, path in transforms.items():
        write_gmm_features(run.need(system), run.need(f"plp/{part}"), path, out / part, run.jobs)
    _write_normaliser(run, out)


def align_system(
    run: Run, system: str, spoken: str = "train", name: str = "ali"
) -> dict[str, float]:
    """Align the training data, or what else cepstra were extracted of, with a GMM system."""
    model = run.need(system)
    transforms = model / "fmllr.safetensors"
    return align_corpus(
        GmmScorer(model, run.need(f"plp/{spoken}"), transforms if transforms.exists() else None),
        Senones.load(model),
        run.need("lang"),
        run.config.align,
        run.make(name),
        run.jobs,
        run.progress,
    )


def tie_senones(run: Run, system: str, spoken: str = "train") -> dict[str, float]:
    """Tie low-rate senones on a GMM system's alignments, and make their decoding graph."""
    config, out = run.config.senones, run.make("senones")
    need_user_files(run, config.questions, config.roots)
    cepstra, alignments = run.need(f"plp/{spoken}"), run.need("ali")
    found = tie_low_rate(run.need(system), cepstra, alignments, config, out, run.jobs)
    compose_graph(run, Senones.load(out), run.make("graph.safetensors"))
    return found


def train_network(
    run: Run,
    system: str,
    features: Path,
    config: CrossEntropyConfig | None = None,
    aligner: str = "sat",
    valid: tuple[FeatureStore, LowRateAlignments] | None = None,
) -> dict[str, float]:
    """Train a network with cross entropy on features, those of copies included if there are any.

    Args:
      run: of the stage.
      system: the network's name.
      features: the folder of the splits' features.
      config: the network and its training; by default the section `ce`.
      aligner: the GMM system that has aligned the data.
      valid: held-out data; by default some training utterances are set aside.
    """
    return train_with_realignment(
        features=features / "train",
        copies=features / "copies" if has_copies(run) else None,
        alignments=targets(run, aligner),
        normaliser=features / "normaliser.json",
        senones=Senones.load(run.need("senones")),
        lang=run.need("lang"),
        config=config or run.config.ce,
        align=run.config.align,
        out=run.make(system),
        jobs=run.jobs,
        device=run.device,
        progress=run.progress,
        valid=valid,
    )


def targets(run: Run, aligner: str, name: str = "ali") -> LowRateAlignments:
    """The senones of data that a GMM system has aligned, by default of the training data."""
    topology = Topology.load(run.need(f"{aligner}/topology.json"))
    return LowRateAlignments(
        AlignmentStore(run.need(name)), topology, Senones.load(run.need("senones"))
    )


def make_denominators(
    run: Run,
    system: str,
    features: Path,
    name: str = "denominators",
    normaliser: Path | None = None,
) -> dict[str, float]:
    """Make lattices of the training data and its copies with a weak LM, and references."""
    out, lang = run.make(name), run.need("lang")
    senones = Senones.load(run.need("senones"))
    words = Lang.load(lang)
    lm = lattice_lm_config(run)
    prepare_lm(lm, texts(run), words.vocabulary, out, rules=words.normaliser)
    make_decoding_graph(lang, out / "lm.arpa", senones, out / "graph.safetensors")
    normaliser = normaliser or features / "normaliser.json"
    made: dict[str, float] = {}
    for part in _on_lattices(run):
        scorer = NeuralScorer(run.need(system), normaliser, features / part)
        for folder in ("ali", "lattices"):
            (out / part / folder).mkdir(parents=True, exist_ok=True)
        align_corpus(scorer, senones, lang, run.config.align, out / part / "ali", run.jobs)
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


def _on_lattices(run: Run) -> list[str]:
    """The feature stores of sequence training."""
    return ["train", "copies"] if has_copies(run) and run.config.sequence_copies else ["train"]


def train_on_lattices(
    run: Run,
    system: str,
    start: str,
    features: Path,
    name: str = "denominators",
    normaliser: Path | None = None,
) -> dict[str, float]:
    """Train a network further, on the lattices that it made."""
    senones = Senones.load(run.need("senones"))
    denominators, parts = run.need(name), _on_lattices(run)
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


def network_scorers(
    run: Run, system: str, features: Path, normaliser: Path | None = None
) -> dict[str, Scorer]:
    """A network on the splits to decode."""
    model, normaliser = run.need(system), normaliser or features / "normaliser.json"
    return {s: NeuralScorer(model, normaliser, features / s) for s in splits(run).decoded}


def network_decoder(run: Run) -> Decoder:
    """The search with the small language model, and the larger one that rescores."""
    graph, words = run.need("graph.safetensors"), run.need("lang/words.txt")
    return Decoder(graph, words, run.config.decode, run.need("rescoring/lm.safetensors"))


def decode_network(
    run: Run, system: str, features: Path, normaliser: Path | None = None
) -> dict[str, float]:
    """Decode with a network, and rescore with the larger language model."""
    out = run.make(f"decode/{system}")
    first = Pass(f"{run.config.lm.order}gram", out / "first_pass")
    return decode_passes(
        system,
        network_scorers(run, system, features, normaliser),
        decoder=network_decoder(run),
        passes=[first, Pass(f"{run.config.rescoring.order}gram", out)],
        **decoding_options(run, out),
    )


def explore_network(run: Run, system: str, features: Path) -> dict[str, float]:
    """Write n-best lists, word times and confidences of what `decode_network` has recognised."""
    out = run.make(f"decode/{system}")
    return explore_system(
        network_scorers(run, system, features),
        splits(run).tune,
        network_decoder(run),
        tuned=out / "tuned.json",
        lang=run.need("lang"),
        senones=Senones.load(run.need("senones")),
        config=run.config.nbest,
        out=out,
        jobs=run.jobs,
    )


def write_bundles(run: Run, system: str, features: Path, out: Path) -> None:
    """Put what recognition with a network and alignment with the adapted GMMs need into `out`."""
    write_bundle(
        model=run.need(system),
        normaliser=features / "normaliser.json",
        graph=run.need("graph.safetensors"),
        lang=run.need("lang"),
        frontend=run.config.fbank.frontend,
        config=run.config.decode,
        tuned=run.need(f"decode/{system}/first_pass/tuned.json"),
        out=out,
        senones=run.need("senones"),
        calibration=run.need(f"decode/{system}/calibration.json"),
    )
    lang = run.need("lang")
    write_aligner_bundle(
        system=run.need("sat"),
        independent=run.need("lda_mllt"),
        lang=lang,
        lexicon=source_lexicon(lang_config(run), Lang.load(lang).vocabulary),
        frontend=run.config.cepstra.frontend,
        out=out / "aligner",
    )
