"""What the asynchronous methods have in common: workers are at one place between epochs alone."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.exchange import Exchange
from toolkit.parallel.launch import Workers


class Asynchronous(Distributed):
    """A strategy whose workers take their steps without waiting for each other.

    Between the ends of epochs nothing can be stored: no two workers need be at the same step, and
    weights are on their way from one to another. From the end of an epoch to the next step all
    have the same weights. Since nobody waits for a worker that hangs, the steps are counted.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._exchange: Exchange | None = None

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._settled = True

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        self.workers.leave_steps()

    def after_step(self) -> None:
        """Count the step; from now on workers differ."""
        super().after_step()
        self._settled = False
        self.workers.step_taken()

    def end_epoch(self) -> None:
        """Wait for all workers, however slow; methods go on from here to the same weights."""
        super().end_epoch()
        self.workers.end_steps()
        self._settled = True

    def agree(self, due: bool) -> bool:
        """See `Strategy`: never, since no two workers need be at the same step."""
        return False

    def storable(self) -> bool:
        """See `Strategy`: from the end of an epoch to the next step."""
        return self._settled

    def sent(self) -> float:
        """Count the bytes that this worker has sent."""
        return self.workers.sent + (0 if self._exchange is None else self._exchange.sent)

    def report(self) -> dict[str, float]:
        """See `Strategy`; of this worker, which may have taken more steps than others."""
        return {"bytes_per_step": self.sent() / max(1, self.steps)}

    def own_state(self) -> dict[str, Any]:
        """See `Strategy`: what was counted at this worker."""
        exchanged = 0 if self._exchange is None else self._exchange.sent
        counts = {"steps": self.steps, "sent": self.workers.sent, "exchanged": exchanged}
        return super().own_state() | {"counts": counts}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; new workers count their steps like worker 0."""
        super().load_state(state, own)
        if own:
            counts = own[0]["counts"]
            self.steps, self.workers.sent = counts["steps"], counts["sent"]
            if self._exchange is not None:
                self._exchange.sent = counts["exchanged"]
        self._settled = True
