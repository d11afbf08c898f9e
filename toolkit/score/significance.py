"""Bootstrap confidence intervals of error rates, and NIST's matched pairs test."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import copysign, erfc, inf, sqrt
from typing import Literal

import numpy as np

from toolkit.score.alignment import Pair

LEVEL = 0.95
"""Confidence level: the probability with which an interval should cover the true rate."""
REPLICATES = 10_000
"""Number of resampled test sets; with this number, the ends of an interval vary by about 2 % of its
width with the seed."""
SEED = 1
MIN_SPEAKERS = 6
"""With fewer speakers, utterances are resampled instead: no exchange of two systems by speaker
could be significant at 5 % (2 of 2^5 is 6 %), and intervals would rest on a handful of numbers."""
FEW_UNITS = 10
"""With fewer units an interval covers the true rate in less than 90 % of cases instead of 95 %, as
simulated speakers of unequal rates show."""
_DRAWS = 1 << 16
"""Units drawn at a time; their indices fit a processor's cache."""

Unit = Literal["speaker", "utterance"]


@dataclass(frozen=True)
class Interval:
    """A bootstrap confidence interval."""

    low: float
    """Percent."""
    high: float
    """Percent."""
    by: Unit
    """The unit that was resampled."""
    units: int
    """Number of such units in the test set."""

    def __str__(self) -> str:
        return f"{LEVEL:.0%} Conf Interval [ {self.low:.2f}, {self.high:.2f} ]"


def block_sums(names: Sequence[str], counts: np.ndarray) -> np.ndarray:
    """Sum counts of utterances by block, such as by speaker.

    Args:
      names: for each of U utterances the name of its block: a speaker, or the utterance's own id.
      counts: [U, K] integers.

    Returns:
      [B, K], the blocks in the order of their names, whatever the order of the utterances.
    """
    blocks, index = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    sums = np.zeros((len(blocks), counts.shape[1]), dtype=np.int64)
    np.add.at(sums, index, counts)
    return sums


