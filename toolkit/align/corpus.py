"""Forced alignment of a corpus with any acoustic model."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from toolkit.align.config import AlignConfig, CorpusAlignConfig
from toolkit.align.force_align import TranscriptGraphs, UtteranceAlignment, align_batched
from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances, on_gpu
from toolkit.align.store import Outcome, read_table, write_shard, write_table
from toolkit.corpus.manifest import text_of
from toolkit.errors import ToolkitError
from toolkit.fsa.search_kernels import FrameScores
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.storage.lines import split_words


class AlignmentFailuresError(ToolkitError):
    """Raised when too many utterances cannot be aligned."""


def align_corpus(
    scorer: Scorer,
    senones: Senones,
    lang: Path,
    config: CorpusAlignConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Align every utterance of a feature store with its transcript.

    Args:
      scorer: the acoustic model, with the features it scores.
      senones: the model's senones.
      lang: the folder of the lexicon.
      config: search and limits.
      out: the folder that gets one `ali.NNNNNN.tar` per feature shard and `table.tsv`; shards that
        an earlier run finished are kept.
      jobs: worker processes, or threads if the network runs on a GPU.
      progress: called with (shards done, shards).

    Returns:
      `aligned`, `retried` and `failed`: the numbers of these utterances; and
      `log_likelihood_per_frame`: the mean over aligned utterances.

    Raises:
      AlignmentFailuresError: the share of failed utterances is above `max_failed`. In any case,
        `table.tsv` lists the failed utterances with reasons.
    """
    outcomes, table = [], out / "table.tsv"
    numbers = range(len(scorer.store.shards))
    if table.exists() and all(_shard(out, number).exists() for number in numbers):
        outcomes = read_table(table)  # an earlier run has finished
    else:
        align_shard = partial(_align_shard, senones, lang, config.search, out)
        for path in map_scored_shards(align_shard, scorer, jobs, "align", progress):
            outcomes += read_table(path)
        write_table(table, outcomes)
    for part in out.glob("ali.*.tsv"):
        part.unlink()

    # The stage fails only if the share is above the limit; the table lists all failures.
    counts = Counter(outcome.status for outcome in outcomes)
    if counts["failed"] > config.max_failed * len(outcomes):
        first = [o for o in outcomes if o.status == "failed"][:5]
        raise AlignmentFailuresError(
            f"{counts['failed']} of {len(outcomes)} utterances could not be aligned: "
            + "; ".join(f"{o.utterance} ({o.reason})" for o in first)
            + f"; all are listed in {out / 'table.tsv'}"
        )
    good = [o.log_likelihood_per_frame for o in outcomes if o.status != "failed"]
    return {
        "aligned": len(good),
        "retried": counts["retried"],
        "failed": counts["failed"],
        "log_likelihood_per_frame": round(sum(good) / len(good), 3) if good else float("nan"),
    }


def align_at_offsets(
    scorers: Sequence[Scorer],
    senones: Senones,
    lang: Path,
    config: CorpusAlignConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Align a corpus with a low-rate model at each frame offset, for `OffsetAlignments`.

    Args:
      scorers: the model at offsets 0, 1 and 2, with the same features.
      senones: the model's senones.
      lang: the folder of the lexicon.
      config: search and limits.
      out: the folder that gets the alignments, in `ali.0`, `ali.1` and `ali.2`.
      jobs: worker processes, or threads if the network runs on a GPU.
      progress: called with (shards done, shards); each shard counts once per offset.

    Returns:
      The results of `align_corpus` at the last offset.

    Raises:
      AlignmentFailuresError: too many utterances failed at an offset.
    """
    counts: dict[str, float] = {}
    for offset, scorer in enumerate(scorers):
        folder, shards = out / f"ali.{offset}", len(scorer.store.shards)
        folder.mkdir(parents=True, exist_ok=True)

        def report(
            done: int, _: int, shards_before: int = offset * shards, shards_per_offset: int = shards
        ) -> None:
            progress(shards_before + done, len(scorers) * shards_per_offset)

        counts = align_corpus(scorer, senones, lang, config, folder, jobs, report)
    return counts


def _shard(out: Path, number: int) -> Path:
    """Return the path of an alignment shard."""
    return out / f"ali.{number:06d}.tar"


def _align_shard(
    senones: Senones,
    lang: Path,
    search: AlignConfig,
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> Path:
    """Align the utterances of a feature shard; write the alignments and a table of outcomes."""
    number, ids = shard
    path = _shard(out, number)
    table = path.with_suffix(".tsv")
    if path.exists() and table.exists():
        return table
    compiler = TranscriptGraphs(Lang.load(lang), senones)
    words = {u: tuple(split_words(text_of(scorer.store.cut(u)))) for u in ids}
    # Number of frames of each utterance, to explain failures.
    frames: dict[str, int] = {}

    def score(utterance: str, pdfs: Tensor) -> FrameScores:
        scores = scorer.scores_of(utterance, pdfs)
        frames[utterance] = len(scores)
        return scores

    def align(scored: ScoredUtterance) -> tuple[str, UtteranceAlignment | None]:
        frames[scored.utterance] = len(scored.log_likelihoods)
        alone = [(scored.utterance, words[scored.utterance])]
        columns = lambda _, pdfs: scored.log_likelihoods[:, pdfs]  # noqa: E731
        return next(align_batched(alone, columns, compiler, search))

    # On a GPU, utterances are scored ahead in batches; on the CPU, a search may read only a few
    # pdfs.
    aligned = (
        map_utterances(align, scorer, ids, threads)
        if on_gpu(scorer)
        else align_batched(words.items(), score, compiler, search)
    )
    alignments: dict[str, Tensor] = {}
    outcomes = []
    for utterance, alignment in aligned:
        if alignment is None:
            needed = compiler.min_frames(words[utterance])
            # There are too few frames for the words' HMM states, or no path survives the beam.
            reason = (
                f"{frames[utterance]} frames, but the transcript needs {needed}"
                if frames[utterance] < needed
                else f"no path within beam {search.beams()[-1].search:g}"
            )
            outcomes.append(Outcome(utterance, "failed", float("nan"), 0.0, reason))
            continue
        # A beam wider than the first means that the search was repeated.
        status = "ok" if alignment.beam == search.beam else "retried"
        outcomes.append(Outcome(utterance, status, round(alignment.score, 4), alignment.beam, ""))
        alignments[utterance] = alignment.states
    write_shard(path, alignments, outcomes)
    return table
