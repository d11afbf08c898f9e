"""Passes over unlabelled and labelled data in turn, and their learning rates (C12)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.parallel.batch import Batch, DataSource
from toolkit.train.schedule import exponential_rate


class Alternating:
    """A source whose epochs are passes: 2s is unlabelled sub-epoch s, 2s + 1 the labelled data.

    Args:
      unlabelled: its epoch s is sub-epoch s.
      labelled: its epoch s follows that.
    """

    def __init__(self, unlabelled: DataSource, labelled: DataSource) -> None:
        self._sources = unlabelled, labelled

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """See `DataSource`."""
        number, kind = divmod(epoch, 2)
        return self._sources[kind].steps(number, ranks)

    def batches(self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """See `DataSource`."""
        number, kind = divmod(epoch, 2)
        return self._sources[kind].batches(number, start, rank, ranks)


@dataclass(frozen=True)
class AlternatingRate:
    """Exponential decay over the steps on unlabelled data; see `toolkit.train.schedule.Schedule`.

    A pass over labelled data has a constant rate: `factor` times what the decay has come to.
    """

    initial: float
    """At the first step on unlabelled data, after the warm-up."""
    final: float
    """At the last one."""
    warmup: int
    """Steps on unlabelled data that climb to `initial`."""
    factor: float
    """Of labelled data."""

    def __call__(self, epoch: int, step: int, steps: Sequence[int]) -> float:
        """Give the rate of a step of a pass; `steps` are those of all passes."""
        number, labelled = divmod(epoch, 2)
        total = sum(steps[::2])
        done = sum(steps[: 2 * number : 2])
        if not labelled:
            return exponential_rate(done + step, total, self.initial, self.final, self.warmup)
        last = done + steps[2 * number] - 1
        return self.factor * exponential_rate(last, total, self.initial, self.final, self.warmup)
