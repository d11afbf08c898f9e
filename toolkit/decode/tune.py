"""Tunes weights on development splits by a grid search; the grid is extended as needed (C2).

Lattices that were searched at one acoustic scale lack paths that a search at another scale would
find, because the beam is in units of the scaled scores. So the next search is made at the scale of
the best weights in the present lattices. In the end, weights count only if lattices were searched
at their own scale.

Of the thirty points of a grid, some have fewer errors than others by chance, especially if there
are few words to tune on. If the weights before tuning are known to be good, they are replaced only
by weights with significantly fewer errors.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from toolkit.storage.files import write_atomically

logger = logging.getLogger(__name__)

MIN_WORDS = 3
"""Smallest number of reference words for tuning."""
Point = tuple[float, ...]
"""A value for each axis of a grid."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Axis:
    """The values of one weight in a grid, and how the grid is extended beyond them."""

    name: str
    """Name in tables, such as scale."""
    values: tuple[float, ...]
    """In ascending order, each only once."""
    below: Callable[[tuple[float, ...]], float]
    """Returns a value below the lowest of some values."""
    above: Callable[[tuple[float, ...]], float]
    """Returns a value above the highest of some values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(set(self.values))))

    def including(self, value: float) -> "Axis":
        """Return the axis with one more value."""
        return replace(self, values=(*self.values, value))

    def edge(self, value: float) -> str | None:
        """Return the edge where a value lies; None if inside, or if the axis has only one value."""
        if len(self.values) > 1 and value in (self.values[0], self.values[-1]):
            return f"{'lowest' if value == self.values[0] else 'highest'} {self.name}"
        return None

    def extended(self, value: float) -> "Axis":
        """Return the axis extended beyond the edge at which `value` lies."""
        beyond = self.below if value == self.values[0] else self.above
        return self.including(beyond(self.values))


def ratio_axis(name: str, values: Sequence[float]) -> Axis:
    """Return an axis that is extended by the ratio of its outermost values."""
    return Axis(
        name,
        tuple(values),
        below=lambda v: round(v[0] ** 2 / v[1], 6),
        above=lambda v: round(v[-1] ** 2 / v[-2], 6),
    )


def difference_axis(name: str, values: Sequence[float]) -> Axis:
    """Return an axis that is extended by the difference of its outermost values."""
    return Axis(
        name,
        tuple(values),
        below=lambda v: round(2 * v[0] - v[1], 6),
        above=lambda v: round(2 * v[-1] - v[-2], 6),
    )


class ErrorCount(NamedTuple):
    """Word errors of a set of utterances with one choice of weights."""

    errors: int
    """Word errors of all utterances."""
    words: int
    """Words in the references."""
    by_utterance: tuple[int, ...]
    """The errors of each utterance, in the same order for all weights."""

    @classmethod
    def of(cls, errors: Sequence[int], words: int) -> "ErrorCount":
        """Make a count from the errors of each utterance."""
        return cls(sum(errors), words, tuple(errors))

    @property
    def percent(self) -> float:
        """Word error rate in percent; NaN without words."""
        return 100 * self.errors / self.words if self.words else math.nan

    def significantly_below(self, reference: "ErrorCount", standard_errors: float) -> bool:
        """Whether the errors are significantly fewer than those of other weights.

        Args:
          reference: the count of the same utterances.
          standard_errors: the required difference, in standard errors of the sum of the utterances'
            differences; 0: any smaller number of errors is enough.
        """
        saved = np.subtract(reference.by_utterance, self.by_utterance)
        # The sum of N differences has the standard error sqrt(N var), var being estimated.
        if len(saved) < 2:
            return saved.sum() > 0 and standard_errors == 0
        return bool(saved.sum() > standard_errors * math.sqrt(len(saved) * saved.var(ddof=1)))


class Keep(NamedTuple):
    """The weights before tuning, and how significant an improvement must be to replace them."""

    point: Any
    """A point of the grid."""
    standard_errors: float
    """See `ErrorCount.significantly_below`."""


CountErrors = Callable[[float | None, Sequence[Point]], Sequence[ErrorCount]]
"""Function that searches at an acoustic scale (None if searches do not depend on one) and counts
the errors of points."""
TieBreak = Callable[[Point, float | None], tuple[float, ...]]
"""Function that returns a point's sort key, given the scale of the search; among points with equal
errors, the one with the smallest key is taken."""


@dataclass(frozen=True)
class Tuning:
    """The chosen weights, and all weights that were tried."""

    best: Point
    """The point with the fewest errors among those searched at their own scale, or the kept
    point."""
    axes: tuple[Axis, ...]
    """The grid of the search at the best point's scale."""
    at_edge: list[str]
    """Sides of the grid on which `best` lies although the grid was extended as often as allowed."""
    tried: dict[Point, tuple[float | None, ErrorCount]]
    """For each point, the scale of the search in whose lattices it was tried (its own if possible),
    and its errors."""

    @property
    def count(self) -> ErrorCount:
        """Word errors of the chosen weights."""
        return self.tried[self.best][1]


def enough_words_to_tune(words: int, consequence: str) -> bool:
    """Whether there are enough words to tune on; warn if not.

    Args:
      words: number of words in the references.
      consequence: what happens instead, for the warning.
    """
    if words < MIN_WORDS:
        logger.warning(
            "NOT TUNED: the development splits have %d words, fewer than the required %d; %s",
            *(words, MIN_WORDS, consequence),
        )
    return words >= MIN_WORDS


