"""How far the word boundaries of an alignment are from those of a reference."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from toolkit.align.ctm import CtmEntry
from toolkit.errors import ToolkitError
from toolkit.score.align import align

WITHIN_MS = (25, 50, 100)
NUM_WORST = 5


class BoundaryError(ToolkitError):
    """Alignments that cannot be compared."""


@dataclass(frozen=True)
class Deviation:
    """Statistics of boundaries' differences, hypothesis less reference."""

    median_ms: float
    """Of the absolute differences."""
    mean_ms: float
    """Of the absolute differences."""
    bias_ms: float
    """Median of the signed differences; negative when the hypothesis is early."""
    within: dict[int, float]
    """Share of the absolute differences that are at most so many ms, for `WITHIN_MS`."""


@dataclass(frozen=True)
class UtteranceDeviation:
    """An utterance and how far its boundaries are off."""

    utterance: str
    """Utterance id."""
    mean_ms: float
    """Mean absolute difference of its starts and ends."""
    max_ms: float
    """The largest of them."""
    token: str
    """The word it belongs to."""


@dataclass(frozen=True)
class BoundaryReport:
    """What `compare_boundaries` found."""

    num_compared: int
    """Words that are in both."""
    num_reference_only: int
    """Words of the reference without a partner."""
    num_hypothesis_only: int
    """Words of the hypothesis without a partner."""
    boundaries: Deviation
    """Of starts and ends together."""
    starts: Deviation
    """Of the words' starts."""
    ends: Deviation
    """Of the words' ends."""
    worst: list[UtteranceDeviation]
    """The utterances with the largest mean, at most `NUM_WORST`, the worst first."""

    def text(self) -> str:
        """One line per number: its name, then the number."""
        lines = [
            f"words compared: {self.num_compared}",
            f"words of the reference alone: {self.num_reference_only}",
            f"words of the hypothesis alone: {self.num_hypothesis_only}",
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
        for one in self.worst:
            lines.append(
                f"{one.utterance}, mean absolute difference in ms: {one.mean_ms:.1f} "
                f"(at most {one.max_ms:.1f}, {one.token})"
            )
        return "\n".join(lines) + "\n"


def compare_boundaries(
    reference: Iterable[CtmEntry], hypothesis: Iterable[CtmEntry]
) -> BoundaryReport:
    """Compare the times of the words that two alignments of the same audio have in common.

    Within an utterance (and channel) words are paired in order of time: one by one where both have
    the same words, else along the edit alignment of `toolkit.score.align`, leaving out what is
    inserted, deleted or substituted. Utterances of one side alone count as words without partners.

    Raises:
      BoundaryError: no word is in both.
    """
    sides = _by_utterance(reference), _by_utterance(hypothesis)
    unpaired = [0, 0]
    pairs: dict[str, list[tuple[CtmEntry, CtmEntry]]] = {}
    for key in sorted(sides[0].keys() | sides[1].keys()):
        words = [side.get(key, []) for side in sides]
        found = _paired(*words)
        for side in (0, 1):
            unpaired[side] += len(words[side]) - len(found)
        if found:
            pairs.setdefault(key[0], []).extend(found)
    if not pairs:
        raise BoundaryError(
            "the two alignments have no word in common: are their utterance ids and the case of "
            "their words the same?"
        )
    differences = {utterance: _differences(found) for utterance, found in pairs.items()}
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
    groups = defaultdict(list)
    for entry in entries:
        groups[entry.utterance, entry.channel].append(entry)
    return {key: sorted(group, key=lambda e: (e.start, e.end)) for key, group in groups.items()}


def _paired(
    reference: list[CtmEntry], hypothesis: list[CtmEntry]
) -> list[tuple[CtmEntry, CtmEntry]]:
    left, right = iter(reference), iter(hypothesis)
    pairs = []
    for ref, hyp in align([e.token for e in reference], [e.token for e in hypothesis]):
        entries = next(left) if ref is not None else None, next(right) if hyp is not None else None
        if ref == hyp:
            pairs.append(entries)
    return pairs


def _differences(pairs: list[tuple[CtmEntry, CtmEntry]]) -> np.ndarray:
    """Subtract the reference's start and end from the hypothesis's: float64[W, 2] in ms."""
    return 1000 * np.array([(h.start - r.start, h.end - r.end) for r, h in pairs])


def _deviation(differences: np.ndarray) -> Deviation:
    absolute = np.abs(differences)
    # A microsecond more, for times that are decimals.
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
    found = []
    for utterance, values in differences.items():
        absolute = np.abs(values)
        word = int(np.argmax(absolute.max(axis=1)))
        token = pairs[utterance][word][0].token
        found.append(
            UtteranceDeviation(utterance, float(absolute.mean()), float(absolute.max()), token)
        )
    return sorted(found, key=lambda one: (-one.mean_ms, one.utterance))[:NUM_WORST]
