"""Batches of an epoch that nodes take as fast as they can, and checkpoints of all nodes."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from toolkit.parallel.process_group import Workers
from toolkit.parallel.strategy import CHECKPOINT, BatchSource, Prefetch
from toolkit.parallel.work_sharing import Shares, Steps

_made = itertools.count()  # all ranks construct theirs in the same order
STEP, WRITE_CHECKPOINT, WAIT, END = range(4)  # what a node does next


@dataclass(frozen=True)
class Node:
    """The node of a worker: workers that keep in step with each other, the first one leading."""

    number: int
    """Its index."""
    count: int
    """Number of nodes."""
    size: int = 1
    """Number of workers of a node."""
    group: object = None
    """The gloo group of its workers, where there are several."""

    @property
    def leader(self) -> int:
        """Rank of the first worker."""
        return self.number * self.size


class SharedBatches:
    """The batches of each epoch; nodes take steps at their own pace, together one epoch (`Shares`).

    A batch is taken when it is needed, so that nobody waits for one that a slow worker has only
    loaded. The first worker of a node decides what the node does next. When rank 0 requests a
    checkpoint, every node comes to the end of its step, and all ranks are given `CHECKPOINT`; a
    node that has run out of steps waits for the others until then.

    Args:
      workers: the process group.
      node: the node of this worker.
      wait: called before `CHECKPOINT` (all); waits for the other ranks.
      resumed: what `remaining` returned, if the epoch that is to go on was divided like that.
    """

    def __init__(
        self,
        workers: Workers,
        node: Node,
        wait: Callable[[], None],
        resumed: list[dict[str, Any]] | None = None,
    ) -> None:
        self._workers, self._node, self._wait = workers, node, wait
        self._resumed = resumed
        self._counters = f"batches/{next(_made)}"
        self._shares: Shares
        self._due = self._asked = False
        self.position: int | None = None
        """Steps taken in the current epoch, as the mean over the nodes; None between epochs."""

    def request_checkpoint(self) -> None:
        """Let all ranks write a checkpoint after their steps; for rank 0."""
        self._due = True

    def remaining(self) -> list[dict[str, Any]]:
        """Return the remaining steps of the epoch by node (all), while no step is taken."""
        leads = self._workers.rank == self._node.leader
        steps = [[s.owner, s.first, s.end] for s in self._shares.remaining()] if leads else []
        by_node = self._workers.all_gather_object(steps)[:: self._node.size]
        return [{"part": part, "taken": taken} for part, taken in by_node]

    def batches(
        self, data: BatchSource, epoch: int, start: int, prefetch: Prefetch
    ) -> Iterator[Any]:
        """Yield this rank's batches of an epoch, and `CHECKPOINT`; see `Strategy.batches`."""
        node, rank, world_size = self._node, self._workers.rank, self._workers.world_size
        steps = data.num_steps(epoch, world_size)
        parts = [Steps(i, start, steps) for i in range(node.count)]
        taken = None
        if self._resumed is not None:
            parts = [Steps(*entry["part"]) for entry in self._resumed]
            taken = [Steps(*entry["taken"]) for entry in self._resumed]
        self._resumed = None
        left = sum(map(len, parts)) + (sum(map(len, taken)) if taken else 0)
        before = node.count * steps - left

        def add(name: str, number: int) -> int:
            return self._workers.count(f"{self._counters}/{epoch}/{name}", number)

        self._shares = Shares(add, node.number, parts, taken and taken[node.number])
        loaded: Iterator[Any] = iter(())
        following = None  # the step that `loaded` yields next
        try:
            for kind, owner, step, end, number in self._turns(add):
                if kind == WRITE_CHECKPOINT:
                    self._wait()
                    self.position = (before + add("taken", 0)) // node.count
                    yield CHECKPOINT
                elif kind == STEP:
                    if (owner, step) != following:
                        _close(loaded)
                        # Within the node that owns the steps, the worker in this one's place.
                        owner_rank = owner * node.size + rank - node.leader
                        batches = data.batches(epoch, step, owner_rank, world_size)
                        loaded = prefetch(islice(batches, end - step))
                    following = owner, step + 1
                    self.position = (before + number) // node.count
                    yield next(loaded)
            self.position = steps
        finally:
            _close(loaded)

    def _turns(self, add: Callable[[str, int], int]) -> Iterator[tuple[int, ...]]:
        """Yield (kind, owner, step, end, steps taken by all before) until the epoch ends."""
        node = self._node
        decided = self._decisions(add) if self._workers.rank == node.leader else None
        while True:
            turn = next(decided) if decided is not None else (END, 0, 0, 0, 0)
            if node.size > 1:
                told = torch.tensor(turn)
                self._workers.broadcast(told, node.leader, node.group)
                turn = tuple(told.tolist())
            if turn[0] == END:
                return
            if turn[0] == WAIT:
                self._workers.wait_for_steps()
            yield turn

    def _decisions(self, add: Callable[[str, int], int]) -> Iterator[tuple[int, ...]]:
        """Decide for the node, at its first worker."""
        written, finished = 0, False
        while True:
            if self._due and not self._asked:
                add("checkpoints", 1)
                self._asked = True
            # Read before the checkpoints: no rank asks for one after it has finished.
            all_finished = finished and add("finished", 0) == self._node.count
            if add("checkpoints", 0) > written:
                written += 1
                self._due = self._asked = False
                yield WRITE_CHECKPOINT, 0, 0, 0, 0
            elif all_finished:
                yield END, 0, 0, 0, 0
            elif finished:
                self._workers.pause()
                yield WAIT, 0, 0, 0, 0
            elif (found := self._shares.take()) is not None:
                yield STEP, found.owner, found.first, found.end, add("taken", 1) - 1
            else:
                finished = True
                add("finished", 1)


def _close(batches: Iterator[Any]) -> None:
    """Stop loading."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()
