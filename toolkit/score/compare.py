"""Comparison of two systems on the same references: significance, and the words that differ."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np

from toolkit.score import significance
from toolkit.score.alignment import RATE_NAMES, UNIT_NAMES
from toolkit.score.significance import (
    MANY_SEGMENTS,
    Interval,
    MatchedPairs,
    matched_pairs,
    permutation_p_value,
)
from toolkit.score.wer import Score, ScoreError

_SHOWN = 15
"""Number of words listed with fewer errors, and with more errors."""


@dataclass(frozen=True)
class WordDifference:
    """Errors of two systems on one word."""

    word: str
    count: int
    """Occurrences in the references."""
    first: int
    """Errors of the first system: the word substituted, deleted or inserted."""
    second: int
    """Errors of the second system."""

    @property
    def difference(self) -> int:
        """Errors of the second system minus those of the first."""
        return self.second - self.first


@dataclass(frozen=True)
class Comparison:
    """Comparison of a second system with a first; differences are second minus first."""

    first: Score
    second: Score
    interval: Interval | None
    """Confidence interval of `difference`; None if only one utterance was scored."""
    probability: float
    """Bisani and Ney's probability of improvement: the share of resamples in which the second
    system has fewer errors. Equal errors count one half (in Kaldi's `compute-wer-bootci` they
    count against the second)."""
    p_value: float
    """Two-sided p-value: of all ways to exchange the two systems, speaker by speaker or utterance
    by utterance, the share with at least as large a difference."""
    units: int
    """Number of resampled units, which are speakers or utterances as `first.resampled` says."""

    @property
    def difference(self) -> float:
        """Difference of error rates in percentage points; below 0 the second system is better."""
        return self.second.percent - self.first.percent

    @property
    def relative(self) -> float | None:
        """The difference in percent of the first system's rate; None if that is 0."""
        errors = self.first.errors
        return 100.0 * (self.second.errors - errors) / errors if errors else None

    @cached_property
    def matched_pairs(self) -> MatchedPairs:
        """NIST's matched pairs test."""
        utterance_pairs = list(zip(self.first.utterances, self.second.utterances, strict=True))
        return matched_pairs(
            ((a.pairs, b.pairs) for a, b in utterance_pairs), [a.block for a, _ in utterance_pairs]
        )

    @cached_property
    def better_equal_worse(self) -> tuple[int, int, int]:
        """Numbers of utterances with fewer, equally many and more errors of the second system."""
        # Both scores have the same references in the same order.
        utterance_pairs = zip(self.first.utterances, self.second.utterances, strict=True)
        signs = Counter(int(np.sign(b.errors - a.errors)) for a, b in utterance_pairs)
        return signs[-1], signs[0], signs[1]

    def words(self) -> list[WordDifference]:
        """Return every word, the largest absolute difference first, ties by name.

        The differences add up to the difference of all errors.
        """
        count, first, second = Counter(), _errors_by_word(self.first), _errors_by_word(self.second)
        for utterance in self.first.utterances:
            count.update(utterance.ref)
        names = sorted({*count, *first, *second})
        differences = [
            WordDifference(name, count[name], first[name], second[name]) for name in names
        ]
        return sorted(differences, key=lambda word: -abs(word.difference))

    def remarks(self) -> list[str]:
        """Return warnings about the validity of the tests."""
        remarks = []
        # Of the 2^N exchanges, the observed one and its mirror image are always as extreme as
        # observed.
        least = 2.0 ** (1 - self.units)
        if least > 0.05:
            remarks.append(
                f"with {self.units} {self.first.resampled}s no difference can have a p-value "
                f"below {least:g}"
            )
        if self.matched_pairs.segments < MANY_SEGMENTS:
            remarks.append(
                f"the matched pairs test needs at least {MANY_SEGMENTS} segments and has "
                f"{self.matched_pairs.segments}"
            )
        return remarks


def compare(first: Score, second: Score) -> Comparison:
    """Compare two systems scored against the same references.

    Args:
      first: the score of the baseline.
      second: the score of the system compared with it.

    Raises:
      ScoreError: the two were not scored on the same references in the same way. That the systems
        took different alternatives of a reference is no error.
    """
    if first.unit != second.unit:
        raise ScoreError(
            f"one system was scored in the unit {first.unit}, the other in {second.unit}"
        )
    if (first.weights, first.normaliser) != (second.weights, second.normaliser):
        raise ScoreError(
            f"one system was scored with weights {first.weights} and normaliser "
            f"{first.normaliser}, the other with {second.weights} and {second.normaliser}"
        )
    if first.skipped != second.skipped:
        raise ScoreError(
            "--mode present excludes utterances without a hypothesis, and these differ between the "
            f"two systems ({len(first.skipped)} and {len(second.skipped)} utterances): use --mode "
            "all, or compare only utterances for which both systems have a hypothesis"
        )
    if len(first.utterances) != len(second.utterances):
        raise ScoreError(
            f"{len(first.utterances)} utterances were scored for one system and "
            f"{len(second.utterances)} for the other"
        )
    for a, b in zip(first.utterances, second.utterances, strict=True):
        same = a.alternatives == b.alternatives if a.alternatives else a.ref_text == b.ref_text
        if (a.id, a.speaker) != (b.id, b.speaker) or not same:
            raise ScoreError(
                "the two systems were scored against different references, first for the "
                f"utterance {a.id!r}"
            )
    # [B, 4]: reference units, errors of each system, and the second system's reference units.
    blocks = first.blocks(
        [utterance.ref_units for utterance in first.utterances],
        [utterance.errors for utterance in first.utterances],
        [utterance.errors for utterance in second.utterances],
        [utterance.ref_units for utterance in second.utterances],
    )
    differences = blocks[:, 2] - blocks[:, 1]
    # Both systems are resampled on the same blocks, so that their rates' correlation is kept.
    units, errors_first, errors_second, units_second = significance.resample(blocks).T
    # P(errors_second < errors_first) + P(equal) / 2: Bisani and Ney's probability of improvement.
    fewer, equal = (errors_second < errors_first).mean(), (errors_second == errors_first).mean()
    interval = None
    if len(blocks) > 1 and first.ref_units and second.ref_units:
        if (units == units_second).all():
            rates = significance.percent(errors_second - errors_first, units)
        else:  # each system has taken its own alternatives of the references
            filled = (units > 0) & (units_second > 0)  # one system may have taken @, no word
            rates = significance.percent(errors_second[filled], units_second[filled])
            rates = rates - significance.percent(errors_first[filled], units[filled])
        interval = significance.interval_of(rates, first.resampled, len(blocks))
    return Comparison(
        first=first,
        second=second,
        interval=interval,
        probability=float(fewer + equal / 2),
        p_value=permutation_p_value(differences.tolist()),
        units=len(blocks),
    )


