"""Base class of the asynchronous methods: workers wait for each other at checkpoints alone."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.point_to_point import PointToPoint
from toolkit.parallel.process_group import Workers
from toolkit.parallel.shared_batches import Node, SharedBatches
from toolkit.parallel.strategy import BatchSource, Prefetch


class Asynchronous(Distributed):
    """A strategy whose workers take their steps without waiting for each other.

    Workers take batches at their own pace (`SharedBatches`). For a checkpoint within an epoch each
    comes to the end of its step and waits for the others, so that no weights are in transit. The
    checkpoint holds every worker's weights and the remaining steps of the epoch. Where something
    else needs equal numbers of steps, batches are not shared, and checkpoints are written between
    epochs alone. From the end of an epoch to the next step all workers have the same weights. Since
    no worker waits for one that hangs, hangs are detected by counting steps.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._exchange: PointToPoint | None = None
        self._batches: SharedBatches | None = None
        self._left_over: list[dict[str, Any]] | None = None  # of an epoch that is to go on

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._in_sync = True
        self._batches = self._left_over = None

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        self.workers.leave_steps()

    def node(self) -> Node:
        """Return this worker's node, whose workers keep in step; here each worker is one."""
        return Node(self.workers.rank, self.workers.world_size)

    def batches(
        self,
        data: BatchSource,
        epoch: int,
        start: int,
        prefetch: Prefetch,
        may_share: bool = True,
    ) -> Iterator[Any]:
        """See `Strategy`: every node takes batches at its own pace."""
        if not may_share:
            return super().batches(data, epoch, start, prefetch, may_share)
        if self._batches is None:
            self._batches = SharedBatches(
                self.workers, self.node(), self.wait_for_checkpoint, self._left_over
            )
        return self._batches.batches(data, epoch, start, prefetch)

    def position(self, step: int) -> int:
        """See `Strategy`: the mean over the nodes, where they share batches."""
        shared = None if self._batches is None else self._batches.position
        return step if shared is None else shared

    def wait_for_checkpoint(self) -> None:
        """Wait for all workers to come to the end of their steps (all), for a checkpoint."""
        self.workers.end_steps()
        self._in_sync = True

    def after_step(self) -> None:
        """Count the step; from here on the workers' weights differ."""
        super().after_step()
        self._in_sync = False
        self.workers.step_taken()

    def end_epoch(self) -> None:
        """Wait for all workers, however slow; derived methods then equalise the weights."""
        super().end_epoch()
        self.workers.end_steps()
        self._in_sync = True
        if self._batches is not None:
            self._batches.position = None

    def agree_on_checkpoint(self, due: bool) -> bool:
        """See `Strategy`: not after this step; one that is due on rank 0 makes all ranks stop."""
        if due and self.workers.rank == 0 and self._batches is not None:
            self._batches.request_checkpoint()
        return False

    def can_checkpoint(self) -> bool:
        """See `Strategy`: when all ranks wait, and from the end of an epoch to the next step."""
        return self._in_sync

    def sent(self) -> float:
        """Count the bytes that this worker has sent."""
        return self.workers.sent + (0 if self._exchange is None else self._exchange.sent)

    def report(self) -> dict[str, float]:
        """See `Strategy`; of this worker alone, as workers take different numbers of steps."""
        return {"bytes_per_step": self.sent() / max(1, self.steps)}

    def state_dict(self) -> dict[str, Any]:
        """See `Strategy`; within an epoch with what is left of it, by node."""
        within = self._batches is not None and self._batches.position is not None
        left = {"left": self._batches.remaining()} if within else {}
        return super().state_dict() | left

    def rank_state_dict(self) -> dict[str, Any]:
        """See `Strategy`: this worker's counts of steps and bytes."""
        exchanged = 0 if self._exchange is None else self._exchange.sent
        counts = {"steps": self.steps, "sent": self.workers.sent, "exchanged": exchanged}
        return super().rank_state_dict() | {"counts": counts}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; additional workers take over the counts of worker 0.

        With another number of nodes all parts go on from the mean position.
        """
        super().load_state_dict(state, rank_states)
        if rank_states:
            counts = rank_states[0]["counts"]
            self.steps, self.workers.sent = counts["steps"], counts["sent"]
            if self._exchange is not None:
                self._exchange.sent = counts["exchanged"]
        self._in_sync = True
        left = state.get("left")
        if left is not None and not self.world_size_changed(state):
            self._left_over = left if len(left) == self.node().count else None
