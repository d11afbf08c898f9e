"""Rescored n-best lists of several splits: weights tuned on the development splits, all scored."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from toolkit.decode.rescoring.candidates import Candidates
from toolkit.decode.rescoring.rescorer import WEIGHTS, RescoringWeights, neural_scores
from toolkit.decode.rescoring.tuning import RescoringTuning, tune_rescoring
from toolkit.decode.system import words_of
from toolkit.decode.tuning import FEWEST_WORDS, Count, Grid, Untuned, percent
from toolkit.fsa.lattice import Weights
from toolkit.models.neural_lm import NeuralLm
from toolkit.score.alignment import align
from toolkit.score.results import Result, can_be_scored, record_results, score_split, write_texts
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class NeuralRescoringConfig:
    """The n-best lists and the weights tried on the development set."""

    count: int = 100
    """Length of the n-best lists."""
    weights: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Weights of the neural model's log-probability tried; the n-gram's has the rest. With 0 the
    neural model is not used where it does not help."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}, needs to be at least 1")
        if not self.weights or not all(0 <= weight <= 1 for weight in self.weights):
            raise ValueError(f"weights is {self.weights}, needs values in [0, 1]")


@dataclass(frozen=True)
class RescoredLists:
    """The n-best lists of a split and the neural model's scores."""

    candidates: Mapping[str, Candidates]
    """By utterance."""
    neural: Sequence[np.ndarray]
    """[K] log-probabilities by the neural model, in the same order."""
    real_time_factor: float
    """Seconds of one core, of the search and of the neural model, per second of speech."""
    errors: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Errors and words by utterance and hypothesis, as they were counted."""

    @classmethod
    def of(
        cls,
        candidates: Mapping[str, Candidates],
        model: NeuralLm,
        audio_seconds: float,
        search_seconds: float,
    ) -> "RescoredLists":
        """Rescore lists.

        Args:
          candidates: the list of each utterance.
          model: the neural model.
          audio_seconds: seconds of speech of them all.
          search_seconds: seconds of one core that the search took.
        """
        start = time.process_time()
        neural = neural_scores(model, list(candidates.values()))
        spent = search_seconds + time.process_time() - start
        return cls(candidates, neural, spent / audio_seconds if audio_seconds else float("nan"))

    def best(self, weights: RescoringWeights) -> dict[str, str]:
        """The best hypothesis of each utterance."""
        pairs = zip(self.candidates.items(), self.neural, strict=True)
        return {utterance: weights.best(listed, scores) for (utterance, listed), scores in pairs}

    def words(self, weights: RescoringWeights) -> dict[str, tuple[list[str], list[float]]]:
        """The words of the best hypothesis of each utterance, and their posteriors."""
        pairs = zip(self.candidates.items(), self.neural, strict=True)
        return {utterance: weights.words(listed, scores) for (utterance, listed), scores in pairs}

    def count(self, references: Mapping[str, str], weights: RescoringWeights) -> Count:
        """Word errors and words; every hypothesis is compared once."""
        found = []
        for utterance, text in self.best(weights).items():
            if (utterance, text) not in self.errors:
                reference = references[utterance].split()
                wrong = sum(a != b for a, b in align(reference, text.split()))
                self.errors[utterance, text] = wrong, len(reference)
            found.append(self.errors[utterance, text])
        return Count.of([wrong for wrong, _ in found], sum(words for _, words in found))


ListsAt = Callable[[str, float], RescoredLists]
"""Searches a split at an acoustic scale and rescores what it finds."""
Texts = Mapping[str, Mapping[str, str]]
"""By split and utterance."""


def tune_lists(
    lists: ListsAt,
    references: Texts,
    tune_on: Sequence[str],
    before: Weights,
    grid: Grid,
    within: float | None,
    config: NeuralRescoringConfig,
    out: Path,
) -> RescoringWeights:
    """Tune the weights on the development splits.

    Args:
      lists: called for the scales that are tried.
      references: transcripts.
      tune_on: the splits.
      before: the weights without the neural model.
      grid: scales and penalties to begin with.
      within: `before` is kept unless others make fewer errors by more than so many standard errors
        of the difference; None: the fewest errors decide.
      config: weights of the neural model.
      out: the folder that gets `weights.json` and `grid.tsv`.
    """

    def counted(neural: float, scale: float, pairs: Grid) -> list[Count]:
        found = {split: lists(split, scale) for split in tune_on}
        totals = []
        for pair in pairs.pairs():
            weights = RescoringWeights.of(neural, pair)
            counts = [one.count(references[split], weights) for split, one in found.items()]
            each = [e for count in counts for e in count.by_utterance]
            totals.append(Count.of(each, sum(count.words for count in counts)))
        return totals

    words = words_of(references, tune_on)
    untuned = None
    if within is not None:
        untuned, grid = Untuned(before, within), grid.including(before)
    grid = grid.if_tunable(words, before)
    tried = config.weights if words >= FEWEST_WORDS else [min(config.weights)]
    tuning = tune_rescoring(counted, tried, before.acoustic_scale, grid, untuned)
    _write_grid(tuning, out / "grid.tsv")
    tuning.best.save(out / WEIGHTS)
    return tuning.best


def score_lists(
    lists: ListsAt,
    weights: RescoringWeights,
    references: Texts,
    speakers: Texts,
    out: Path,
    named: Mapping[str, str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Score the best hypotheses of every split.

    Args:
      lists: called at the scale of the weights.
      weights: see `tune_lists`.
      references: transcripts of the splits.
      speakers: speaker of each utterance.
      out: the folder that gets `rows.json` and, by split, hypotheses and reports.
      named: `system`, `lm` and `command` of the results.
      progress: called with (splits scored, splits).

    Returns:
      WER in percent by split, and the weight of the neural model.
    """
    rows: list[Result] = []
    for split, wanted in references.items():
        found = lists(split, weights.acoustic_scale)
        texts = found.best(weights)
        if not can_be_scored(wanted, split):
            write_texts(texts, out / split)
            continue
        rtf = found.real_time_factor
        rows.append(
            score_split(wanted, texts, speakers[split], out / split, rtf=rtf, split=split, **named)
        )
        progress(len(rows), len(references))
    record_results(out / "rows.json", rows)
    return {f"wer {row.split}": row.wer for row in rows} | {"neural weight": weights.neural}


def _write_grid(tuning: RescoringTuning, path: Path) -> None:
    lines = ["neural\tacoustic_scale\tword_penalty\terrors\twords\twer\tsearch_scale"]
    lines += [
        f"{neural:g}\t{w.acoustic_scale:g}\t{w.word_penalty:g}\t{e}\t{n}\t"
        f"{percent(e, n):.2f}\t{s:g}"
        for neural, one in tuning.tried.items()
        for w, (s, (e, n, _)) in sorted(one.tried.items())
    ]
    write_atomically(path, "\n".join(lines) + "\n")
