"""Base class of the asynchronous methods: nodes take, and steal, steps at their own pace.

A node is one worker, or several that keep in step with each other. A node's share of an epoch is a
range of steps, which it takes from the front. A node whose own steps are all taken steals some from
the back of the largest remaining share; the smaller that share, the fewer it steals. So all nodes
finish at almost the same time, however fast each is: none waits longer than one step of another
node.

Counters that all nodes can add to are the only common state. Training uses the processes'
key-value store, the simulator a dictionary; the decisions are the same.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.messages import PointToPoint
from toolkit.parallel.strategy import CHECKPOINT, BatchSource, Prefetch
from toolkit.parallel.workers import Distributed, Workers

_STOLEN = 1 << 32  # upper half of a counter: the number of steps stolen from the back
Add = Callable[[str, int], int]
"""Adds to a named counter atomically and returns its new value; counters begin at 0."""
_instances = itertools.count()  # the same number for the same instance on all ranks
STEP, WRITE_CHECKPOINT, WAIT, END = range(4)  # what a node does next


@dataclass(frozen=True)
class StepRange:
    """Consecutive steps of one node's share of an epoch."""

    owner: int
    """The node to whose share the steps belong."""
    first: int
    end: int
    """The step after the last one."""

    def __len__(self) -> int:
        return max(0, self.end - self.first)


