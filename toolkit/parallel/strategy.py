"""The interface between the training loop and the methods of data-parallel training."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from toolkit.parallel.batch import BatchesAhead, DataSource

logger = logging.getLogger(__name__)
DROPPED = {
    "bmuf": "the block momentum",
    "residual": "the gradients that were not sent yet",
    "accumulator": "the state of the optimizer at worker 0",
}
"""Keys of the methods' checkpoint state that a single process drops -> what they hold."""


class Strategy(Protocol):
    """A method of data-parallel training, as the training loop calls it.

    Every rank runs the same loop over its part of the same batches, with the same number of steps.
    All ranks call the methods in the same order; those marked (all) are collective: they wait for
    the other ranks.
    """

    constrains: bool
    """Whether the method itself keeps semi-orthogonal matrices so; else the loop does."""

    def rank_and_world_size(self) -> tuple[int, int]:
        """Return (rank, world size): this rank trains on the batches i % world_size == rank."""

    def share_batches(self, data: "BatchesAhead") -> "DataSource":
        """Return this rank's data source (all); ranks may share batches if steps may be unequal.

        Such a source yields `toolkit.parallel.batch.MEETING` on all ranks, in place of a batch,
        where a checkpoint is to be written.
        """

    def position(self, step: int) -> int:
        """Return the position in the epoch, in steps, from this rank's number of steps.

        Where steps are unequal it is their mean over the ranks, the same on all of them at a
        meeting and at the end of an epoch; the learning rate follows it.
        """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Begin a training (all), with no state of an earlier one.

        Rank 0's weights are broadcast. The other methods work on this model and optimizer.
        """

    def stop(self, failed: bool = False) -> None:
        """End the training and all background work.

        Args:
          failed: called after an exception. Other ranks may have none, so this one does not wait
            for them; they are notified when the process exits.
        """

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """Compute the gradients and leave in every `grad` the one that the optimizer shall use.

        Args:
          loss: this rank's loss, summed over its batch.
          weight: divisor of the loss, such as the batch's frames; a scalar without gradient.
        """

    def after_step(self) -> None:
        """Change the weights, or the optimizer's state, after the optimizer's step."""

    def end_epoch(self) -> None:
        """Finish what is in progress (all), such as a block that the epoch's end cuts short."""

    def consensus(self) -> Any:
        """Return a context (all) in which the model holds the consensus weights of all ranks.

        These are the same on every rank, and are validated and stored; afterwards the rank's own
        weights are restored.
        """

    def sum_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum scalars by name over all ranks (all)."""

    def agree_on_checkpoint(self, due: bool) -> bool:
        """Decide whether to write a checkpoint after this step; the same on every rank.

        Args:
          due: whether a checkpoint is due by this rank's clock; rank 0's value decides.
        """

    def can_checkpoint(self) -> bool:
        """Return whether a checkpoint can be written now; the same on every rank."""

    def state(self) -> dict[str, Any]:
        """Return the method's state for a checkpoint, the same on every rank (all).

        Made of tensors, numbers, strings, lists and dicts.
        """

    def rank_state(self) -> dict[str, Any]:
        """Return this rank's own state for a checkpoint; empty where all ranks are equal.

        The checkpoint holds rank 0's model and optimizer. A method whose ranks differ in weights
        or optimizer state returns this rank's here.
        """

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """Restore a checkpoint (all), after `start`; model and optimizer are restored already.

        Args:
          state: what `state` returned; empty if the checkpoint was written by a single process,
            from whose weights the method starts as in a new training.
          own: with the checkpoint's world size, what this rank's `rank_state` returned. With
            another one, the states of its ranks i with i % world_size == rank: one, several or
            none. Empty states are left out.
        """

    def report(self) -> dict[str, float]:
        """Return statistics for the epoch's record, such as the bytes sent."""

    def barrier(self) -> None:
        """Wait until every rank has arrived (all)."""


class SingleProcess:
    """Training in a single process, without communication."""

    constrains = False

    def __init__(self) -> None:
        self.model: nn.Module
        self.optimizer: Optimizer

    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank 0 of one."""
        return 0, 1

    def share_batches(self, data: "BatchesAhead") -> "DataSource":
        """Use the data source as it is."""
        return data

    def position(self, step: int) -> int:
        """All ranks take the same steps."""
        return step

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Store both for derived classes."""
        self.model, self.optimizer = model, optimizer

    def stop(self, failed: bool = False) -> None:
        """Nothing runs in the background."""

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """Compute the gradients of the mean loss."""
        (loss / weight).backward()

    def after_step(self) -> None:
        """Weights stay as the optimizer leaves them."""

    def end_epoch(self) -> None:
        """Nothing is in progress."""

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """The model itself."""
        yield

    def sum_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sums of this process are those of all."""
        return dict(sums)

    def agree_on_checkpoint(self, due: bool) -> bool:
        """A checkpoint can follow any step."""
        return due

    def can_checkpoint(self) -> bool:
        """Always."""
        return True

    def state(self) -> dict[str, Any]:
        """No state."""
        return {}

    def rank_state(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """Nothing to restore; the state of several workers, beyond the weights, is dropped."""
        held = state.keys() | {name for part in own for name in part}
        for name in sorted(held & DROPPED.keys()):
            logger.warning("continuing in one process, without %s", DROPPED[name])

    def report(self) -> dict[str, float]:
        """No statistics."""
        return {}

    def barrier(self) -> None:
        """There are no other ranks."""
