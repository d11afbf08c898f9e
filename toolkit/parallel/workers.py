"""The process group of all ranks, its collective operations, and the base class of the methods.

Bytes are counted as one of N workers sends them in a ring, as in the simulator. An all-reduce of S
bytes counts 2 S (N - 1) / N. In an all-gather, a worker sends its own message to each of the N - 1
others. A broadcast, in which each of these receives S bytes once, counts the mean over the workers,
S (N - 1) / N. Barriers and `all_gather_object` (votes, checksums) are not counted.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.errors import ToolkitError
from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.strategy import Strategy
from toolkit.processes import ranks
from toolkit.processes.watchdog import RESUME_ADVICE, WorkerLostError

logger = logging.getLogger(__name__)
STARTUP_TIMEOUT = timedelta(minutes=1)
POLL_INTERVAL = 0.01  # seconds
STEPS_BETWEEN_AGREEMENTS = 10


class FlatParameters:
    """The trainable parameters of a model, in their order, as one vector.

    Args:
      parameters: the model's; those that require no gradient are left out.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self._sizes = [p.numel() for p in self.parameters]

    def __len__(self) -> int:
        """Return the number of values."""
        return sum(self._sizes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of [W] in the shapes of their parameters."""
        parts = flat.split(self._sizes)
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def weights(self) -> Tensor:
        """Copy the weights: [W]."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def set_weights(self, flat: Tensor) -> None:
        """Copy [W] into the weights."""
        with torch.no_grad():
            for parameter, values in zip(self.parameters, self.views(flat), strict=True):
                parameter.copy_(values)

    def gradients(self) -> Tensor:
        """Copy the gradients, zero where there are none: [W]."""
        return torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad.detach()).reshape(-1)
                for p in self.parameters
            ]
        )

    def set_gradients(self, flat: Tensor) -> None:
        """Set the gradients to views of [W]."""
        for parameter, values in zip(self.parameters, self.views(flat), strict=True):
            parameter.grad = values


