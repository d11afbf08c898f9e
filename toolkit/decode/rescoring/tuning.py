"""Tuning of the neural model's weight, together with acoustic scale and word penalty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.decode.rescoring.rescorer import RescoringWeights
from toolkit.decode.tuning import Count, Grid, Tuning, Untuned, tune

Counted = Callable[[float, float, Grid], Sequence[Count]]
"""(weight of the neural model, acoustic scale of the search, grid) -> the count of each pair."""


@dataclass(frozen=True)
class RescoringTuning:
    """The weights chosen, and what was tried."""

    best: RescoringWeights
    """Fewest errors."""
    tried: dict[float, Tuning]
    """By weight of the neural model."""


def tune_rescoring(
    counted: Counted,
    neural: Sequence[float],
    start: float,
    grid: Grid,
    untuned: Untuned | None = None,
) -> RescoringTuning:
    """Tune scale and penalty for each weight of the neural model, see `toolkit.decode.tuning.tune`.

    The weight with the fewest errors is taken, of equals the smallest: the neural model counts as
    much as it helps.

    Args:
      counted: searches at an acoustic scale, rescores, and counts errors.
      neural: weights to try, 0 to 1.
      start: the acoustic scale of the first search.
      grid: scales and penalties to begin with.
      untuned: see `toolkit.decode.tuning.tune`.
    """
    tried = {}
    for weight in sorted(set(neural)):

        def at_weight(scale: float, pairs: Grid, weight: float = weight) -> Sequence[Count]:
            return counted(weight, scale, pairs)

        tried[weight] = tune(at_weight, start, grid, untuned)
    chosen = min(tried, key=lambda w: (tried[w].tried[tried[w].best][1].errors, w))
    return RescoringTuning(RescoringWeights.of(chosen, tried[chosen].best), tried)
