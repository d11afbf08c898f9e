"""Deviation of an alignment's word boundaries from those of a reference."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from toolkit.align.ctm_textgrid import CtmEntry
from toolkit.errors import ToolkitError
from toolkit.score.alignment import align

WITHIN_MS = (25, 50, 100)
NUM_WORST = 5


class BoundaryError(ToolkitError):
    """Alignments that cannot be compared."""


@dataclass(frozen=True)
class Deviation:
    """Statistics of the boundaries' differences, hypothesis minus reference."""

    median_ms: float
    """Median of the absolute differences."""
    mean_ms: float
    """Mean of the absolute differences."""
    bias_ms: float
    """Median of the signed differences; negative when the hypothesis is early."""
    within: dict[int, float]
    """Share, 0 to 1, of absolute differences up to a limit, by the limits of `WITHIN_MS`."""


@dataclass(frozen=True)
class UtteranceDeviation:
    """Deviation of one utterance's boundaries."""

    utterance: str
    """Utterance id."""
    mean_ms: float
    """Mean absolute difference of its words' starts and ends."""
    max_ms: float
    """Largest absolute difference."""
    token: str
    """The word with the largest difference."""


@dataclass(frozen=True)
class BoundaryReport:
    """The result of `compare_boundaries`."""

    num_compared: int
    """Number of words in both alignments."""
    num_reference_only: int
    """Number of words only in the reference."""
    num_hypothesis_only: int
    """Number of words only in the hypothesis."""
    boundaries: Deviation
    """Deviation of starts and ends together."""
    starts: Deviation
    """Deviation of the words' starts."""
    ends: Deviation
    """Deviation of the words' ends."""
    worst: list[UtteranceDeviation]
    """The utterances with the largest mean, at most `NUM_WORST`, the worst first."""

    def text(self) -> str:
        """Return the statistics, one per line: name, then number."""
        lines = [
            f"words compared: {self.num_compared}",
            f"words only in the reference: {self.num_reference_only}",
            f"words only in the hypothesis: {self.num_hypothesis_only}",
        ]
        for name in ("boundaries", "starts", "ends"):
            deviation: Deviation = getattr(self, name)
            lines += [
                f"{name}, median absolute difference in ms: {deviation.median_ms:.1f}",
                f"{name}, mean absolute difference in ms: {deviation.mean_ms:.1f}",
                f"{name}, median difference in ms: {deviation.bias_ms:+.1f}",
            ]
            for limit, share in deviation.within.items():
                lines.append(f"{name}, within {limit} ms in %: {100 * share:.1f}")
        for utterance in self.worst:
            lines.append(
                f"{utterance.utterance}, mean absolute difference in ms: {utterance.mean_ms:.1f} "
                f"(at most {utterance.max_ms:.1f}, {utterance.token})"
            )
        return "\n".join(lines) + "\n"


def compare_boundaries(
    reference: Iterable[CtmEntry], hypothesis: Iterable[CtmEntry]
) -> BoundaryReport:
    """Compare the times of the words that two alignments of the same audio have in common.

    Within an utterance (and channel) words are paired in order of time: one by one where both have
    the same words, otherwise by the alignment of `toolkit.score.alignment`; insertions, deletions
    and substitutions are left out. Words of utterances in only one of the two count as unpaired.

    Raises:
      BoundaryError: the two have no word in common.
    """
    sides = _by_utterance(reference), _by_utterance(hypothesis)
    unpaired = [0, 0]  # words of the reference, of the hypothesis
    pairs: dict[str, list[tuple[CtmEntry, CtmEntry]]] = {}
    for key in sorted(sides[0].keys() | sides[1].keys()):
        words = [side.get(key, []) for side in sides]
        paired = _paired(*words)
        for side in (0, 1):
            unpaired[side] += len(words[side]) - len(paired)
        if paired:
            pairs.setdefault(key[0], []).extend(paired)
    if not pairs:
        raise BoundaryError(
            "the two alignments have no word in common: check that both use the same utterance "
            "ids and the same letter case"
        )
    differences = {utterance: _differences(paired) for utterance, paired in pairs.items()}
    # [W, 2] ms: start and end differences of the W words that both alignments have.
    everything = np.concatenate(list(differences.values()))
    return BoundaryReport(
        num_compared=len(everything),
        num_reference_only=unpaired[0],
        num_hypothesis_only=unpaired[1],
        boundaries=_deviation(everything.ravel()),
        starts=_deviation(everything[:, 0]),
        ends=_deviation(everything[:, 1]),
        worst=_worst(pairs, differences),
    )


def _by_utterance(entries: Iterable[CtmEntry]) -> dict[tuple[str, str], list[CtmEntry]]:
    """Group the entries by utterance and channel, sorted by time."""
    groups = defaultdict(list)
    for entry in entries:
        groups[entry.utterance, entry.channel].append(entry)
    return {key: sorted(group, key=lambda e: (e.start, e.end)) for key, group in groups.items()}


def _paired(
    reference: list[CtmEntry], hypothesis: list[CtmEntry]
) -> list[tuple[CtmEntry, CtmEntry]]:
    """Return the words that two alignments have in common, as pairs in order."""
    ref_entries, hyp_entries = iter(reference), iter(hypothesis)
    pairs = []
    for ref, hyp in align([e.token for e in reference], [e.token for e in hypothesis]):
        ref_entry = next(ref_entries) if ref is not None else None
        hyp_entry = next(hyp_entries) if hyp is not None else None
        if ref_entry and hyp_entry and ref == hyp:
            pairs.append((ref_entry, hyp_entry))
    return pairs


def _differences(pairs: list[tuple[CtmEntry, CtmEntry]]) -> np.ndarray:
    """Return hypothesis minus reference of the starts and ends: float64 [W, 2] in ms."""
    return 1000 * np.array([(h.start - r.start, h.end - r.end) for r, h in pairs])


def _deviation(differences: np.ndarray) -> Deviation:
    """Return the statistics of boundary differences in ms."""
    absolute = np.abs(differences)
    # A microsecond of tolerance, since times are rounded decimals.
    within = {limit: float(np.mean(absolute <= limit + 0.001)) for limit in WITHIN_MS}
    return Deviation(
        median_ms=float(np.median(absolute)),
        mean_ms=float(np.mean(absolute)),
        bias_ms=float(np.median(differences)),
        within=within,
    )


def _worst(
    pairs: dict[str, list[tuple[CtmEntry, CtmEntry]]], differences: dict[str, np.ndarray]
) -> list[UtteranceDeviation]:
    """Return the utterances with the largest mean deviation, the worst first."""
    deviations = []
    for utterance, values in differences.items():
        absolute = np.abs(values)  # [W, 2]
        # The word whose start or end differs most.
        word = int(np.argmax(absolute.max(axis=1)))
        token = pairs[utterance][word][0].token
        deviations.append(
            UtteranceDeviation(utterance, float(absolute.mean()), float(absolute.max()), token)
        )
    return sorted(deviations, key=lambda deviation: (-deviation.mean_ms, deviation.utterance))[
        :NUM_WORST
    ]
