"""The interface between the training loop and the methods of data-parallel training."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.config import ParallelConfig, ParallelError
from toolkit.processes import ranks

logger = logging.getLogger(__name__)
CLASSES = {
    "ssgd": "toolkit.parallel.ssgd:Ssgd",
    "scpsgd": "toolkit.parallel.ssgd:Scpsgd",
    "gtc": "toolkit.parallel.gtc:Gtc",
    "bmuf": "toolkit.parallel.bmuf:Bmuf",
    "asgd": "toolkit.parallel.asgd:Asgd",
    "adpsgd": "toolkit.parallel.adpsgd:Adpsgd",
    "hadpsgd": "toolkit.parallel.adpsgd:HierarchicalAdpsgd",
}
"""Method -> "module:class"; the class is constructed with (config, workers)."""
DROPPED = {
    "bmuf": "the block momentum",
    "residual": "the gradients that were not sent yet",
    "accumulator": "the state of the optimizer at worker 0",
}
"""Keys of the methods' checkpoint state that a single process drops -> what they hold."""
CHECKPOINT = object()
"""Yielded by `Strategy.batches` in place of a batch, on all ranks: save a checkpoint now."""

Prefetch = Callable[[Iterable[Any]], Iterator[Any]]
"""Yields the items of an iterable in their order, and computes them before they are needed."""


class BatchSource(Protocol):
    """Training batches, in an order that is a pure function of (seed, epoch, world size)."""

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Count the batches of each rank in an epoch (from 0)."""

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Any]:
        """Yield the batches of a rank from its step `start` on; earlier ones are not computed.

        Step s of rank r is batch s * world_size + r of the epoch's order.
        """


class Strategy:
    """A method of data-parallel training, as the training loop calls it; here a single process.

    Every rank runs the same loop over its part of the same batches. All ranks call the methods in
    the same order. Methods marked "(collective)" wait for the other ranks.
    """

    rank = 0
    """Rank of this process."""
    world_size = 1
    """Number of ranks."""
    applies_constraints = False
    """Whether the method itself keeps matrices semi-orthogonal; if not, the training loop does."""

    def __init__(self) -> None:
        self.model: nn.Module
        self.optimizer: Optimizer

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Begin a training run, with no state of an earlier one (collective).

        Rank 0's weights are broadcast. The other methods work on this model and optimizer.
        """
        self.model, self.optimizer = model, optimizer

    def stop(self, failed: bool = False) -> None:
        """End the training and all background work.

        Args:
          failed: whether this rank raised an exception. It then does not wait for the others, which
            may have had none; they are notified when the process exits.
        """

    def batches(
        self,
        data: BatchSource,
        epoch: int,
        start: int,
        prefetch: Prefetch,
        may_share: bool = True,
    ) -> Iterator[Any]:
        """Yield this rank's batches of an epoch, loaded ahead.

        Asynchronous methods let fast ranks take the batches of slow ones. They yield `CHECKPOINT`
        on all ranks, in place of a batch, where a checkpoint is to be written.

        Args:
          data: the batches of all ranks.
          epoch: counted from 0.
          start: steps of the epoch that were taken before a resumption.
          prefetch: loads batches ahead.
          may_share: whether ranks may take different numbers of steps.
        """
        return prefetch(data.batches(epoch, start, self.rank, self.world_size))

    def position(self, step: int) -> int:
        """Return the position in the epoch, in steps, after `step` steps of this rank.

        If ranks take different numbers of steps, the position is their mean, the same on all ranks
        at a checkpoint and at the end of an epoch. The learning rate follows the position.
        """
        return step

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """Compute the gradients, and leave in every `grad` the gradient for the optimizer.

        Args:
          loss: this rank's loss, summed over its batch.
          weight: divisor of the loss, such as the batch's frames; a scalar without gradient. With
            `accumulated`, the sum for all batches of the step.
          accumulated: every `grad` holds the gradient of the summed losses of earlier batches.
        """
        # grad = (sum of the earlier batches' gradients + gradient of this loss) / weight
        if accumulated:
            self.divide_gradients(weight)
        (loss / weight).backward()

    def divide_gradients(self, weight: Tensor) -> None:
        """Divide the gradients that were accumulated by a scalar."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= weight

    def after_step(self) -> None:
        """Change the weights, or the optimizer's state, after the optimizer's step."""

    def end_epoch(self) -> None:
        """Finish what is in progress, such as a block that the epoch cuts short (collective)."""

    def consensus(self) -> AbstractContextManager[None]:
        """Return a context in which the model holds all ranks' consensus weights (collective).

        These are the same on every rank, and are validated and stored. Afterwards the rank's own
        weights are restored.
        """
        return nullcontext()

    def sum_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum scalars by name over all ranks (collective)."""
        return dict(sums)

    def agree_on_checkpoint(self, due: bool) -> bool:
        """Decide whether to write a checkpoint after this step; return the same on every rank.

        Args:
          due: whether a checkpoint is due by this rank's clock; rank 0's value decides.
        """
        return due

    def can_checkpoint(self) -> bool:
        """Return whether a checkpoint can be written now; the same on every rank."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the method's state for a checkpoint, the same on every rank (collective).

        It is made of tensors, numbers, strings, lists and dicts.
        """
        return {}

    def rank_state_dict(self) -> dict[str, Any]:
        """Return this rank's own state for a checkpoint; empty where all ranks are equal.

        The checkpoint holds rank 0's model and optimizer. A method whose ranks differ in weights
        or optimizer state returns this rank's here.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Restore a checkpoint, after `start`; model and optimizer are restored (collective).

        A single process warns, and drops what several workers have stored beyond the weights.

        Args:
          state: what `state_dict` returned; empty if a single process wrote the checkpoint: then
            the method starts from the restored weights as in a new training run.
          rank_states: if the world size is the checkpoint's, what this rank's `rank_state_dict`
            returned. If not, the states of the checkpoint's ranks i with i % world_size == rank:
            one, several or none. Empty states are left out.
        """
        names = state.keys() | {name for rank_state in rank_states for name in rank_state}
        for name in sorted(names & DROPPED.keys()):
            logger.warning("the training continues in one process and drops %s", DROPPED[name])

    def report(self) -> dict[str, float]:
        """Return statistics for the epoch's record, such as the bytes sent."""
        return {}

    def barrier(self) -> None:
        """Wait until every rank has arrived (collective)."""


def make_strategy(config: ParallelConfig, device: torch.device | str = "cpu") -> Strategy:
    """Construct the strategy of a method; a single process ignores the method.

    Args:
      config: the method and its parameters.
      device: where the model is trained, "cpu" (gloo) or "cuda" (nccl); each process has a GPU of
        its own.

    Raises:
      ParallelError: torchrun started several processes, but the method is "single".
    """
    if ranks.world_size() == 1:
        return Strategy()
    if config.method == "single":
        raise ParallelError(
            f"torchrun started {ranks.world_size()} processes, but `parallel.method` is single. "
            "Choose a method for several processes with --set SECTION.parallel.method=gtc (or "
            "bmuf, ssgd, ...), or start the training without torchrun. SECTION is the section "
            "with the settings of this training, such as ce, baseline, sequence or student"
        )
    # A single process imports neither torch.distributed nor the method.
    workers = import_module("toolkit.parallel.workers").Workers(str(device), config.timeout)
    module, name = CLASSES[config.method].split(":")
    return getattr(import_module(module), name)(config, workers)
