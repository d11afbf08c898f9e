"""Alternating passes over unlabelled and labelled data, and their learning rates (C12)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.parallel.strategy import BatchSource
from toolkit.train.batches import Batch
from toolkit.train.schedule import exponential_rate


class Alternating:
    """Data source of alternating passes: epoch 2s is unlabelled sub-epoch s, 2s + 1 labelled data.

    Args:
      unlabelled: source whose epoch s is sub-epoch s.
      labelled: source whose epoch s follows sub-epoch s.
    """

    def __init__(self, unlabelled: BatchSource, labelled: BatchSource) -> None:
        self._sources = unlabelled, labelled

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        number, kind = divmod(epoch, 2)
        return self._sources[kind].num_steps(number, world_size)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`."""
        number, kind = divmod(epoch, 2)
        return self._sources[kind].batches(number, start, rank, world_size)


@dataclass(frozen=True)
class AlternatingRate:
    """Exponential decay over the steps on unlabelled data; see `toolkit.train.schedule.Schedule`.

    A pass over labelled data has a constant rate: `factor` times that of the last unlabelled step.
    """

    initial: float
    """Learning rate of the first step on unlabelled data after the warm-up."""
    final: float
    """Learning rate of the last step on unlabelled data."""
    warmup: int
    """Warm-up steps on unlabelled data."""
    factor: float
    """Factor of the learning rate on labelled data."""

    def __call__(self, epoch: int, step: int, steps: Sequence[int]) -> float:
        """Return the learning rate of a step of a pass; `steps` are those of all passes."""
        number, labelled = divmod(epoch, 2)
        total = sum(steps[::2])
        done = sum(steps[: 2 * number : 2])
        if not labelled:
            return exponential_rate(done + step, total, self.initial, self.final, self.warmup)
        last = done + steps[2 * number] - 1
        return self.factor * exponential_rate(last, total, self.initial, self.final, self.warmup)
