"""A measure of shuffling: the distance of an order of utterances from a uniform shuffle (C18).

Training sees windows of utterances: its buffer, or a batch. After a uniform shuffle, the labels
in a window (speakers, say, or files) are those of a random sample of all utterances. The
hierarchical shuffle keeps files together, so that windows repeat the labels of few files.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mixing:
    """Statistics of the labels in windows of an order, and their expectation when shuffled."""

    window: int
    """Utterances per window."""
    same: float
    """Share of the pairs of utterances within a window that have the same label."""
    same_uniform: float
    """The same, expected of a uniform shuffle."""
    distinct: float
    """Mean number of different labels in a window."""
    distinct_uniform: float
    """The same, expected of a uniform shuffle."""

    @property
    def distance(self) -> float:
        """From 0 (as a uniform shuffle) to 1 (all labels of a window the same).

        The excess of same-label pairs over that of a uniform shuffle, relative to the largest
        possible: the total variation distance between the labels of pairs, same or not.
        """
        return (self.same - self.same_uniform) / max(1.0 - self.same_uniform, 1e-12)


def mixing(labels: Sequence[Hashable], window: int) -> Mixing:
    """Measure how well an order is mixed.

    Args:
      labels: of the utterances in the order; at least two, and different ones to be meaningful.
      window: utterances per window, at least 2; a shorter window at the end is left out.
    """
    total, window = len(labels), min(window, len(labels))
    if window < 2:
        raise ValueError("a window needs at least two utterances")
    counts = Counter(labels)
    pairs = distinct = windows = 0
    for start in range(0, total - window + 1, window):
        inside = Counter(labels[start : start + window])
        pairs += sum(count * (count - 1) for count in inside.values())
        distinct += len(inside)
        windows += 1
    return Mixing(
        window=window,
        same=pairs / (windows * window * (window - 1)),
        same_uniform=sum(c * (c - 1) for c in counts.values()) / (total * (total - 1)),
        distinct=distinct / windows,
        distinct_uniform=sum(1 - _none(total, c, window) for c in counts.values()),
    )


def interleaved(files: Sequence[Sequence[Hashable]], num_open: int) -> list[Hashable]:
    """Return the order of a reader that interleaves `num_open` files at a time."""
    order: list[Hashable] = []
    for start in range(0, len(files), num_open):
        readers = [iter(file) for file in files[start : start + num_open]]
        while readers:
            alive = []
            for reader in readers:
                for label in reader:
                    order.append(label)
                    alive.append(reader)
                    break
            readers = alive
    return order


def _none(total: int, count: int, drawn: int) -> float:
    """Probability that none of `count` among `total` is in a sample of `drawn`."""
    if drawn > total - count:
        return 0.0
    return math.exp(
        math.lgamma(total - count + 1)
        - math.lgamma(total - count - drawn + 1)
        - math.lgamma(total + 1)
        + math.lgamma(total - drawn + 1)
    )