class Workers:
    """The process group of all ranks that torchrun started, and its collective operations.

    An operation that fails because a worker is lost raises `WorkerLostError`, which names it.

    Args:
      device: device of the exchanged tensors, "cpu" (gloo) or "cuda" (nccl).
      timeout: seconds to wait for the other ranks in an operation.
    """

    def __init__(self, device: str, timeout: float) -> None:
        self._connection = ranks.connect()
        self.rank, self.world_size = ranks.rank(), ranks.world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))
        """Number of ranks on this host; the first one is `rank - local_rank`."""
        self.cuda = device.startswith("cuda")
        self.timeout = timedelta(seconds=timeout)
        if self.cuda:
            gpus = torch.cuda.device_count()
            if self.local_world_size > gpus:
                raise ToolkitError(
                    f"{self.local_world_size} workers were started on a host with {gpus} GPUs. "
                    "Start one worker per GPU (torchrun --nproc_per_node), or use --device cpu"
                )
            torch.cuda.set_device(self.local_rank)
        self._connection.barrier()  # other ranks may take longer to open their data
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("groups", self._connection.store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=STARTUP_TIMEOUT,
            )
        self._control = self.new_group(range(self.world_size), "gloo")
        self._group = self.new_group(range(self.world_size)) if self.cuda else self._control
        self.sent = 0.0
        """Bytes of weights and gradients that this rank has sent."""

    def new_group(self, members: Iterator[int] | range, backend: str | None = None) -> Any:
        """Make a process group; every rank must call this, in the same order.

        Args:
          members: the ranks in it.
          backend: by default nccl for tensors on a GPU, else gloo.
        """
        backend = backend or ("nccl" if self.cuda else "gloo")
        return dist.new_group(list(members), timeout=self.timeout, backend=backend)

    def all_reduce(self, tensor: Tensor, group: object = None) -> "AsyncResult":
        """Start an all-reduce: the tensor becomes the sum over all ranks, bitwise equal on each."""
        group = group or self._group
        # A ring sends 2 S (N - 1) / N: reduce-scatter, then all-gather.
        self.sent += 2 * self._other_share(group) * _bytes(tensor)
        with self.exchange():
            operation = dist.all_reduce(tensor, group=group, async_op=True)
        return AsyncResult(self, operation, tensor)

    def gather(self, tensor: Tensor) -> "AsyncResult":
        """Start to collect tensors [C] of equal sizes from all ranks, in their order: [N, C]."""
        self.sent += (self.world_size - 1) * _bytes(tensor)
        out = tensor.new_empty(self.world_size, len(tensor))
        with self.exchange():
            operation = dist.all_gather(list(out), tensor, group=self._group, async_op=True)
        return AsyncResult(self, operation, out)

    def all_gather(self, tensor: Tensor, number: float = 0.0) -> tuple[list[Tensor], list[float]]:
        """Collect one-dimensional tensors of any lengths from all ranks, in their order.

        Shorter ones are padded for the transfer; the padding counts as sent.

        Args:
          tensor: has at least one element.
          number: collected along with the tensor.

        Returns:
          The tensors and the numbers, by rank.
        """
        # First the lengths, then the tensors padded to the longest: all-gather needs equal sizes.
        header = torch.tensor([len(tensor), number], dtype=torch.float64)
        headers = [torch.empty_like(header) for _ in range(self.world_size)]
        with self.exchange():
            dist.all_gather(headers, header, group=self._control)
        lengths, numbers = torch.stack(headers).T.tolist()
        longest = int(max(lengths))
        self.sent += (self.world_size - 1) * (_bytes(header) + longest * tensor.element_size())
        padded = torch.nn.functional.pad(tensor, (0, longest - len(tensor)))
        out = [torch.empty_like(padded) for _ in lengths]
        with self.exchange():
            dist.all_gather(out, padded, group=self._group)
        return [x[: int(length)] for x, length in zip(out, lengths, strict=True)], numbers

    def broadcast(self, tensor: Tensor, source: int = 0, group: object = None) -> None:
        """Overwrite a tensor with that of rank `source`, on all ranks or those of a group."""
        group = group or self._group
        self.sent += self._other_share(group) * _bytes(tensor)
        with self.exchange():
            dist.broadcast(tensor, source, group=group)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Collect numbers, strings, lists or dicts from all ranks, in their order."""
        out = [None] * self.world_size
        with self.exchange():
            dist.all_gather_object(out, value, group=self._control)
        return out

    def count(self, name: str, number: int) -> int:
        """Add to a counter that all ranks share, which begins at 0; return its new value."""
        return self._connection.count(name, number)

    def step_taken(self) -> None:
        """Count a step in which ranks do not wait for each other.

        Until `end_steps`, a rank without a step for `timeout` counts as hung.

        Raises:
          WorkerLostError: a worker is lost.
        """
        self._connection.watchdog.stalls.step(self.timeout.total_seconds())
        self._connection.watchdog.check()

    def end_steps(self) -> None:
        """Wait until every rank has taken its last step, however long that takes (collective)."""
        with self._connection.watchdog.stalls.waiting(self.timeout.total_seconds()):
            self.barrier()

    def wait_for_steps(self) -> None:
        """Note that this rank takes no step now, but waits until the others have taken theirs."""
        self._connection.watchdog.stalls.wait(self.timeout.total_seconds())
        self._connection.watchdog.check()

    def leave_steps(self) -> None:
        """Stop counting steps: after an exception, or while all ranks write a checkpoint."""
        self._connection.watchdog.stalls.idle()

    def pause(self) -> None:
        """Sleep briefly before checking the other ranks again.

        Raises:
          WorkerLostError: a worker is lost.
        """
        self._connection.watchdog.check()
        time.sleep(POLL_INTERVAL)

    def barrier(self) -> None:
        """Wait until every rank has arrived, however long that takes."""
        self._connection.barrier()

    def _other_share(self, group: object) -> float:
        """Return (N - 1) / N for a group of N members: the share that the others hold."""
        size = dist.get_world_size(group)
        return (size - 1) / size

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Return a context for communication; if it fails, the error names the worker at fault."""
        watchdog = self._connection.watchdog
        watchdog.exchanges += 1
        try:
            yield
        except RuntimeError as error:
            raise WorkerLostError(f"{watchdog.explain(error)}. {RESUME_ADVICE}") from error