def comparison_numbers(comparison: Comparison) -> dict[str, object]:
    """Return the numbers of a comparison as plain data for `json.dumps`.

    The matched pairs' numbers are None if segments are too few for the test; `z` is also None if it
    is infinite, which JSON cannot express.
    """
    c, pairs = comparison, comparison.matched_pairs
    enough = pairs.segments >= MANY_SEGMENTS
    better, equal, worse = c.better_equal_worse
    return {
        "unit": c.first.unit,
        "first": c.first.percent,
        "second": c.second.percent,
        "difference": c.difference,
        "interval": [c.interval.low, c.interval.high] if c.interval else None,
        "probability_of_improvement": c.probability,
        "p_value": c.p_value,
        "exchanged": {"units": c.units, "unit": c.first.resampled},
        "matched_pairs": {
            "p_value": pairs.p_value if enough else None,
            "z": pairs.z if enough and isfinite(pairs.z) else None,
            "segments": pairs.segments,
        },
        "utterances": {"better": better, "equal": equal, "worse": worse},
        "missing": {"first": list(c.first.missing), "second": list(c.second.missing)},
        "extra": {
            "first": list(c.first.unmatched_hypotheses),
            "second": list(c.second.unmatched_hypotheses),
        },
    }


def comparison_lines(comparison: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """Yield the lines of a comparison's report, without line ends.

    Args:
      comparison: the comparison of two systems.
      names: their names in the report, such as A and B.
    """
    first, second = names
    c = comparison
    name = f"%{RATE_NAMES[c.first.unit]}"
    relative = f" ({c.relative:+.1f} % relative)" if c.relative is not None else ""
    interval = f" {c.interval}" if c.interval else ""
    yield f"{name} of {second} minus {first}: {c.difference:+.2f}{relative}{interval}"
    yield f"Probability of {second} improving on {first}: {100 * c.probability:.2f} %"
    yield (
        f"p-value: {_p(c.p_value)} (two-sided, exchanging the systems' results for "
        f"{c.units} {c.first.resampled}s)"
    )
    pairs = c.matched_pairs
    if pairs.segments < MANY_SEGMENTS:
        yield f"Matched pairs: none, {pairs.segments} segments are too few for NIST's test"
    else:
        yield (
            f"Matched pairs: p {_p(pairs.p_value)}, z {pairs.z:.2f} (NIST's test on "
            f"{pairs.segments} segments)"
        )
    better, equal, worse = c.better_equal_worse
    yield (
        f"Utterances: {second} better in {better}, worse in {worse}, same number of errors in "
        f"{equal}"
    )
    unit = UNIT_NAMES[c.first.unit]
    words = [word for word in c.words() if word.difference]
    for title, chosen in (
        ("FEWER", [word for word in words if word.difference < 0]),
        ("MORE", [word for word in words if word.difference > 0]),
    ):
        yield ""
        yield f"{title} ERRORS BY {second} ({len(chosen)} {unit}s)"
        if chosen:
            yield f"difference  {f'errors {first}':>9}  {f'errors {second}':>9}  in ref  {unit}"
        for word in chosen[:_SHOWN]:
            yield (
                f"{word.difference:+10d}  {word.first:9d}  {word.second:9d}  {word.count:6d}  "
                + word.word.replace(" ", "␣")
            )
    if c.first.by_speaker():
        yield from _speakers(c, first, second)


def _speakers(comparison: Comparison, first: str, second: str) -> Iterator[str]:
    """Yield the rates of each speaker, those that improve most first."""
    yield ""
    yield "EACH SPEAKER"
    yield f"difference  {f'% of {first}':>9}  {f'% of {second}':>9}  in ref  speaker"
    sides = comparison.first.by_speaker(), comparison.second.by_speaker()
    rows = [(sides[1][name].percent - a.percent, name) for name, a in sides[0].items()]
    for difference, name in sorted(rows):
        a, b = (side[name] for side in sides)
        yield f"{difference:+10.2f}  {a.percent:9.2f}  {b.percent:9.2f}  {a.ref_units:6d}  {name}"


def _errors_by_word(score: Score) -> Counter:
    """Count the errors by word: the reference word, or the inserted word."""
    wrong = (pair for u in score.utterances if u.errors for pair in u.pairs if pair[0] != pair[1])
    return Counter(hyp if ref is None else ref for ref, hyp in wrong)


def _p(value: float) -> str:
    """Format a p-value with four decimals."""
    return "below 0.0001" if value < 1e-4 else f"{value:.4f}"
