"""The seam between the training loop and data-parallel training."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from toolkit.parallel.batch import DataSource

logger = logging.getLogger(__name__)
OF_SEVERAL = {
    "bmuf": "the block momentum",
    "residual": "the gradients that were not sent yet",
    "accumulator": "the state of the optimizer at worker 0",
}
"""What methods keep in checkpoints under these names, that one process has no use for."""


class Strategy(Protocol):
    """What a method of data-parallel training decides; the loop calls these and nothing else.

    Every rank runs the same loop over its part of the same batches, with the same number of steps.
    All ranks call the methods in the same order; those marked (all) wait for the other ranks.
    """

    def part(self) -> tuple[int, int]:
        """Return (rank, number of ranks): this rank trains on every batch i % ranks == rank."""

    def share(self, data: "DataSource") -> "DataSource":
        """Return where this rank's batches come from (all), if ranks may take unequal steps."""

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Begin a training (all), with no memory of an earlier one.

        Rank 0's weights go to all ranks. The model and the optimizer are those that the other
        methods work on.
        """

    def stop(self, failed: bool = False) -> None:
        """End the training; what runs in the background ends.

        Args:
          failed: after an exception. The others may have none, so nobody is waited for: they are
            told when the exception has come to its end.
        """

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """Leave in every parameter's `grad` the gradient that the optimizer shall use.

        Args:
          loss: this rank's loss, summed over its batch.
          weight: what to divide it by, such as the batch's frames; a scalar without gradient.
        """

    def after_step(self) -> None:
        """Change the weights, or the optimizer's state, after the optimizer's step."""

    def end_epoch(self) -> None:
        """Finish what is under way (all), for instance a block that an epoch's end cuts short."""

    def consensus(self) -> Any:
        """Give a context (all) in which the model is the one that all ranks have trained.

        It is the same on every rank, to be validated and stored; afterwards the rank's own weights
        are back.
        """

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add up scalars of the same names over all ranks (all)."""

    def agree(self, due: bool) -> bool:
        """Say whether to store a checkpoint after this step, the same on every rank.

        Args:
          due: whether it is time; rank 0's counts.
        """

    def storable(self) -> bool:
        """Say whether the training can be stored at its present place, the same on every rank."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of the method, the same on every rank (all).

        Tensors, numbers, strings, lists and dicts.
        """

    def own_state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank alone; empty where ranks are alike.

        The checkpoint holds rank 0's model and optimizer. A method whose ranks differ in weights
        or in the optimizer's state returns this rank's here.
        """

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """Go on from a checkpoint (all), after `start`; model and optimizer have taken theirs.

        Args:
          state: what `state` returned; empty when one process made the checkpoint, which the
            method goes on from as it begins a training.
          own: with as many ranks as the checkpoint's, what this rank's `own_state` returned. With
            another number, what those of its ranks i returned for which i % ranks == rank: one,
            several or none. What was empty is left out.
        """

    def report(self) -> dict[str, float]:
        """Return numbers for the epoch's record, such as the bytes sent."""

    def barrier(self) -> None:
        """Wait until every rank is here (all)."""


class SingleProcess:
    """Plain training in one process: nothing is exchanged."""

    def __init__(self) -> None:
        self.model: nn.Module
        self.optimizer: Optimizer

    def part(self) -> tuple[int, int]:
        """All the data is this process's."""
        return 0, 1

    def share(self, data: "DataSource") -> "DataSource":
        """Every rank has its part."""
        return data

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Keep both at hand for derived methods."""
        self.model, self.optimizer = model, optimizer

    def stop(self, failed: bool = False) -> None:
        """Nothing runs."""

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """Compute the gradients of the mean loss."""
        (loss / weight).backward()

    def after_step(self) -> None:
        """Weights stay as the optimizer leaves them."""

    def end_epoch(self) -> None:
        """Nothing is under way."""

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """The model is as it is."""
        yield

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sums are all there is."""
        return dict(sums)

    def agree(self, due: bool) -> bool:
        """Any step will do."""
        return due

    def storable(self) -> bool:
        """It is always."""
        return True

    def state(self) -> dict[str, Any]:
        """There is nothing to keep."""
        return {}

    def own_state(self) -> dict[str, Any]:
        """There is nothing to keep."""
        return {}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """There is nothing to restore; what several workers had beside the weights is dropped."""
        held = state.keys() | {name for part in own for name in part}
        for name in sorted(held & OF_SEVERAL.keys()):
            logger.warning("going on in one process, without %s", OF_SEVERAL[name])

    def report(self) -> dict[str, float]:
        """There is nothing to tell."""
        return {}

    def barrier(self) -> None:
        """There is nobody to wait for."""
