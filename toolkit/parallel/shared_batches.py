"""A data source whose nodes take as many batches as they can, and meet for checkpoints."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from toolkit.parallel.batch import MEETING, Batch, BatchesAhead, Meeting
from toolkit.parallel.process_group import Workers
from toolkit.parallel.work_sharing import Shares, Steps

_made = itertools.count()  # all ranks construct theirs in the same order
STEP, MEET, IDLE, END = range(4)  # what a node does next


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
    """A data source whose nodes take steps at their own pace, together one epoch (`Shares`).

    A batch is taken when it is needed, so that nobody waits for one that a slow worker has only
    loaded. The first worker of a node decides what the node does next. When rank 0 requests a
    checkpoint, every node comes to the end of its step, and the source yields `MEETING` on all
    ranks; a node that has run out of steps waits for the others until then.

    Args:
      data: the batches.
      workers: the process group.
      node: the node of this worker.
      meet: called before `MEETING` (all); waits for the other ranks.
      resumed: what `state` returned, if the epoch that is to go on was divided like that.
    """

    def __init__(
        self,
        data: BatchesAhead,
        workers: Workers,
        node: Node,
        meet: Callable[[], None],
        resumed: list[dict[str, Any]] | None = None,
    ) -> None:
        self._data, self._workers, self._node, self._meet = data, workers, node, meet
        self._resumed = resumed
        self._counters = f"batches/{next(_made)}"
        self._shares: Shares
        self._due = self._asked = False
        self.position: int | None = None
        """Steps taken in the current epoch, as the mean over the nodes; None between epochs."""

    def request_meeting(self) -> None:
        """Let all ranks meet after their steps; for rank 0."""
        self._due = True

    def state(self) -> list[dict[str, Any]]:
        """Return what is left of the epoch, by node (all); at a meeting, when no step is taken."""
        leads = self._workers.rank == self._node.leader
        mine = [[s.owner, s.first, s.end] for s in self._shares.remaining()] if leads else []
        found = self._workers.all_gather_object(mine)[:: self._node.size]
        return [{"part": part, "taken": taken} for part, taken in found]

    def steps(self, epoch: int, world_size: int = 1) -> int:
        """See `DataSource`: the mean over the ranks."""
        return self._data.steps(epoch, world_size)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch | Meeting]:
        """See `DataSource`."""
        node = self._node
        steps = self._data.steps(epoch, world_size)
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
        loaded: Iterator[Batch] = iter(())
        following = None  # the step that `loaded` yields next
        try:
            for kind, owner, step, end, number in self._turns(add):
                if kind == MEET:
                    self._meet()
                    self.position = (before + add("taken", 0)) // node.count
                    yield MEETING
                elif kind == STEP:
                    if (owner, step) != following:
                        _close(loaded)
                        of = owner * node.size + rank - node.leader
                        loaded = self._data.batches(epoch, step, of, world_size, end - step)
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
            if turn[0] == IDLE:
                self._workers.wait_for_steps()
            yield turn

    def _decisions(self, add: Callable[[str, int], int]) -> Iterator[tuple[int, ...]]:
        """Decide for the node, at its first worker."""
        met, finished = 0, False
        while True:
            if self._due and not self._asked:
                add("meetings", 1)
                self._asked = True
            # Read before the meetings: no rank asks for one after it has finished.
            all_finished = finished and add("finished", 0) == self._node.count
            if add("meetings", 0) > met:
                met += 1
                self._due = self._asked = False
                yield MEET, 0, 0, 0, 0
            elif all_finished:
                yield END, 0, 0, 0, 0
            elif finished:
                self._workers.pause()
                yield IDLE, 0, 0, 0, 0
            elif (found := self._shares.take()) is not None:
                yield STEP, found.owner, found.first, found.end, add("taken", 1) - 1
            else:
                finished = True
                add("finished", 1)


def _close(batches: Iterator[Batch]) -> None:
    """Stop loading."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()