def _bytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes."""
    return tensor.numel() * tensor.element_size()


class AsyncResult:
    """An operation in progress, whose result is a tensor."""

    def __init__(self, workers: Workers, operation: dist.Work, tensor: Tensor) -> None:
        self._workers, self._operation, self._tensor = workers, operation, tensor

    def wait(self) -> Tensor:
        """Return the tensor. On a GPU only later operations wait for it; on the CPU the caller."""
        with self._workers.exchange():
            self._operation.wait()
        return self._tensor


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

    has_equal_replicas = False
    """Whether the weights of all workers are the same after each step."""

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__()
        self.config, self.workers = config, workers
        self.rank, self.world_size = workers.rank, workers.world_size
        self.flat: FlatParameters
        """The model's parameters as one vector."""
        self.steps = 0
        """Optimizer steps since the start of the training."""

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
        super().start(model, optimizer)
        self.flat = FlatParameters(model.parameters())
        self.steps, self.workers.sent = 0, 0.0
        self.barrier()
        # All begin with rank 0's weights, as the vector [W] of one broadcast.
        weights = self.flat.weights()
        self.workers.broadcast(weights)
        self.flat.set_weights(weights)

    def after_step(self) -> None:
        """Count the step."""
        self.steps += 1

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Return a context in which running statistics are averaged over the ranks."""
        local = [buffer.clone() for buffer in self._running_statistics()]
        for buffer in self._running_statistics():
            buffer.copy_(self.workers.all_reduce(buffer.clone()).wait() / self.workers.world_size)
        try:
            yield
        finally:
            for buffer, value in zip(self._running_statistics(), local, strict=True):
                buffer.copy_(value)

    def sum_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum scalars by name over all ranks; see `Strategy.sum_over_ranks`."""
        local = {name: float(value) for name, value in sums.items()}
        # In the order of the ranks, so that every rank adds the same numbers in the same order
        totals: dict[str, float] = {}
        for part in self.workers.all_gather_object(local):
            for name, value in part.items():
                totals[name] = totals.get(name, 0.0) + value
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in totals.items()}

    def agree_on_checkpoint(self, due: bool) -> bool:
        """Implement `Strategy.agree_on_checkpoint`: at every tenth step rank 0 decides."""
        return self.steps % STEPS_BETWEEN_AGREEMENTS == 0 and self.rank_zero_decides(due)

    def rank_zero_decides(self, due: bool) -> bool:
        """Return rank 0's value of `due` on every rank (collective)."""
        return bool(self.workers.all_gather_object(due)[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the state; weights that should be equal on all workers are compared."""
        if self.has_equal_replicas:
            self.check_replicas()
        return {"steps": self.steps, "sent": self.workers.sent, "ranks": self.workers.world_size}

    def rank_state_dict(self) -> dict[str, Any]:
        """Implement `Strategy.rank_state_dict`: the running statistics, if there are any."""
        running = self._running_statistics()
        return {"running": [buffer.clone() for buffer in running]} if running else {}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Implement `Strategy.load_state_dict`."""
        if not state:
            logger.info(
                "continuing the training of a single process with %d workers",
                self.workers.world_size,
            )
            return
        self.steps, self.workers.sent = state["steps"], state["sent"]
        for index, buffer in enumerate(self._running_statistics()):
            # This rank continues none, one or several of the checkpoint's ranks.
            values = [rank_state["running"][index] for rank_state in rank_states]
            if values:
                buffer.copy_(torch.stack(values).mean(dim=0) if len(values) > 1 else values[0])

    def world_size_changed(self, state: dict[str, Any]) -> bool:
        """Return whether a checkpoint was written with another number of workers."""
        return state["ranks"] != self.workers.world_size

    def report(self) -> dict[str, float]:
        """Return `bytes_per_step`, the mean sent per step and worker, as `workers` counts them."""
        return {"bytes_per_step": self.workers.sent / max(1, self.steps)}

    def barrier(self) -> None:
        """Implement `Strategy.barrier`."""
        self.workers.barrier()

    def check_replicas(self) -> None:
        """Compare the bits of all ranks' weights by a checksum (collective).

        Raises:
          ReplicasDifferError: some ranks, which the message names, differ from rank 0.
        """
        bits = self.flat.weights().view(torch.int32)
        # sum_i bits_i (2 i + 1): odd factors, so that every bit counts; swapped values change it
        position = torch.arange(len(bits), device=bits.device)
        checksum = int((bits * (2 * position + 1)).sum())  # modulo 2^64
        checksums = self.workers.all_gather_object(checksum)
        differing = [rank for rank, sum_ in enumerate(checksums) if sum_ != checksums[0]]
        if differing:
            names = ", ".join(map(str, differing))
            raise ReplicasDifferError(
                f"the weights of worker {names} differ from those of worker 0, but must be equal "
                "with this parallel method. Look for a faulty machine or for different versions of "
                "torch"
            )

    def _running_statistics(self) -> list[Tensor]:
        """Return the floating-point buffers of the model, such as batch statistics."""
        return [b for b in self.model.buffers() if b.dtype.is_floating_point]
