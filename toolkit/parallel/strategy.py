"""The seam between the training loop and data-parallel training."""

from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


class Strategy(Protocol):
    """What a method of data-parallel training decides; the loop calls these and nothing else.

    Every rank runs the same loop over its part of the same batches, with the same number of steps.
    """

    def part(self) -> tuple[int, int]:
        """Return (rank, number of ranks): this rank trains on every batch i % ranks == rank."""

    def after_backward(self, model: nn.Module) -> None:
        """Change the gradients, which are those of this rank's mean loss, before clipping."""

    def after_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Change the weights (or the optimizer's state) after the optimizer's step."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: tensors, numbers, strings, lists and dicts."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""


class SingleProcess:
    """Plain training in one process: nothing is exchanged."""

    def part(self) -> tuple[int, int]:
        """All the data is this process's."""
        return 0, 1

    def after_backward(self, model: nn.Module) -> None:
        """Gradients are used as they are."""

    def after_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Weights stay as the optimizer leaves them."""

    def state(self) -> dict[str, Any]:
        """There is nothing to keep."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """There is nothing to restore."""
