"""Learning rates as pure functions of the step."""

from collections.abc import Callable, Sequence

Schedule = Callable[[int, int, Sequence[int]], float]
"""Called as schedule(epoch from 0, step in the epoch from 0, steps of every epoch)."""


def exponential_rate(step: int, total: int, initial: float, final: float, warmup: int = 0) -> float:
    """Return the learning rate of a step: linear warm-up, then exponential decay (C7).

    Args:
      step: counted from 0.
      total: steps of the whole training, warm-up included.
      initial: rate at the end of the warm-up (at step 0 without one).
      final: rate of the last step.
      warmup: steps of linear warm-up to `initial`, all of them above 0.
    """
    if step < warmup:
        return initial * (step + 1) / (warmup + 1)
    decaying = max(1, total - warmup - 1)
    return initial * (final / initial) ** min(1.0, (step - warmup) / decaying)


def decaying(initial: float, final: float, warmup: int) -> Schedule:
    """Return the schedule of `exponential_rate` from the first step of a training to its last."""

    def rate(epoch: int, step: int, steps: Sequence[int]) -> float:
        return exponential_rate(sum(steps[:epoch]) + step, sum(steps), initial, final, warmup)

    return rate
