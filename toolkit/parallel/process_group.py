"""Process groups over gloo or nccl, and their collective operations, with the bytes counted.

The bytes are those that a worker sends in a ring, as in the simulator: 2 S (N - 1) / N for an
all-reduce of S bytes; in an all-gather its own message to each of the N - 1 others; in a broadcast,
where every other worker receives S bytes once, the mean over the workers, S (N - 1) / N. Barriers
and `all_gather_object` (votes, checksums) are not counted.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.watchdog import RESUME_ADVICE, WorkerLostError

STARTUP_TIMEOUT = timedelta(minutes=1)
POLL_INTERVAL = 0.01  # seconds


class Workers:
    """The process group of all ranks that torchrun started, and its collective operations.

    An operation that fails because a worker is lost raises `WorkerLostError`, which names it.

    Args:
      device: device of the tensors to exchange, "cpu" (gloo) or "cuda" (nccl).
      timeout: seconds to wait for the other ranks in an operation.
    """

    def __init__(self, device: str, timeout: float) -> None:
        self._connection = ranks.connect()
        self.rank, self.world_size = ranks.rank(), ranks.world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))
        """Number of ranks on this host; they begin with `rank - local_rank`."""
        self.cuda = device.startswith("cuda")
        self.timeout = timedelta(seconds=timeout)
        if self.cuda:
            gpus = torch.cuda.device_count()
            if self.local_world_size > gpus:
                raise ToolkitError(
                    f"{self.local_world_size} workers on a host with {gpus} "
                    "GPUs: start one worker per GPU (torchrun --nproc_per_node), or use "
                    "--device cpu"
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

    def all_reduce(self, tensor: Tensor, group: object = None) -> "Pending":
        """Start an all-reduce: the tensor becomes the sum over all ranks, bitwise equal on each."""
        group = group or self._group
        self.sent += 2 * self._other_share(group) * _bytes(tensor)
        with self.exchange():
            work = dist.all_reduce(tensor, group=group, async_op=True)
        return Pending(self, work, tensor)

    def gather(self, tensor: Tensor) -> "Pending":
        """Start to collect tensors [C] of equal sizes from all ranks, in their order: [N, C]."""
        self.sent += (self.world_size - 1) * _bytes(tensor)
        out = tensor.new_empty(self.world_size, len(tensor))
        with self.exchange():
            work = dist.all_gather(list(out), tensor, group=self._group, async_op=True)
        return Pending(self, work, out)

    def all_gather(self, tensor: Tensor, number: float = 0.0) -> tuple[list[Tensor], list[float]]:
        """Collect one-dimensional tensors of any lengths from all ranks, in their order.

        Shorter ones are padded for the transfer; the padding counts as sent.

        Args:
          tensor: has at least one element.
          number: collected along with the tensor.
        """
        mine = torch.tensor([len(tensor), number], dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        with self.exchange():
            dist.all_gather(found, mine, group=self._control)
        lengths, numbers = torch.stack(found).T.tolist()
        longest = int(max(lengths))
        self.sent += (self.world_size - 1) * (_bytes(mine) + longest * tensor.element_size())
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
        """Wait until every rank has taken its last step, however long that takes (all)."""
        with self._connection.watchdog.stalls.waiting(self.timeout.total_seconds()):
            self.barrier()

    def wait_for_steps(self) -> None:
        """Note that this rank takes no step now, but waits until the others have taken theirs."""
        self._connection.watchdog.stalls.wait(self.timeout.total_seconds())
        self._connection.watchdog.check()

    def leave_steps(self) -> None:
        """Stop counting steps: after an exception, or as all ranks write a checkpoint."""
        self._connection.watchdog.stalls.idle()

    def pause(self) -> None:
        """Wait for a moment before looking again at what other ranks do.

        Raises:
          WorkerLostError: a worker is lost.
        """
        self._connection.watchdog.check()
        time.sleep(POLL_INTERVAL)

    def barrier(self) -> None:
        """Wait until every rank has arrived, however long that takes."""
        self._connection.barrier()

    def _other_share(self, group: object) -> float:
        """Return (N - 1) / N for a group of N members."""
        size = dist.get_world_size(group)
        return (size - 1) / size

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Context of a communication: on failure, name the worker that caused it."""
        watchdog = self._connection.watchdog
        watchdog.exchanges += 1
        try:
            yield
        except RuntimeError as error:
            raise WorkerLostError(f"{watchdog.explain(error)}. {RESUME_ADVICE}") from error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Pending:
    """An operation in progress, whose result is a tensor."""

    def __init__(self, workers: Workers, work: dist.Work, tensor: Tensor) -> None:
        self._workers, self._work, self._tensor = workers, work, tensor

    def wait(self) -> Tensor:
        """Return the tensor; on a GPU later operations wait for it there, else the caller does."""
        with self._workers.exchange():
            self._work.wait()
        return self._tensor
