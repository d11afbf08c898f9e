"""Observers: hooks of the training loop for checkpoints, validation and logging."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.train.batches import Batch


class Training(Protocol):
    """The interface of `toolkit.train.loop.Trainer` that observers use."""

    history: list[dict[str, float]]
    """A record per finished epoch."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""

    @property
    def device(self) -> torch.device:
        """The device of the model."""

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 1."""

    def steps_done(self) -> int:
        """Return the number of steps taken, over all epochs."""

    def evaluate(self) -> dict[str, float]:
        """Average the objective over the held-out batches."""

    def can_checkpoint(self) -> bool:
        """Whether `checkpoint` can write a checkpoint now."""

    def checkpoint(self) -> None:
        """Write a checkpoint, if `can_checkpoint`."""


class Observer(Protocol):
    """Hooks that the training loop calls, on every rank in the same order."""

    def begin(self, trainer: Training) -> None:
        """Training begins or resumes; in the latter case `load_state_dict` was called before."""

    def after_step(
        self, trainer: Training, batch: Any, stats: dict[str, Tensor], overdue: bool
    ) -> None:
        """A step has been taken; the hook must leave the model in training mode.

        Args:
          trainer: can be asked to write a checkpoint, if `can_checkpoint`.
          batch: the batch of the step, not moved to the device.
          stats: the objective's stats and `loss`; scalars on the device.
          overdue: the last checkpoint is `checkpoint_seconds` old; the same on every rank.
        """

    def after_epoch(self, trainer: Training) -> None:
        """All steps of an epoch have been taken, before its validation."""

    def validate(self, trainer: Training) -> dict[str, float]:
        """Evaluate the model after an epoch; weights are selected by `accuracy`, or minus `loss`.

        A result that is not available yet may be left out and added to `trainer.history` later,
        before `end`; at most one epoch may be pending.
        """

    def measure(self, trainer: Training) -> dict[str, float]:
        """Evaluate the model now; the result is comparable with that of `validate`."""

    def end(self, trainer: Training) -> None:
        """The last epoch is finished; the weights are selected next."""

    def stop(self) -> None:
        """Training has ended, successfully or not."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class DefaultObserver:
    """Checkpoints at intervals of time; validates with the objective after every epoch."""

    def begin(self, trainer: Training) -> None:
        """Nothing to prepare."""

    def after_step(
        self, trainer: Training, batch: Batch, stats: dict[str, Tensor], overdue: bool
    ) -> None:
        """Write a checkpoint that is overdue."""
        if overdue:
            trainer.checkpoint()

    def after_epoch(self, trainer: Training) -> None:
        """Nothing: the loop writes a checkpoint after validation."""

    def validate(self, trainer: Training) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        return trainer.evaluate()

    def measure(self, trainer: Training) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        return trainer.evaluate()

    def end(self, trainer: Training) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to stop."""

    def state_dict(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """No state to restore."""
