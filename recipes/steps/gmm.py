"""GMM systems: training, decoding, speaker adaptation, alignment, low-rate senones."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from recipes.steps.data import cuts, need_user_files, splits
from recipes.steps.decoding import compose_graph, decoding_options, passes
from recipes.steps.features import transcripts
from toolkit.align.adapt import LatticeSearch, adapt_speakers, refine_on_lattices
from toolkit.align.config import CorpusAlignConfig
from toolkit.align.corpus import align_corpus
from toolkit.align.pronunciations import count_pronunciations
from toolkit.align.scorer import GmmScorer, Scorer
from toolkit.align.train_gmm import (
    build_low_rate_senones,
    train_lda_mllt,
    train_monophone,
    train_sat,
    train_triphone,
)
from toolkit.corpus.manifest import text_of
from toolkit.decode.search import Decoder
from toolkit.decode.system import decode_passes, decode_system
from toolkit.features.gmm_features import load_transforms
from toolkit.features.shards import FeatureStore
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.senones import Senones
from toolkit.lang.dictionary import EXTRA_QUESTIONS
from toolkit.lang.lang import Lang
from toolkit.lang.probabilities import estimate_probabilities
from toolkit.processes.workers import shared_workers
from toolkit.score.transcripts import read_transcripts
from toolkit.stages.run import Run
from toolkit.storage.words import split_words


def train_mono(run: Run, split: str = "train") -> dict[str, float]:
    """Train the monophone GMMs.

    Args:
      run: the run of the stage.
      split: the split whose cepstra are used: `train`, or that of its clean twins.
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

    The user's files that they name become inputs of the stage.
    """
    need_user_files(run, config.questions, config.extra_questions, config.roots)
    if config.extra_questions is None and run.exists(f"lang/{EXTRA_QUESTIONS}"):
        return replace(config, extra_questions=run.need(f"lang/{EXTRA_QUESTIONS}"))
    return config


@shared_workers()
def decode_gmm(run: Run, system: str, transforms: Mapping[str, Path] | None = None) -> dict:
    """Decode with a GMM system; on adapted features also rescore, and write n-best lists.

    Args:
      run: the run of the stage.
      system: its name.
      transforms: files of fMLLR transforms by split; None: features are not adapted.
    """
    out, senones = run.make(f"decode/{system}"), Senones.load(run.need(system))
    adapted = transforms is not None
    compose_graph(run, senones, out / "graph.safetensors")
    scorers = gmm_scorers(run, system, transforms or {})
    decoder = gmm_decoder(run, system, out, rescore=adapted)
    options = decoding_options(run) | {"passes": passes(run, out, rescore=adapted)}
    if not adapted:
        return decode_passes(system, scorers, decoder=decoder, out=out, **options)
    return decode_system(
        system,
        scorers,
        decoder=decoder,
        lang=run.need("lang"),
        senones=senones,
        nbest=run.config.nbest,
        **options,
    )


def gmm_decoder(run: Run, system: str, out: Path, rescore: bool) -> Decoder:
    """Return the search in the graph of a GMM system's decode."""
    config = run.config.gmm_decode
    if system == "mono":
        config = replace(config, beam=run.config.mono_beam)
    rescorer = run.need("rescoring/lm.safetensors") if rescore else None
    words = run.need("lang/words.txt")
    return Decoder(out / "graph.safetensors", words, config, rescorer)


def gmm_scorers(run: Run, system: str, transforms: Mapping[str, Path]) -> dict[str, Scorer]:
    """Return scorers of a GMM system for all splits to decode, with transforms by split."""
    model = run.need(system)
    return {
        s: GmmScorer(model, run.need(f"plp/{s}"), transforms.get(s)) for s in splits(run).decoded
    }


def adapt(run: Run, adapted: str, first_pass: str) -> dict[str, Path]:
    """Estimate fMLLR transforms of the decoded splits; return their files by split.

    First on the hypotheses of a first pass, then on the lattices of a pass with these transforms
    (Kaldi's decode_fmllr.sh).
    """
    config, transforms = run.config.gmm_decode, {}
    graph = run.make(f"decode/{adapted}") / "graph.safetensors"
    compose_graph(run, Senones.load(run.need(adapted)), graph)
    search = LatticeSearch(graph, config.acoustic_scale, config.beams())
    for split in splits(run).decoded:
        hypotheses = read_transcripts(run.need(f"decode/{first_pass}/{split}/text"), "text").texts
        store = FeatureStore(run.need(f"plp/{split}"))
        words = {u: text.split() for u, text in hypotheses.items() if u in store}
        transforms[split] = run.make(f"fmllr/{split}.safetensors")
        estimate_transforms(run, adapted, first_pass, split, words, transforms[split])
        system = GmmSystem.load(run.need(adapted), run.need(f"plp/{split}"))
        system = system.adapted(load_transforms(transforms[split]))
        refine_on_lattices(system, search, transforms[split], run.jobs)
    return transforms


def estimate_transforms(
    run: Run, adapted: str, independent: str, split: str, words: dict[str, list[str]], out: Path
) -> None:
    """Estimate the fMLLR transforms of a split's speakers on transcripts or hypotheses."""
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

    With `pronunciation_probabilities`, those of the lexicon are estimated on the same alignments.
    """
    config, out = tree_config(run, run.config.senones), run.make("senones")
    cepstra, alignments = run.need(f"plp/{split}"), run.need("ali")
    found = build_low_rate_senones(run.need(system), cepstra, alignments, config, out, run.jobs)
    if run.config.pronunciation_probabilities:
        found |= write_probabilities(run, system, run.make("pronunciations"))
    return found


def write_probabilities(run: Run, system: str, out: Path) -> dict[str, float]:
    """Write the lexicon with probabilities estimated on a system's alignments."""
    plain = Lang.load(run.need("lang"))
    words = {cut.id: split_words(text_of(cut)) for cut in cuts(run, "train")}
    topology = Senones.load(run.need(system)).topology
    counts = count_pronunciations(run.need("ali"), words, plain, topology)
    found = estimate_probabilities(counts, plain.lexicon)
    replace(plain, probabilities=found).save(out)
    return {"silence between words": found.overall}
