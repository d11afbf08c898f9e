"""The workers of a training: process groups over gloo or nccl, with the bytes counted.

Counted is what a worker sends in a ring, as the simulator does: of S bytes to add up 2 (N - 1) / N,
a message of its own to each of the N - 1 others, and in a broadcast, which gives every other worker
S bytes once, the mean over the workers, (N - 1) / N. Barriers, votes and checksums are left out.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.errors import CONTINUES, WorkerLostError

STARTING = timedelta(minutes=1)


class Workers:
    """All ranks that torchrun started, and the exchanges between them.

    An exchange that a lost worker spoils raises `WorkerLostError`, which names it.

    Args:
      device: where tensors to exchange are, "cpu" (gloo) or "cuda" (nccl).
      timeout: seconds to wait for the others in an exchange.
    """

    def __init__(self, device: str, timeout: float) -> None:
        self._connection = ranks.connect()
        self.rank, self.ranks = ranks.number(), ranks.count()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks))
        """How many ranks are on this host; they are `rank - local_rank` and those after it."""
        self.cuda = device.startswith("cuda")
        self.timeout = timedelta(seconds=timeout)
        if self.cuda:
            if self.local_ranks > torch.cuda.device_count():
                raise ToolkitError(
                    f"{self.local_ranks} workers on a host with {torch.cuda.device_count()} GPUs: "
                    "start one worker per GPU (torchrun --nproc_per_node), or use --device cpu"
                )
            torch.cuda.set_device(self.local_rank)
        self._connection.meet()  # the others may take longer to read what they train on
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("groups", self._connection.store),
                rank=self.rank,
                world_size=self.ranks,
                timeout=STARTING,
            )
        self._control = self.new_group(range(self.ranks), "gloo")
        self._group = self.new_group(range(self.ranks)) if self.cuda else self._control
        self.sent = 0.0
        """Bytes that this rank has sent in exchanges of weights and gradients."""

    def new_group(self, members: Iterator[int] | range, backend: str | None = None):  # noqa: ANN201
        """Make a process group; every rank must call this, in the same order.

        Args:
          members: its ranks.
          backend: by default nccl for tensors on a GPU, else gloo.
        """
        backend = backend or ("nccl" if self.cuda else "gloo")
        return dist.new_group(list(members), timeout=self.timeout, backend=backend)

    def add_up(self, tensor: Tensor, group: object = None) -> "Pending":
        """Begin to replace a tensor by its sum over all ranks, which has the same bits on each."""
        group = group or self._group
        self.sent += 2 * self._others(group) * _bytes(tensor)
        with self.exchange():
            work = dist.all_reduce(tensor, group=group, async_op=True)
        return Pending(self, work, tensor)

    def gather(self, tensor: Tensor, number: float = 0.0) -> tuple[list[Tensor], list[float]]:
        """Collect tensors of one dimension and of any lengths from all ranks, in their order.

        The shorter ones are filled up on the way, which counts as sent.

        Args:
          tensor: of at least one element.
          number: collected along with it.
        """
        mine = torch.tensor([len(tensor), number], dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.ranks)]
        with self.exchange():
            dist.all_gather(found, mine, group=self._control)
        lengths, numbers = torch.stack(found).T.tolist()
        longest = int(max(lengths))
        self.sent += (self.ranks - 1) * (_bytes(mine) + longest * tensor.element_size())
        padded = torch.nn.functional.pad(tensor, (0, longest - len(tensor)))
        out = [torch.empty_like(padded) for _ in lengths]
        with self.exchange():
            dist.all_gather(out, padded, group=self._group)
        return [x[: int(length)] for x, length in zip(out, lengths, strict=True)], numbers

    def broadcast(self, tensor: Tensor, source: int = 0, group: object = None) -> None:
        """Overwrite a tensor with that of rank `source`, on all ranks or those of a group."""
        group = group or self._group
        self.sent += self._others(group) * _bytes(tensor)
        with self.exchange():
            dist.broadcast(tensor, source, group=group)

    def gather_plain(self, value: Any) -> list[Any]:
        """Collect numbers, strings, lists or dicts from all ranks, in their order."""
        out = [None] * self.ranks
        with self.exchange():
            dist.all_gather_object(out, value, group=self._control)
        return out

    def step_taken(self) -> None:
        """Count a step of work whose ranks do not wait for each other.

        A rank that takes none for `timeout` is taken for hung, until `end_steps`.

        Raises:
          WorkerLostError: one is lost.
        """
        self._connection.watch.paces.step(self.timeout.total_seconds())
        self._connection.watch.check()

    def end_steps(self) -> None:
        """Wait until every rank has taken its last step, however long that takes (all)."""
        with self._connection.watch.paces.waiting(self.timeout.total_seconds()):
            self.barrier()

    def leave_steps(self) -> None:
        """Take no more steps, after an exception."""
        self._connection.watch.paces.rest()

    def barrier(self) -> None:
        """Wait until every rank is here, however long that takes."""
        self._connection.meet()

    def _others(self, group: object) -> float:
        """Share of a group's members that are not this one."""
        size = dist.get_world_size(group)
        return (size - 1) / size

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Around an exchange: find out who is to blame when it fails."""
        watch = self._connection.watch
        watch.exchanges += 1
        try:
            yield
        except RuntimeError as error:
            raise WorkerLostError(f"{watch.explain(error)}. {CONTINUES}") from error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Pending:
    """An exchange under way."""

    def __init__(self, workers: Workers, work: dist.Work, tensor: Tensor) -> None:
        self._workers, self._work, self._tensor = workers, work, tensor

    def wait(self) -> Tensor:
        """Wait for its end and return the tensor."""
        with self._workers.exchange():
            self._work.wait()
        return self._tensor