def choose(
    counts: Mapping[Key, ErrorCount], tie_break: Callable[[Key], Any], keep: Keep | None = None
) -> Key:
    """Return the weights with the fewest errors, or the kept ones if the gain is insignificant.

    Args:
      counts: errors by weights, including those of `keep`.
      tie_break: returns a sort key; among weights with equal errors, the smallest key is taken.
      keep: weights that are kept unless others make significantly fewer errors; None: the fewest
        errors decide.
    """
    best = min(counts, key=lambda weights: (counts[weights].errors, tie_break(weights)))
    if keep is not None and not counts[best].significantly_below(
        counts[keep.point], keep.standard_errors
    ):
        return keep.point
    return best


def tune(
    axes: Sequence[Axis],
    count_errors: CountErrors,
    tie_break: TieBreak,
    *,
    first_search: float | None = None,
    keep: Keep | None = None,
    max_searches: int = 10,
    max_extensions: int = 6,
) -> Tuning:
    """Find the weights with the fewest errors by a grid search.

    The grid is extended on each side where the best point lies. With `first_search`, the first axis
    is the acoustic scale of a search: the next search is made at the scale of the best point, until
    that search has already been made. In the end, points count only if they were searched at their
    own scale.

    Args:
      axes: the grid to begin with; it contains the point of `keep`.
      count_errors: called with the scale of the search and the points that are new there.
      tie_break: see `TieBreak`; on a set with few errors, ties would otherwise draw the weights to
        one side of the grid.
      first_search: the acoustic scale of the first search; None: every count is exact.
      keep: see `choose`.
      max_searches: maximum number of calls of `count_errors`.
      max_extensions: maximum number of extensions of each side.
    """
    grid = tuple(axes)
    counts: dict[tuple[float | None, Point], ErrorCount] = {}
    grid_of: dict[float | None, tuple[Axis, ...]] = {}
    extensions: Counter[str] = Counter()
    scale = first_search
    for _ in range(max_searches):
        # Points that were counted in an earlier search at this scale are not counted again.
        points = list(product(*(axis.values for axis in grid)))
        new = [point for point in points if (scale, point) not in counts]
        for point, count in zip(new, count_errors(scale, new), strict=True):
            counts[scale, point] = count
        grid_of[scale] = grid
        # The best point in this search's lattices: only a guess if its scale is another one.
        counted = {point: counts[scale, point] for point in points}
        best = _best(counted, tie_break, scale, keep)
        if scale is not None:
            logger.info(
                "search at an acoustic scale of %g: %.2f %% WER with the chosen weights, %s",
                *(scale, counted[best].percent),
                ", ".join(f"{axis.name} {x:g}" for axis, x in zip(grid, best, strict=True)),
            )
        # Extend the grid on each side where the best point lies.
        for number, (axis, value) in enumerate(zip(grid, best, strict=True)):
            side = axis.edge(value)
            if side is not None and extensions[side] < max_extensions:
                extensions[side] += 1
                grid = (*grid[:number], axis.extended(value), *grid[number + 1 :])
        # Search next at the best point's scale, until that search has been made with this grid.
        scale = None if first_search is None else best[0]
        if grid_of.get(scale) == grid:
            break
    tried = {point: (at, count) for (at, point), count in counts.items()}
    # In the end, points count only if they were searched at their own scale.
    exact = {(at, p): count for (at, p), count in counts.items() if at is None or at == p[0]}
    best = _best({p: count for (_, p), count in exact.items()}, tie_break, first_search, keep)
    tried |= {point: (at, count) for (at, point), count in exact.items()}
    edges = (axis.edge(value) for axis, value in zip(grid, best, strict=True))
    at_edge = [side for side in edges if side is not None]
    return Tuning(best, grid_of[None if first_search is None else best[0]], at_edge, tried)


def _best(
    counts: Mapping[Point, ErrorCount], tie_break: TieBreak, scale: float | None, keep: Keep | None
) -> Point:
    """Return the point with the fewest errors, or the kept point; see `choose`."""
    return choose(counts, lambda point: tie_break(point, scale), keep)


def write_grid(
    columns: Sequence[str],
    rows: Iterable[tuple[Sequence[float | str], ErrorCount, float | None]],
    path: Path,
) -> None:
    """Write all weights that were tried, with their errors, as a table.

    Args:
      columns: names of the weights.
      rows: weights, their errors, and the acoustic scale of the search; None leaves the scale out.
      path: the table to write.
    """
    lines, has_scale = [], False
    for weights, count, scale in rows:
        columns_of_weights = [w if isinstance(w, str) else f"{w:g}" for w in weights]
        fields = [*columns_of_weights, f"{count.errors}", f"{count.words}", f"{count.percent:.2f}"]
        has_scale = scale is not None
        lines.append("\t".join([*fields, f"{scale:g}"] if has_scale else fields))
    names = [*columns, "errors", "words", "wer", *(["search_scale"] if has_scale else [])]
    write_atomically(path, "\n".join(["\t".join(names), *lines]) + "\n")


def write_tuning(tuning: Tuning, columns: Sequence[str], out: Path) -> None:
    """Write `grid.tsv` (all weights tried) and `tuned.json` (the chosen weights by name)."""
    rows = ((point, count, scale) for point, (scale, count) in sorted(tuning.tried.items()))
    write_grid(columns, rows, out / "grid.tsv")
    chosen = dict(zip(columns, tuning.best, strict=True))
    write_atomically(out / "tuned.json", json.dumps(chosen, indent=1))
