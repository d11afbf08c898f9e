"""GMM systems: training, alignment, speaker adaptation, low-rate senones, features for networks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from recipes.steps.data import (
    copies,
    cuts,
    has_copies,
    need_user_files,
    splits,
    transcripts,
    write_normaliser,
)
from recipes.steps.decoding import (
    compose_graph,
)
from toolkit.align.adapt import LatticeSearch, adapt_speakers, refine_on_lattices
from toolkit.align.config import CorpusAlignConfig
from toolkit.align.corpus import align_corpus
from toolkit.align.pronunciations import count_pronunciations
from toolkit.align.scorer import GmmScorer
from toolkit.align.train_gmm import (
    build_low_rate_senones,
    train_lda_mllt,
    train_monophone,
    train_sat,
    train_triphone,
)
from toolkit.corpus.manifest import text_of
from toolkit.features.gmm_features import load_transforms
from toolkit.features.shards import FeatureStore
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.gmm_system import GmmSystem, write_gmm_features
from toolkit.hmm.senones import Senones
from toolkit.lang.dictionary import EXTRA_QUESTIONS
from toolkit.lang.lang import Lang
from toolkit.lang.probabilities import estimate_probabilities
from toolkit.processes import ranks
from toolkit.score.transcripts import read_transcripts
from toolkit.stages.run import Run
from toolkit.storage.lines import split_words


def train_mono(run: Run, split: str = "train") -> dict[str, float]:
    """Train the monophone GMMs.

    Args:
      run: the run of the stage.
      split: the split whose cepstra are used: `train`, or `clean`, its clean twins.
    """
    return _train(run, train_monophone, "mono", split)


def train_tri(run: Run, split: str = "train") -> dict[str, float]:
    """Train triphone GMMs on deltas, from the alignments of the monophones."""
    return _train(run, partial(train_triphone, previous=run.need("mono")), "tri", split)


def train_lda(run: Run, split: str = "train") -> dict[str, float]:
    """Train LDA + MLLT GMMs, from the alignments of the triphones."""
    return _train(run, partial(train_lda_mllt, previous=run.need("tri")), "lda_mllt", split)


def train_adapted(run: Run) -> dict[str, float]:
    """Train speaker-adapted GMMs (SAT), from the alignments of LDA + MLLT."""
    return _train(run, partial(train_sat, previous=run.need("lda_mllt")), "sat", "train")


def _train(
    run: Run, train: Callable[..., dict[str, float]], system: str, split: str = "train"
) -> dict[str, float]:
    """Train a GMM system on the cepstra of the training data, or on those of its clean twins."""
    config = getattr(run.config, system)
    if hasattr(config, "tree"):
        config = replace(config, tree=tree_config(run, config.tree))
    # Clean twins have the ids of `train`, and so its transcripts.
    cepstra = run.need(f"plp/{split}")
    return train(
        cepstra=cepstra,
        transcripts=transcripts(cuts(run, "train"), cepstra),
        lang=run.need("lang"),
        config=config,
        out=run.make(system),
        jobs=run.jobs,
        progress=run.progress,
    )


def tree_config(run: Run, config: TreeConfig) -> TreeConfig:
    """Return the settings of a tree, with the extra questions of the lexicon, if it has some.

    Files of the user that the settings name become inputs of the stage.
    """
    need_user_files(run, config.questions, config.extra_questions, config.roots)
    if config.extra_questions is None and run.exists(f"lang/{EXTRA_QUESTIONS}"):
        return replace(config, extra_questions=run.need(f"lang/{EXTRA_QUESTIONS}"))
    return config


def adapt(run: Run, adapted: str, first_pass: str) -> dict[str, Path]:
    """Estimate fMLLR transforms of the decoded splits; return their files by split.

    They are estimated on the hypotheses of a first pass, then again on the lattices of a pass with
    these transforms (Kaldi's decode_fmllr.sh).

    Args:
      run: the run of the stage.
      adapted: name of the speaker-adapted GMM system.
      first_pass: name of the speaker-independent system that has decoded the splits.
    """
    config, transforms = run.config.gmm_decode, {}
    graph = run.make(f"decode/{adapted}") / "graph.safetensors"
    compose_graph(run, Senones.load(run.need(adapted)), graph)
    search = LatticeSearch(graph, config.acoustic_scale, config.beams())
    for split in splits(run).decoded:
        # First estimate: on the words of the speaker-independent pass.
        hypotheses = read_transcripts(run.need(f"decode/{first_pass}/{split}/text"), "text").texts
        store = FeatureStore(run.need(f"plp/{split}"))
        words = {u: text.split() for u, text in hypotheses.items() if u in store}
        transforms[split] = run.make(f"fmllr/{split}.safetensors")
        estimate_transforms(run, adapted, first_pass, split, words, transforms[split])
        # Second estimate: on the posteriors of lattices decoded with the first transforms.
        system = GmmSystem.load(run.need(adapted), run.need(f"plp/{split}"))
        system = system.adapted(load_transforms(transforms[split]))
        refine_on_lattices(system, search, transforms[split], run.jobs)
    return transforms


def estimate_transforms(
    run: Run, adapted: str, independent: str, split: str, words: dict[str, list[str]], out: Path
) -> None:
    """Estimate the fMLLR transforms of a split's speakers.

    Args:
      run: the run of the stage.
      adapted: name of the speaker-adapted GMM system.
      independent: name of the speaker-independent system.
      split: the split whose cepstra are used.
      words: transcripts or hypotheses, by utterance.
      out: the file to write.
    """
    cepstra = run.need(f"plp/{split}")
    adapt_speakers(
        GmmSystem.load(run.need(adapted), cepstra),
        GmmSystem.load(run.need(independent), cepstra),
        words,
        run.need("lang"),
        run.setting(f"{adapted}.em"),
        out,
        run.jobs,
    )


def align_config(run: Run) -> CorpusAlignConfig:
    """Return the settings of an alignment, without `align.rounds` of the networks' training."""
    return CorpusAlignConfig(run.setting("align.search"), run.setting("align.max_failed"))


def align_system(
    run: Run, system: str, split: str = "train", name: str = "ali"
) -> dict[str, float]:
    """Align the training data, or another split that has cepstra, with a GMM system."""
    model = run.need(system)
    # Only the speaker-adapted system has transforms of the training speakers.
    transforms = model / "fmllr.safetensors"
    return align_corpus(
        GmmScorer(model, run.need(f"plp/{split}"), transforms if transforms.exists() else None),
        Senones.load(model),
        run.need("lang"),
        align_config(run),
        run.make(name),
        run.jobs,
        run.progress,
    )


def tie_senones(run: Run, system: str, split: str = "train") -> dict[str, float]:
    """Tie low-rate senones on a GMM system's alignments.

    With `pronunciation_probabilities`, the probabilities of the lexicon's pronunciations are
    estimated on the same alignments.
    """
    config, out = tree_config(run, run.config.senones), run.make("senones")
    cepstra, alignments = run.need(f"plp/{split}"), run.need("ali")
    headline = build_low_rate_senones(run.need(system), cepstra, alignments, config, out, run.jobs)
    if run.config.pronunciation_probabilities:
        headline |= write_probabilities(run, system, run.make("pronunciations"))
    return headline


def write_probabilities(run: Run, system: str, out: Path) -> dict[str, float]:
    """Write the lexicon with probabilities estimated on a system's alignments."""
    lang = Lang.load(run.need("lang"))
    words = {cut.id: split_words(text_of(cut)) for cut in cuts(run, "train")}
    topology = Senones.load(run.need(system)).topology
    counts = count_pronunciations(run.need("ali"), words, lang, topology)
    probabilities = estimate_probabilities(counts, lang.lexicon)
    replace(lang, probabilities=probabilities).save(out)
    return {"silence between words": probabilities.overall}


def write_adapted(run: Run, adapted: str, independent: str) -> Path:
    """Write the speaker-adapted features of the training data and its copies; return the folder."""
    out = _training_folder(run, "fmllr_features")
    transforms: dict[str, Path | None] = {"train": run.need(adapted) / "fmllr.safetensors"}
    of_copies = run.make("fmllr_features/copies.safetensors") if has_copies(run) else None

    def write() -> None:
        if _written(out):
            return
        # The copies get separate transforms, estimated on their transcripts.
        if of_copies is not None:
            words = transcripts(copies(run), run.need("plp/copies"))
            estimate_transforms(run, adapted, independent, "copies", words, of_copies)
            transforms["copies"] = of_copies
        _write_features(run, adapted, transforms, out)
        # The transforms remove each speaker's mean; a running mean would depend on the words.
        write_normaliser(run, out, "global")

    ranks.on_rank_zero(write)
    return out


def write_adapted_decoded(run: Run, adapted: str) -> Path:
    """Write the speaker-adapted features of the decoded splits; return the folder.

    Their transforms are estimated on hypotheses and so depend on the n-gram model; those of the
    training data do not.
    """
    transforms = {s: run.need(f"fmllr/{s}.safetensors") for s in splits(run).decoded}
    return _write_decoded(run, "fmllr_features", adapted, transforms)


def write_independent(run: Run, independent: str) -> Path:
    """Write the LDA + MLLT features of the training data and its copies; return the folder."""
    out = _training_folder(run, "lda_mllt_features")

    def write() -> None:
        if not _written(out):
            parts = ["train", *(["copies"] if has_copies(run) else [])]
            _write_features(run, independent, dict.fromkeys(parts), out)
            write_normaliser(run, out)

    ranks.on_rank_zero(write)
    return out


def write_independent_decoded(run: Run, independent: str) -> Path:
    """Write the LDA + MLLT features of the decoded splits; return the folder."""
    return _write_decoded(run, "lda_mllt_features", independent, dict.fromkeys(splits(run).decoded))


def _training_folder(run: Run, name: str) -> Path:
    """Declare the features of the training data as outputs; return the folder to write them to."""
    for part in ("normaliser.json", *(["copies"] if has_copies(run) else [])):
        run.make(f"{name}/{part}")
    return run.make(f"{name}/train").parent


def _write_decoded(run: Run, name: str, system: str, transforms: Mapping[str, Path | None]) -> Path:
    """Write the features of a system for the decoded splits; return the folder."""
    folders = [run.make(f"{name}/{split}") for split in transforms]
    _write_features(run, system, transforms, folders[0].parent)
    return folders[0].parent


def _written(features: Path) -> bool:
    """Return whether an interrupted run wrote all features; the normaliser is written last."""
    return (features / "normaliser.json").exists()


def _write_features(
    run: Run, system: str, transforms: Mapping[str, Path | None], out: Path
) -> None:
    """Write the features of a system for each part, adapted if it has a file of transforms."""
    for part, path in transforms.items():
        gmms = GmmSystem.load(run.need(system), run.need(f"plp/{part}"))
        gmms = gmms.adapted(load_transforms(path)) if path else gmms
        write_gmm_features(gmms, out / part, run.jobs)
