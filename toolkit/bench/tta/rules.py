"""Time to accuracy by the rules of the co-processor paper, DAWNBench and MLPerf (A26, A40)."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_RUNS = 3
"""Runs that MLPerf's rule needs: the best and the worst are left out."""


@dataclass(frozen=True)
class TtaConfig:
    """The accuracies whose times are asked for."""

    cer: tuple[float, ...] = (10.0, 8.0, 7.0)
    """Character error rates in percent, the easiest first (A26)."""
    wer: tuple[float, ...] = (22.0, 20.2, 19.2)
    """Word error rates in percent (A26; 22, 20 and 19 in the equal-batch study, A34)."""
    epochs: int = 3
    """e: epochs whose median must reach the accuracy, so that it lasts (A26: 3)."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}, needs to be at least 1")
        for name in ("cer", "wer"):
            if any(not 0 <= target < math.inf for target in getattr(self, name)):
                raise ValueError(f"{name} has a target that is not an error rate in percent")

    @property
    def targets(self) -> list[tuple[str, float]]:
        """(metric, target) in the order of the tables."""
        return [(metric, a) for metric in ("cer", "wer") for a in getattr(self, metric)]


def time_to_accuracy(
    seconds: Sequence[float], rates: Sequence[float], target: float, epochs: int = 3
) -> float | None:
    """TTA(a, e): when the median of the last e epochs' error rates first is `target` or less (A26).

    Before e epochs have been evaluated nothing is reached, even by the best of models.

    Args:
      seconds: when each epoch's rate was known, since the model's creation.
      rates: error rate of each epoch.
      target: a.
      epochs: e.

    Returns:
      Seconds, None when it never was reached (NA in the paper).
    """
    for end in range(epochs, len(rates) + 1):
        if statistics.median(rates[end - epochs : end]) <= target:
            return seconds[end - 1]
    return None


def first_epoch(seconds: Sequence[float], rates: Sequence[float], target: float) -> float | None:
    """DAWNBench's rule: when an epoch's error rate first is `target` or less; None if never."""
    return time_to_accuracy(seconds, rates, target, epochs=1)


def mlperf(times: Sequence[float | None]) -> float | None:
    """MLPerf's rule: the mean over runs, the best and the worst left out.

    Args:
      times: by `first_epoch`, of runs that differ in their seeds alone. None is a run that did not
        reach the target; one such may be the worst.

    Returns:
      None with fewer than three runs, or when more than one did not reach the target.
    """
    if len(times) < FEWEST_RUNS:
        return None
    kept = sorted(math.inf if time is None else time for time in times)[1:-1]
    mean = statistics.fmean(kept)
    return mean if math.isfinite(mean) else None


def typical(times: Sequence[float | None]) -> float | None:
    """The median over runs, one that never reached the target counting as endless; None if it is.

    Of an even number the later of the two in the middle.
    """
    if not times:
        return None
    middle = statistics.median_high(math.inf if time is None else time for time in times)
    return middle if math.isfinite(middle) else None