class StepQueue:
    """The steps of one epoch as one node sees them.

    Args:
      add: adds to one of the shared counters, whose names are the nodes' numbers.
      node: this node.
      parts: the share of every node; the same on all nodes.
      stolen: steps that this node has stolen earlier, but not done.
    """

    def __init__(
        self, add: Add, node: int, parts: Sequence[StepRange], stolen: StepRange | None = None
    ) -> None:
        self._add, self._node, self._parts = add, node, parts
        self._stolen = StepRange(node, 0, 0) if stolen is None else stolen
        self._has_part = len(parts[node]) > 0

    def take(self) -> StepRange | None:
        """Take a step; return None when every node's steps have been taken.

        Returns:
          A range whose first step is taken; the others follow unless other nodes steal them.
        """
        if self._has_part and not self._stolen:
            # The counter counts this node's steps in its lower half: one more is taken.
            untaken = self._untaken(self._add(str(self._node), 1))
            if untaken.first <= untaken.end:  # the step before `first` is now this node's
                return StepRange(self._node, untaken.first - 1, untaken.end)
            self._has_part = False
        if not self._stolen:
            self._steal()
        if not self._stolen:
            return None
        steps = self._stolen
        self._stolen = StepRange(steps.owner, steps.first + 1, steps.end)
        return steps

    def remaining(self) -> tuple[StepRange, StepRange]:
        """Return the steps not begun yet: of this node's share, and of those that it has stolen."""
        untaken = self._untaken(self._add(str(self._node), 0))
        first = min(untaken.first, untaken.end)
        return StepRange(self._node, first, untaken.end), self._stolen

    def _steal(self) -> None:
        """Steal the last steps of another node's share, if there are any."""
        nodes = len(self._parts)
        victims = [node for node in range(nodes) if node != self._node]
        while victims:
            untaken = {n: len(self._untaken(self._add(str(n), 0), n)) for n in victims}
            # Among equally long shares, that of the node next after this one on the ring.
            victim = max(victims, key=lambda n: (untaken[n], (self._node - n) % nodes))
            if not untaken[victim]:
                return
            # Half of what each node would get of them: stolen ranges shrink towards the end.
            number = max(1, untaken[victim] // (2 * nodes))
            remaining = self._untaken(self._add(str(victim), number * _STOLEN), victim)
            # The owner of the share, or another node that steals, may have been faster.
            steps = StepRange(victim, max(remaining.first, remaining.end), remaining.end + number)
            if steps:
                self._stolen = steps
                return

    def _untaken(self, counter: int, node: int | None = None) -> StepRange:
        """Return the steps of a node's share (None: this node's) that its counter leaves untaken.

        `first` is beyond `end` after attempts to take a step that did not exist.
        """
        part = self._parts[self._node if node is None else node]
        from_back, from_front = divmod(counter, _STOLEN)
        return StepRange(part.owner, part.first + from_front, part.end - from_back)


@dataclass(frozen=True)
class Node:
    """A worker's node: workers that keep in step with each other, led by the first of them."""

    number: int
    """Index of the node."""
    count: int
    """Number of nodes."""
    size: int = 1
    """Number of workers of a node."""
    group: object = None
    """The gloo group of the node's workers; None if there is only one."""

    @property
    def leader(self) -> int:
        """Rank of the first worker."""
        return self.number * self.size


class SharedBatches:
    """The batches of each epoch, which nodes take at their own pace (`StepQueue`).

    A batch is taken only when it is needed, so that no worker waits for a batch that a slow worker
    has loaded but not used. The first worker of a node decides what the node does next. When rank 0
    requests a checkpoint, every node finishes its step, and all ranks are given `CHECKPOINT`. A
    node that has run out of steps waits for the others, and takes part in their checkpoints.

    Args:
      workers: the process group.
      node: the node of this worker.
      wait: called before `CHECKPOINT` (collective); waits for the other ranks.
      resumed: what `remaining` returned at the checkpoint, if the training resumes within an epoch.
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
        self._counters = f"batches/{next(_instances)}"
        self._queue: StepQueue
        self._due = self._asked = False
        self.position: int | None = None
        """Steps taken in the current epoch, as the mean over the nodes; None between epochs."""

    def request_checkpoint(self) -> None:
        """Let all ranks write a checkpoint after their steps; for rank 0."""
        self._due = True

    def remaining(self) -> list[dict[str, Any]]:
        """Return the epoch's remaining steps by node; none may be taken meanwhile (collective)."""
        leads = self._workers.rank == self._node.leader
        steps = [[s.owner, s.first, s.end] for s in self._queue.remaining()] if leads else []
        by_node = self._workers.all_gather_object(steps)[:: self._node.size]
        return [{"part": part, "stolen": stolen} for part, stolen in by_node]

    def batches(
        self, data: BatchSource, epoch: int, start: int, prefetch: Prefetch
    ) -> Iterator[Any]:
        """Yield this rank's batches of an epoch, and `CHECKPOINT`; see `Strategy.batches`."""
        node, rank, world_size = self._node, self._workers.rank, self._workers.world_size
        steps = data.num_steps(epoch, world_size)
        parts = [StepRange(i, start, steps) for i in range(node.count)]
        # By node: the steps that it has stolen from others and not done yet.
        stolen = [StepRange(i, 0, 0) for i in range(node.count)]
        if self._resumed is not None:
            parts = [StepRange(*entry["part"]) for entry in self._resumed]
            stolen = [StepRange(*entry["stolen"]) for entry in self._resumed]
        self._resumed = None
        # Steps that all nodes together had taken before the resumption.
        steps_before = node.count * steps - sum(map(len, parts)) - sum(map(len, stolen))

        def add(name: str, number: int) -> int:
            return self._workers.count(f"{self._counters}/{epoch}/{name}", number)

        self._queue = StepQueue(add, node.number, parts, stolen[node.number])
        loaded: Iterator[Any] = iter(())
        following = None  # the step that `loaded` yields next
        try:
            # A step that this node has taken: the node whose share it is of, its number, the end of
            # the steps in a row, and how many steps all nodes had taken before it.
            for kind, owner, step, end, number in self._turns(add):
                if kind == WRITE_CHECKPOINT:
                    self._wait()
                    self.position = (steps_before + add("taken", 0)) // node.count
                    yield CHECKPOINT
                elif kind == STEP:
                    if (owner, step) != following:
                        _close(loaded)
                        # The worker at this worker's place within the node that owns the steps.
                        owner_rank = owner * node.size + rank - node.leader
                        batches = data.batches(epoch, step, owner_rank, world_size)
                        loaded = prefetch(islice(batches, end - step))
                    following = owner, step + 1
                    self.position = (steps_before + number) // node.count
                    yield next(loaded)
            self.position = steps
        finally:
            _close(loaded)

    def _turns(self, add: Callable[[str, int], int]) -> Iterator[tuple[int, ...]]:
        """Yield (kind, owner, step, end, steps taken by all nodes) until the epoch ends.

        The kind is `STEP`, `WRITE_CHECKPOINT`, `WAIT` or `END`. For `STEP`, the range from `step`
        to `end` belongs to the share of node `owner`; for other kinds, these three are 0.
        """
        node = self._node
        decisions = self._decisions(add) if self._workers.rank == node.leader else None
        while True:
            turn = next(decisions) if decisions is not None else (END, 0, 0, 0, 0)
            if node.size > 1:
                message = torch.tensor(turn)
                self._workers.broadcast(message, node.leader, node.group)
                turn = tuple(message.tolist())
            if turn[0] == END:
                return
            if turn[0] == WAIT:
                self._workers.wait_for_steps()
            yield turn

    def _decisions(self, add: Callable[[str, int], int]) -> Iterator[tuple[int, ...]]:
        """Yield what the node does next, as `_turns` does; only on its first worker."""
        written, finished = 0, False
        while True:
            if self._due and not self._asked:
                add("checkpoints", 1)
                self._asked = True
            # Read before the count of checkpoints: a finished rank requests no checkpoint.
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
            elif (steps := self._queue.take()) is not None:
                yield STEP, steps.owner, steps.first, steps.end, add("taken", 1) - 1
            else:
                finished = True
                add("finished", 1)


def _close(batches: Iterator[Any]) -> None:
    """Close a loader of batches, if it can be closed."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()


class Asynchronous(Distributed):
    """A strategy whose workers take their steps without waiting for each other.

    Workers take batches at their own pace (`SharedBatches`). For a checkpoint within an epoch, each
    finishes its step and waits for the others, so that no weights are in transit. The checkpoint
    holds every worker's weights and the remaining steps of the epoch. If the training needs equal
    numbers of steps on all ranks, batches are not shared, and checkpoints are written only between
    epochs. From the end of an epoch to the next step, all workers have the same weights. Since no
    worker waits for one that hangs, hangs are detected by counting steps.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._exchange: PointToPoint | None = None
        self._batches: SharedBatches | None = None
        self._remaining: list[dict[str, Any]] | None = None  # of an epoch that is resumed

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
        super().start(model, optimizer)
        self._in_sync = True
        self._batches = self._remaining = None

    def stop(self, failed: bool = False) -> None:
        """Implement `Strategy.stop`."""
        super().stop(failed)
        self.workers.leave_steps()

    def node(self) -> Node:
        """Return this worker's node, whose workers keep in step; here a node has one worker."""
        return Node(self.workers.rank, self.workers.world_size)

    def batches(
        self,
        data: BatchSource,
        epoch: int,
        start: int,
        prefetch: Prefetch,
        may_share: bool = True,
    ) -> Iterator[Any]:
        """Implement `Strategy.batches`: every node takes batches at its own pace."""
        if not may_share:
            return super().batches(data, epoch, start, prefetch, may_share)
        if self._batches is None:
            self._batches = SharedBatches(
                self.workers, self.node(), self.wait_for_checkpoint, self._remaining
            )
        return self._batches.batches(data, epoch, start, prefetch)

    def position(self, step: int) -> int:
        """Implement `Strategy.position`: the mean over the nodes, if they share batches."""
        shared = None if self._batches is None else self._batches.position
        return step if shared is None else shared

    def wait_for_checkpoint(self) -> None:
        """Wait until all workers have finished their steps, for a checkpoint (collective)."""
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
        """Return False; if a checkpoint is due, rank 0 requests it, and all ranks stop later."""
        if due and self.workers.rank == 0 and self._batches is not None:
            self._batches.request_checkpoint()
        return False

    def can_checkpoint(self) -> bool:
        """Return True while all ranks wait, and from the end of an epoch to the next step."""
        return self._in_sync

    def sent(self) -> float:
        """Count the bytes that this worker has sent."""
        return self.workers.sent + (0 if self._exchange is None else self._exchange.sent)

    def report(self) -> dict[str, float]:
        """Return `bytes_per_step` of this worker alone: numbers of steps differ by worker."""
        return {"bytes_per_step": self.sent() / max(1, self.steps)}

    def state_dict(self) -> dict[str, Any]:
        """Implement `Strategy.state_dict`; within an epoch, add the remaining steps by node."""
        within = self._batches is not None and self._batches.position is not None
        remaining = {"remaining": self._batches.remaining()} if within else {}
        return super().state_dict() | remaining

    def rank_state_dict(self) -> dict[str, Any]:
        """Implement `Strategy.rank_state_dict`: this worker's counts of steps and bytes."""
        exchanged = 0 if self._exchange is None else self._exchange.sent
        counts = {"steps": self.steps, "sent": self.workers.sent, "exchanged": exchanged}
        return super().rank_state_dict() | {"counts": counts}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Implement `Strategy.load_state_dict`; additional workers get the counts of worker 0.

        If the number of nodes has changed, all shares continue from the mean position.
        """
        super().load_state_dict(state, rank_states)
        if rank_states:
            counts = rank_states[0]["counts"]
            self.steps, self.workers.sent = counts["steps"], counts["sent"]
            if self._exchange is not None:
                self._exchange.sent = counts["exchanged"]
        self._in_sync = True
        remaining = state.get("remaining")
        if remaining is not None and not self.world_size_changed(state):
            self._remaining = remaining if len(remaining) == self.node().count else None
