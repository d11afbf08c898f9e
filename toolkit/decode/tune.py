"""Tuning of acoustic scale and word penalty by searching (C2).

Lattices that were searched at one acoustic scale lack paths that a search at another would find:
the beam is in units of the scaled scores. So the weights found in lattices are where the next
search is made, and only what was found by a search at its own scale counts.

Of the thirty pairs of a grid some have fewer errors than others by chance, the more so the fewer
words there are to tune on. Where the weights before tuning are known to be good, others count only
if they make significantly fewer errors.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from toolkit.fsa.lattice import Weights

logger = logging.getLogger(__name__)

FEWEST_WORDS = 3
"""Words of the references below which nothing is tuned."""
MOST_SEARCHES = 10
MOST_WIDENINGS = 6
"""Times that a grid is widened on each of its four sides."""


@dataclass(frozen=True)
class Grid:
    """Pairs of weights: every scale with every penalty."""

    scales: tuple[float, ...]
    """Ascending."""
    penalties: tuple[float, ...]
    """Ascending."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", tuple(sorted(set(self.scales))))
        object.__setattr__(self, "penalties", tuple(sorted(set(self.penalties))))

    def pairs(self) -> list[Weights]:
        """Every pair."""
        return [Weights(scale, penalty) for scale in self.scales for penalty in self.penalties]

    def including(self, weights: Weights) -> "Grid":
        """This grid, and a row and a column for these weights where it lacks them."""
        return Grid((*self.scales, weights.acoustic_scale), (*self.penalties, weights.word_penalty))

    def edges(self, best: Weights) -> list[str]:
        """The sides of the grid on which a pair lies; a single value has no sides."""
        found = []
        for name, values, value in (
            ("scale", self.scales, best.acoustic_scale),
            ("penalty", self.penalties, best.word_penalty),
        ):
            if len(values) > 1 and value in (values[0], values[-1]):
                found.append(f"{'lowest' if value == values[0] else 'highest'} {name}")
        return found

    def widened(self, side: str) -> "Grid":
        """The grid with one more value on a side: scales by ratio, penalties by difference."""
        s, p = self.scales, self.penalties
        if side == "lowest scale":
            return replace(self, scales=(round(s[0] ** 2 / s[1], 6), *s))
        if side == "highest scale":
            return replace(self, scales=(*s, round(s[-1] ** 2 / s[-2], 6)))
        if side == "lowest penalty":
            return replace(self, penalties=(round(2 * p[0] - p[1], 6), *p))
        return replace(self, penalties=(*p, round(2 * p[-1] - p[-2], 6)))

    def if_tunable(self, words: int, otherwise: Weights) -> "Grid":
        """This grid, or certain weights alone where there are too few words to tune on.

        Args:
          words: of the references; a warning says that they are too few.
          otherwise: the weights.
        """
        if words >= FEWEST_WORDS:
            return self
        logger.warning(
            "NOT TUNED: the development splits have %d words, less than %d; acoustic scale %g and"
            " word penalty %g stay as they are",
            *(words, FEWEST_WORDS, otherwise.acoustic_scale, otherwise.word_penalty),
        )
        return Grid((otherwise.acoustic_scale,), (otherwise.word_penalty,))


class Count(NamedTuple):
    """Word errors of some utterances with one pair of weights."""

    errors: int
    """Of all."""
    words: int
    """Of the references."""
    by_utterance: tuple[int, ...]
    """The errors of each, in the same order for all pairs."""

    @classmethod
    def of(cls, errors: Sequence[int], words: int) -> "Count":
        """The count of utterances with these errors."""
        return cls(sum(errors), words, tuple(errors))

    def significantly_below(self, other: "Count", standard_errors: float) -> bool:
        """Whether the errors are fewer than another pair's by more than chance would make them.

        Args:
          other: the count of the same utterances.
          standard_errors: of the sum of the utterances' differences; 0: any fewer errors will do.
        """
        saved = np.subtract(other.by_utterance, self.by_utterance)
        if len(saved) < 2:
            return saved.sum() > 0 and standard_errors == 0
        return bool(saved.sum() > standard_errors * math.sqrt(len(saved) * saved.var(ddof=1)))


Searched = Callable[[float, Grid], Sequence[Count]]
"""Searches at an acoustic scale; returns the count of each pair of a grid."""


@dataclass(frozen=True)
class Tuning:
    """The weights chosen, and what was tried."""

    best: Weights
    """Fewest errors of those that were searched at their own scale, or those before tuning."""
    grid: Grid
    """The grid of the search at that scale."""
    at_edge: list[str]
    """Sides of the grid on which the weights lie although it was widened as often as allowed."""
    tried: dict[Weights, tuple[float, Count]]
    """The scale of the search in whose lattices each pair was tried, its own if there was one, and
    the count."""


def percent(errors: int, words: int) -> float:
    """The word error rate, NaN without words."""
    return 100 * errors / words if words else math.nan


@dataclass(frozen=True)
class Untuned:
    """The weights before tuning, and what it takes to leave them."""

    weights: Weights
    """Searched at their own scale first."""
    standard_errors: float
    """See `Count.significantly_below`."""


def tune(searched: Searched, start: float, grid: Grid, untuned: Untuned | None = None) -> Tuning:
    """Find the weights with the fewest errors.

    Searches at `start`, then at the best scale found in the lattices, until that is one at which it
    has searched already. Where the best weights lie on a side of the grid, the grid is widened.
    Ties go to the smallest absolute penalty, then to the scale nearest to that of the search, so
    that a set with few errors does not draw the weights to a side.

    Args:
      searched: makes a search and counts errors.
      start: the acoustic scale of the first search.
      grid: scales and penalties to begin with, those of `untuned` among them.
      untuned: weights that are kept unless others, in the same lattices or searched at their own
        scale, make significantly fewer errors; None: the fewest errors decide.
    """
    tried: dict[tuple[float, Weights], Count] = {}
    last: dict[float, Grid] = {}
    widened: dict[str, int] = {}
    scale = start
    for _ in range(MOST_SEARCHES):
        found = dict(zip(grid.pairs(), searched(scale, grid), strict=True))
        tried |= {(scale, pair): count for pair, count in found.items()}
        last[scale] = grid
        best = _chosen(found, scale, untuned)
        logger.info(
            "searched at an acoustic scale of %g: %.2f %% WER with a scale of %g and a word penalty"
            " of %g",
            *(scale, percent(*found[best][:2]), best.acoustic_scale, best.word_penalty),
        )
        for side in grid.edges(best):
            if widened.get(side, 0) < MOST_WIDENINGS:
                widened[side] = widened.get(side, 0) + 1
                grid = grid.widened(side)
        scale = best.acoustic_scale
        if last.get(scale) == grid:
            break
    own = {pair: count for (at, pair), count in tried.items() if at == pair.acoustic_scale}
    best = _chosen(own, start, untuned)
    at = {pair: (scale, count) for (scale, pair), count in tried.items()}
    at |= {pair: (pair.acoustic_scale, count) for pair, count in own.items()}
    return Tuning(best, last[best.acoustic_scale], grid.edges(best), at)


def _chosen(counts: Mapping[Weights, Count], scale: float, untuned: Untuned | None) -> Weights:
    def rank(pair: Weights) -> tuple[float, ...]:
        away = abs(math.log(pair.acoustic_scale / scale))
        return counts[pair].errors, abs(pair.word_penalty), away, pair.acoustic_scale

    best = min(counts, key=rank)
    if untuned is not None and not counts[best].significantly_below(
        counts[untuned.weights], untuned.standard_errors
    ):
        return untuned.weights
    return best