def resample(blocks: np.ndarray, replicates: int = REPLICATES, seed: int = SEED) -> np.ndarray:
    """Draw test sets of B blocks with replacement, and sum the counts of each.

    Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation"
    (ICASSP 2004), draw utterances, and suggest speakers where the utterances of a speaker are not
    independent. Here a block is either.

    Args:
      blocks: [B, K] integers.
      replicates: number R of test sets.
      seed: gives the same draws for the same number of blocks.

    Returns:
      [R, K] sums.
    """
    number = len(blocks)
    columns = [np.ascontiguousarray(column) for column in blocks.T]
    generator = np.random.default_rng(seed)
    sums = np.empty((replicates, len(columns)), dtype=np.int64)
    # A part of the replicates at a time, so that memory does not grow with their number.
    step = max(1, _DRAWS // number)
    for start in range(0, replicates, step):
        rows = sums[start : start + step]
        # [rows, B]: the blocks of each test set, with replacement.
        drawn = generator.integers(0, number, size=(len(rows), number), dtype=np.int32)
        for k, column in enumerate(columns):
            rows[:, k] = column.take(drawn).sum(axis=1)
    return sums


def percent(errors: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the error rates of the replicates, leaving out those without reference units.

    Args:
      errors: [R] errors, or a difference of errors.
      units: [R] reference units.
    """
    filled = units > 0
    return 100.0 * errors[filled] / units[filled]


def interval_of(rates: np.ndarray, by: Unit, units: int) -> Interval:
    """Return the interval between two percentiles of the replicates' rates.

    The percentiles are those of Hesterberg's expanded interval ("What teachers should know about
    the bootstrap", The American Statistician, 2015): with S units the spread of the replicates is
    sqrt((S - 1) / S) times the true spread, and Student's t replaces the normal distribution. With
    many units they are Bisani and Ney's 2.5 and 97.5. (Kaldi's `compute-wer-bootci` takes 1.96
    standard deviations on both sides of the replicates' mean, which may fall below zero.)

    Args:
      rates: [R] percent.
      by: the unit that was resampled.
      units: number S of such units, at least 2.
    """
    from scipy.special import ndtr, stdtrit  # takes long to import

    # Lower quantile of Student's t with S - 1 degrees of freedom, then the normal tail that it
    # corresponds to after the correction of the spread.
    t = stdtrit(units - 1, (1 - LEVEL) / 2)
    tail = ndtr(t * np.sqrt(units / (units - 1)))
    low, high = np.quantile(rates, [tail, 1 - tail])
    return Interval(float(low), float(high), by, units)


BOUNDARY = 2
"""Number of consecutive words that end a segment if both systems recognise them correctly, without
insertions among them."""

MANY_SEGMENTS = 50
"""With fewer segments the mean difference per segment is not approximately normal."""


def permutation_p_value(differences: Sequence[int]) -> float:
    """Return the p-value of a permutation test that exchanges the two systems.

    If the systems are equally good, each unit's difference of errors could as well have the other
    sign. The p-value is two-sided and exact: the distribution of the sum over all 2^N choices of
    signs is computed by one convolution per unit (Monte Carlo "approximate randomisation"
    estimates the same).

    Args:
      differences: errors of one system minus those of the other, for N independent units
        (utterances or speakers).
    """
    # Units without a difference do not change the sum.
    steps = sorted(abs(int(d)) for d in differences if d)
    most, observed = sum(steps), abs(sum(map(int, differences)))
    chance = np.zeros(most + 1)  # chance[s]: probability that the positive differences sum to s
    chance[0] = 1.0
    reached = 0
    for step in steps:
        reached += step
        # Convolution with (1/2, ..., 1/2 at `step`): the unit's sign is either with probability
        # 1/2.
        moved = chance[: reached - step + 1].copy()
        chance[: reached + 1] *= 0.5
        chance[step : reached + 1] += 0.5 * moved
    # If the positive differences sum to s, all sum to s - (most - s).
    sums = np.abs(2 * np.arange(most + 1) - most)
    return float(min(1.0, chance[sums >= observed].sum()))


@dataclass(frozen=True)
class MatchedPairs:
    """The outcome of the Matched Pairs Sentence-Segment Word Error test (MAPSSWE)."""

    segments: int
    """Number of segments with an error of either system."""
    mean: float
    """Errors of the second system minus those of the first, per segment."""
    deviation: float
    """Standard deviation of that difference."""

    @property
    def z(self) -> float:
        """The mean in units of its standard error; infinite if several segments all have the same
        difference, 0 if there is no difference or only one segment."""
        if self.deviation:
            return self.mean * sqrt(self.segments) / self.deviation
        return copysign(inf, self.mean) if self.segments > 1 and self.mean else 0.0

    @property
    def p_value(self) -> float:
        """Two-sided p-value by the normal distribution."""
        # 2 (1 - Phi(|z|)) = erfc(|z| / sqrt(2)).
        return erfc(abs(self.z) / sqrt(2))


def matched_pairs(
    pairs: Iterable[tuple[Sequence[Pair], Sequence[Pair]]], sentences: Iterable[str] | None = None
) -> MatchedPairs:
    """Test two systems on segments of speech that have independent errors.

    Gillick and Cox, "Some statistical issues in the comparison of speech recognition algorithms"
    (ICASSP 1989), as implemented by `sc_stats -t mapsswe` of NIST's SCTK: a segment is bounded by
    at least two consecutive words that both systems have right, or by the ends of the utterance.

    Args:
      pairs: for each utterance its alignments by the first system and by the second.
      sentences: for each utterance, the sentence that it is a recording of, if sentences occur
        several times: such copies are equally difficult, so all copies of a sentence form one
        segment. By default all sentences differ.
    """
    by_sentence: dict[str | int, list[list[int]]] = {}
    # Without sentences every utterance has its own key.
    keys: Iterable[str | int] = sentences or count()
    for sentence, texts in zip(keys, pairs, strict=False):
        by_sentence.setdefault(sentence, []).append(_segments(*texts))
    differences = []
    for copies in by_sentence.values():
        if len(copies) == 1:
            differences += copies[0]
        elif any(copies):
            # Copies of a sentence are not independent: all their segments together are one.
            differences.append(sum(map(sum, copies)))
    # Gillick and Cox: Z_i = errors of the second minus errors of the first system in segment i;
    # z = mean(Z) / (deviation(Z) / sqrt(n)) is approximately normal for n >= MANY_SEGMENTS.
    mean = float(np.mean(differences)) if differences else 0.0
    # The unbiased estimate of the deviation, as in sc_stats.
    deviation = float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
    return MatchedPairs(len(differences), mean, deviation)


def _segments(first: Sequence[Pair], second: Sequence[Pair]) -> list[int]:
    """Return the difference of errors of each segment with errors.

    An utterance is one segment if the systems took different alternatives of its reference.
    """
    differences = []
    difference, wrong, right_run = 0, False, 0
    sides = _errors(first), _errors(second)
    if [ref for ref, _ in first if ref is not None] != [
        ref for ref, _ in second if ref is not None
    ]:
        # The references differ, so their words cannot be paired.
        errors = [sum(inserted + bad for inserted, bad in side) for side in sides]
        return [errors[1] - errors[0]] if any(errors) else []
    for a, b in zip(*sides, strict=True):
        for slot in (0, 1):  # the insertions before the word, then the word
            if a[slot] or b[slot]:
                difference += b[slot] - a[slot]
                wrong, right_run = True, 0
            else:
                right_run += slot
        # A segment ends at two words in a row that both systems have right, if it has errors.
        if wrong and right_run >= BOUNDARY:
            differences.append(difference)
            difference, wrong = 0, False
    return [*differences, difference] if wrong else differences


def _errors(pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    """Return (insertions before it, whether it is wrong) for each reference word and the end."""
    errors, inserted = [], 0
    for ref, hyp in pairs:
        if ref is None:
            inserted += 1
        else:
            errors.append((inserted, int(ref != hyp)))
            inserted = 0
    return [*errors, (inserted, 0)]
