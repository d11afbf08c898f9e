"""Base class of the data-parallel methods."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.errors import ToolkitError
from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.flat_parameters import FlatParameters
from toolkit.parallel.process_group import Workers
from toolkit.parallel.strategy import Strategy

logger = logging.getLogger(__name__)
STEPS_BETWEEN_AGREEMENTS = 10


class ReplicasDifferError(ToolkitError):
    """Replicas that should have equal weights differ."""


class Distributed(Strategy):
    """A strategy of several workers, all of which start from rank 0's weights.

    Running statistics in the model, such as those of batch normalisation, are local to each rank;
    `consensus` averages them.

    Args:
      config: the method's parameters.
      workers: the process group.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__()
        self.config, self.workers = config, workers
        self.rank, self.world_size = workers.rank, workers.world_size
        self.flat: FlatParameters
        """The model's parameters as one vector."""
        self.steps = 0
        """Optimizer steps since the start of the training."""

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self.flat = FlatParameters(model.parameters())
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
        """See `Strategy`: weights are the same on every rank, running statistics are averaged."""
        local = [buffer.clone() for buffer in self._running_statistics()]
        for buffer in self._running_statistics():
            buffer.copy_(self.workers.all_reduce(buffer.clone()).wait() / self.workers.world_size)
        try:
            yield
        finally:
            for buffer, value in zip(self._running_statistics(), local, strict=True):
                buffer.copy_(value)

    def sum_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Strategy`."""
        mine = {name: float(value) for name, value in sums.items()}
        whole: dict[str, float] = {}
        for part in self.workers.all_gather_object(mine):
            for name, value in part.items():
                whole[name] = whole.get(name, 0.0) + value
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in whole.items()}

    def agree_on_checkpoint(self, due: bool) -> bool:
        """See `Strategy`: at every tenth step rank 0 decides."""
        return self.steps % STEPS_BETWEEN_AGREEMENTS == 0 and self.rank_zero_decides(due)

    def rank_zero_decides(self, due: bool) -> bool:
        """Return rank 0's value of `due` (all)."""
        return bool(self.workers.all_gather_object(due)[0])

    def state_dict(self) -> dict[str, Any]:
        """See `Strategy`."""
        return {"steps": self.steps, "sent": self.workers.sent, "ranks": self.workers.world_size}

    def rank_state_dict(self) -> dict[str, Any]:
        """See `Strategy`: the running statistics, if there are any."""
        running = self._running_statistics()
        return {"running": [buffer.clone() for buffer in running]} if running else {}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`."""
        if not state:
            logger.info(
                "continuing a single-process training with %d workers", self.workers.world_size
            )
            return
        self.steps, self.workers.sent = state["steps"], state["sent"]
        for index, buffer in enumerate(self._running_statistics()):
            values = [rank_state["running"][index] for rank_state in rank_states]
            if values:
                buffer.copy_(torch.stack(values).mean(dim=0) if len(values) > 1 else values[0])

    def world_size_changed(self, state: dict[str, Any]) -> bool:
        """Whether a checkpoint was written with another number of workers."""
        return state["ranks"] != self.workers.world_size

    def report(self) -> dict[str, float]:
        """See `Strategy`: mean bytes sent per step and worker; counted as in `workers`."""
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
        position = torch.arange(len(bits), device=bits.device)
        checksum = int((bits * (2 * position + 1)).sum())  # modulo 2^64
        checksums = self.workers.all_gather_object(checksum)
        differing = [rank for rank, sum_ in enumerate(checksums) if sum_ != checksums[0]]
        if differing:
            names = ", ".join(map(str, differing))
            raise ReplicasDifferError(
                f"the weights of worker {names} differ from worker 0's, though this method keeps "
                "them equal: look for a faulty machine or for unequal versions of torch"
            )

    def _running_statistics(self) -> list[Tensor]:
        return [b for b in self.model.buffers() if b.dtype.is_floating_point]
