"""What a training does beside its steps: when it stores itself, and how it is validated."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.batch import Batch


class Training(Protocol):
    """A training as an observer sees it; `toolkit.train.loop.Trainer` is one."""

    history: list[dict[str, float]]
    """A record per finished epoch."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    @property
    def optimizer(self) -> Optimizer:
        """What trains it."""

    @property
    def device(self) -> torch.device:
        """Where it is trained."""

    @property
    def epoch(self) -> int:
        """The present epoch, from 1."""

    def steps_done(self) -> int:
        """Count the steps taken, of all epochs."""

    def evaluate(self) -> dict[str, float]:
        """Average the objective over the held-out batches."""

    def storable(self) -> bool:
        """Whether `checkpoint` can store the training as it is now."""

    def checkpoint(self) -> None:
        """Store the training, if it is storable."""


class Observer(Protocol):
    """Called by the loop at its places, on every rank in the same order."""

    def begin(self, trainer: Training) -> None:
        """Training begins, or goes on from a checkpoint whose state has been loaded."""

    def after_step(
        self, trainer: Training, batch: Batch, stats: dict[str, Tensor], overdue: bool
    ) -> None:
        """A step has been taken; the model is to be left in training mode.

        Args:
          trainer: to ask for a checkpoint, among other things, where it is `storable`.
          batch: it was taken on, not moved to the device.
          stats: what the objective gave, with `loss`; scalars on the device.
          overdue: the last checkpoint is `checkpoint_seconds` old; the same on every rank.
        """

    def after_epoch(self, trainer: Training) -> None:
        """All steps of an epoch have been taken; here it can still be stored as it is."""

    def validate(self, trainer: Training) -> dict[str, float]:
        """Measure the model after an epoch; `accuracy`, or minus `loss`, chooses the weights.

        What cannot be said yet may be left out and added to `trainer.history` until `end`, as long
        as no two epochs wait for it.
        """

    def measure(self, trainer: Training) -> dict[str, float]:
        """Measure the model at once, as it is; comparable with what `validate` gives."""

    def end(self, trainer: Training) -> None:
        """The last epoch is over; the weights are about to be chosen."""

    def stop(self) -> None:
        """Training has ended, in whatever way."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""


class Epochwise:
    """Checkpoints by the clock, the objective on the held-out batches after every epoch."""

    def begin(self, trainer: Training) -> None:
        """Nothing to prepare."""

    def after_step(
        self, trainer: Training, batch: Batch, stats: dict[str, Tensor], overdue: bool
    ) -> None:
        """Store what is overdue."""
        if overdue:
            trainer.checkpoint()

    def after_epoch(self, trainer: Training) -> None:
        """The loop stores the epoch when it has been validated."""

    def validate(self, trainer: Training) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        return trainer.evaluate()

    def measure(self, trainer: Training) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        return trainer.evaluate()

    def end(self, trainer: Training) -> None:
        """Nothing is left."""

    def stop(self) -> None:
        """Nothing runs."""

    def state(self) -> dict[str, Any]:
        """There is nothing to keep."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """There is nothing to restore."""
