"""Base class of the asynchronous methods: workers are in sync only between epochs."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.point_to_point import PointToPoint
from toolkit.parallel.process_group import Workers


class Asynchronous(Distributed):
    """A strategy whose workers take their steps without waiting for each other.

    Within an epoch no checkpoint can be written: workers may be at different steps, and weights
    are in transit between them. From the end of an epoch to the next step all workers have the
    same weights. Since no worker waits for one that hangs, hangs are detected by counting steps.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._exchange: PointToPoint | None = None

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._in_sync = True

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        self.workers.leave_steps()

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

    def agree_on_checkpoint(self, due: bool) -> bool:
        """See `Strategy`: never, since workers may be at different steps."""
        return False

    def can_checkpoint(self) -> bool:
        """See `Strategy`: only from the end of an epoch to the next step."""
        return self._in_sync

    def sent(self) -> float:
        """Count the bytes that this worker has sent."""
        return self.workers.sent + (0 if self._exchange is None else self._exchange.sent)

    def report(self) -> dict[str, float]:
        """See `Strategy`; of this worker alone, as workers take different numbers of steps."""
        return {"bytes_per_step": self.sent() / max(1, self.steps)}

    def rank_state(self) -> dict[str, Any]:
        """See `Strategy`: this worker's counts of steps and bytes."""
        exchanged = 0 if self._exchange is None else self._exchange.sent
        counts = {"steps": self.steps, "sent": self.workers.sent, "exchanged": exchanged}
        return super().rank_state() | {"counts": counts}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; additional workers take over the counts of worker 0."""
        super().load_state(state, own)
        if own:
            counts = own[0]["counts"]
            self.steps, self.workers.sent = counts["steps"], counts["sent"]
            if self._exchange is not None:
                self._exchange.sent = counts["exchanged"]
        self._in_sync = True
