"""What the methods have in common."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.errors import ToolkitError
from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.flat import Flat
from toolkit.parallel.launch import Workers
from toolkit.parallel.strategy import SingleProcess

logger = logging.getLogger(__name__)
STEPS_BETWEEN_AGREEMENTS = 10


class ReplicasDifferError(ToolkitError):
    """Workers that should hold the same weights do not."""


class Distributed(SingleProcess):
    """A strategy of several workers that all begin with rank 0's weights.

    Running averages in the model, such as those of batch normalisation, stay each rank's own;
    `consensus` has their mean.

    Args:
      config: the method's numbers.
      workers: the ranks.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__()
        self.config, self.workers = config, workers
        self.flat: Flat
        """The model's parameters."""
        self.steps = 0
        """Steps of the optimizer since the start of the training."""

    def part(self) -> tuple[int, int]:
        """See `Strategy`."""
        return self.workers.rank, self.workers.ranks

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self.flat = Flat(model.parameters())
        self.steps, self.workers.sent = 0, 0.0
        self.barrier()
        weights = self.flat.weights()
        self.workers.broadcast(weights)
        self.flat.set_weights(weights)

    def after_step(self) -> None:
        """Count the step."""
        self.steps += 1

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """See `Strategy`: the weights are the same on every rank, running averages are averaged."""
        own = [buffer.clone() for buffer in self._running()]
        for buffer in self._running():
            buffer.copy_(self.workers.add_up(buffer.clone()).wait() / self.workers.ranks)
        try:
            yield
        finally:
            for buffer, value in zip(self._running(), own, strict=True):
                buffer.copy_(value)

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Strategy`."""
        mine = {name: float(value) for name, value in sums.items()}
        whole: dict[str, float] = {}
        for part in self.workers.gather_plain(mine):
            for name, value in part.items():
                whole[name] = whole.get(name, 0.0) + value
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in whole.items()}

    def agree(self, due: bool) -> bool:
        """See `Strategy`: every tenth step is one where rank 0 decides."""
        return self.steps % STEPS_BETWEEN_AGREEMENTS == 0 and self.decided(due)

    def decided(self, due: bool) -> bool:
        """Let rank 0 decide (all)."""
        return bool(self.workers.gather_plain(due)[0])

    def state(self) -> dict[str, Any]:
        """See `Strategy`."""
        return {"steps": self.steps, "sent": self.workers.sent, "ranks": self.workers.ranks}

    def own_state(self) -> dict[str, Any]:
        """See `Strategy`: the running averages, where there are any."""
        running = self._running()
        return {"running": [buffer.clone() for buffer in running]} if running else {}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`."""
        if not state:
            logger.info("going on with %d workers from one process", self.workers.ranks)
            return
        self.steps, self.workers.sent = state["steps"], state["sent"]
        for index, buffer in enumerate(self._running()):
            values = [held["running"][index] for held in own]
            if values:
                buffer.copy_(torch.stack(values).mean(dim=0) if len(values) > 1 else values[0])

    def rescaled(self, state: dict[str, Any]) -> bool:
        """Whether a checkpoint is of another number of workers."""
        return state["ranks"] != self.workers.ranks

    def report(self) -> dict[str, float]:
        """See `Strategy`: bytes that a worker has sent per step so far, see `launch`."""
        return {"bytes_per_step": self.workers.sent / max(1, self.steps)}

    def barrier(self) -> None:
        """See `Strategy`."""
        self.workers.barrier()

    def check_replicas(self) -> None:
        """Compare the bits of all ranks' weights by a checksum (all).

        Raises:
          ReplicasDifferError: naming the ranks that differ from rank 0.
        """
        bits = self.flat.weights().view(torch.int32)
        place = torch.arange(len(bits), device=bits.device)
        checksums = self.workers.gather_plain(int((bits * (2 * place + 1)).sum()))  # modulo 2^64
        differing = [rank for rank, sum_ in enumerate(checksums) if sum_ != checksums[0]]
        if differing:
            names = ", ".join(map(str, differing))
            raise ReplicasDifferError(
                f"the weights of worker {names} differ from worker 0's, though this method keeps "
                "them equal: look for a faulty machine or for unequal versions of torch"
            )

    def _running(self) -> list[Tensor]:
        return [b for b in self.model.buffers() if b.dtype.is_floating_point]
