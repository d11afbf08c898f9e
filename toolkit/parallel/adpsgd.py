"""ADPSGD, H-ADPSGD: learners average their models with neighbours' while computing (B1, B3).

Learner i of K has the weights x_i. When two learners average, the K models are multiplied by a
doubly stochastic matrix. So the mean of the models does not change, and their distance from it does
not grow.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.asynchronous import Asynchronous, Node
from toolkit.parallel.config import ParallelConfig, ParallelError
from toolkit.parallel.messages import (
    Answer,
    HostCopies,
    HostStreams,
    PointToPoint,
    Streams,
    Turns,
    streams_of,
)
from toolkit.parallel.ssgd import GradientBuckets
from toolkit.parallel.strategy import BatchSource, Prefetch
from toolkit.parallel.workers import Distributed, Workers

Pattern = Literal["fixed", "random", "shuffled"]
"""`fixed`: neighbours on a ring in turn. `random`: each active learner draws a partner
independently, so that two may draw the same one. `shuffled`: neighbours on a ring that is shuffled
for every averaging; with an even number of learners, the n-th averagings of all active learners
then have different partners."""


def consensus_distance(models: Tensor) -> float:
    """Return the root mean square distance of K models [K, P] from their mean."""
    return float((models - models.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def is_active(rank: int) -> bool:
    """Return whether a learner is active: it requests averagings, which passive learners answer.

    Even ranks are active, odd ranks passive. As passive learners never wait for others, no
    deadlock can arise (the bipartite graph of Lian et al. 2018).
    """
    return rank % 2 == 0


def partners(rank: int, learners: int, pattern: Pattern) -> list[int]:
    """List the possible partners of a learner, the next one on the ring first.

    These are the passive learners that an active one may ask, or the active ones that may ask a
    passive one. On a fixed ring with an odd number of learners, the first and the last are both
    active and never average with each other; the rest of the ring still connects all learners.
    """
    if pattern == "fixed":
        # A dict, as an ordered set: with two learners both neighbours are the same.
        neighbours = dict.fromkeys([(rank + 1) % learners, (rank - 1) % learners])
    else:
        neighbours = range(learners)
    return [peer for peer in neighbours if is_active(peer) != is_active(rank)]


def partner(rank: int, learners: int, pattern: Pattern, number: int, seed: int = 0) -> int:
    """Choose the partner of an active learner for its averaging `number` (from 0).

    On the fixed ring the neighbours take turns; else all passive learners are equally likely. If
    the number of learners is odd, two active ones have the same partner on a shuffled ring.
    """
    choice = partners(rank, learners, pattern)
    if pattern == "fixed":
        return choice[number % len(choice)]
    if pattern == "shuffled":
        # All learners draw the same permutation of the passive ones: active learner 2 i asks the
        # one in place i, so that no two ask the same one if the number of learners is even.
        passive = [learner for learner in range(learners) if not is_active(learner)]
        ring = np.random.default_rng([seed, number]).permutation(passive)
        return int(ring[rank // 2 % len(ring)])
    return choice[np.random.default_rng([seed, rank, number]).integers(len(choice))]


class Learner:
    """One learner's weights, changed concurrently by its optimizer and by averaging with others.

    Every change is atomic and relative, so that none is lost, whatever the order. The optimizer's
    update is added. An averaging of two learners moves both by half of their difference, in
    opposite directions. So the mean of all models changes by the mean of the optimizers' updates
    alone. All changes are made on the device that holds the weights.

    Args:
      weights: [P] float32, from which it starts.
      streams: streams of the weights' device.
    """

    def __init__(self, weights: Tensor, streams: Streams | None = None) -> None:
        self._weights = weights.detach().clone()
        self._turns = Turns(streams or HostStreams())
        self.averagings = 0
        """Number of averagings with other learners."""

    def weights(self) -> Tensor:
        """Return a copy of the current weights: [P]."""
        with self._turns.ordered():
            return self._weights.clone()

    def set_weights(self, weights: Tensor) -> None:
        """Replace the weights by [P]."""
        with self._turns.ordered():
            self._weights.copy_(weights)

    def add(self, update: Tensor) -> Tensor:
        """Add an optimizer's update, possibly of older weights; return the new weights [P]."""
        with self._turns.ordered():
            self._weights += update
            return self._weights.clone()

    def average_with(self, peer_weights: Tensor) -> Tensor:
        """Move half of the way towards the learner that requests the averaging.

        Args:
          peer_weights: [P] weights of that learner at its request.

        Returns:
          [P]: (`peer_weights` - this learner's weights) / 2, which the peer has to subtract by
            `apply_correction`.
        """
        with self._turns.ordered():
            # x_j += (x_i - x_j) / 2 here, x_i -= (x_i - x_j) / 2 at the peer: both become their
            # mean, and x_i + x_j does not change (Lian et al. 2018).
            correction = (peer_weights - self._weights) / 2
            self._weights += correction
            self.averagings += 1
        return correction

    def apply_correction(self, correction: Tensor) -> None:
        """Complete an averaging: subtract what the peer's `average_with` returned."""
        with self._turns.ordered():
            self._weights -= correction
            self.averagings += 1


def delay_by_one_update(weights: Tensor, updated_weights: Tensor, mean: Tensor) -> Tensor:
    """Return the next weights [P]: the mean computed during a step, plus the step's update.

    Args:
      weights: [P], the weights at which the gradient was computed.
      updated_weights: [P], the same weights after the optimizer's step.
      mean: [P], the mean over all learners of their `weights`.
    """
    # x_i(t + 1) = 1/K sum_j x_j(t) - rate * gradient(x_i(t))
    return mean + (updated_weights - weights)


class NeighbourAverager:
    """Averages a learner's weights with its neighbours' in background threads.

    A learner with an even index requests an averaging from one of its partners once per step, as
    soon as its previous request has completed. A learner with an odd index answers requests in
    threads that do not depend on how fast its worker computes. So no learner waits for a slow
    worker, and no deadlock is possible. These threads copy weights from and to a GPU alongside the
    training's own work; the averaging itself happens on the GPU.

    All ranks must construct one at the same time; ranks that hold no learner pass learner=None.

    Args:
      exchange: the point-to-point connection for the weights.
      learner: the weights of this rank; None where the rank holds no learner.
      ranks: rank of each learner.
      index: this learner's index in `ranks`.
      pattern: which learners average with each other.
      make_copies: makes the `HostCopies` of one thread.
    """

    def __init__(
        self,
        exchange: PointToPoint,
        learner: Learner | None,
        ranks: Sequence[int],
        index: int,
        pattern: Pattern,
        make_copies: Callable[[], HostCopies],
    ) -> None:
        self._exchange = exchange
        self._make_copies = make_copies
        self._copies: list[HostCopies] = []
        self._learner = learner
        self._ranks = ranks
        self._index = index
        self._pattern = pattern
        self._requested = threading.Event()
        self._closing = False
        self._averaging = threading.Lock()
        self._servers: list[int] = []
        self.asked = 0
        """Number of averagings that this learner has requested."""
        if learner is None:
            return
        neighbours = [ranks[peer] for peer in partners(index, len(ranks), pattern)]
        if is_active(index):
            self._servers = neighbours
            copies = self._host_copies()
            exchange.start(lambda: self._average(copies))
        else:
            exchange.serve(neighbours, self._answering)

    @property
    def host_copies(self) -> int:
        """Number of copies to the host, of models or of half the difference of two models."""
        return sum(copies.count for copies in self._copies)

    def wake(self) -> None:
        """Request an averaging; raise the exception of an earlier one that failed."""
        self._exchange.check()
        self._requested.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context inside which no averaging is requested."""
        with self._averaging:
            yield

    def close(self, failed: bool = False) -> None:
        """End the threads (on every rank); after a failure, do not wait for the other ranks."""
        with nullcontext() if failed else self._averaging:
            self._closing = True
        self._requested.set()
        if not failed:
            self._exchange.close(self._servers)

    def _host_copies(self) -> HostCopies:
        """Make a `HostCopies` for one thread; `host_copies` includes its copies."""
        self._copies.append(self._make_copies())
        return self._copies[-1]

    def _answering(self) -> Answer:
        """Return the function that answers a neighbour's requests."""
        copies, learner = self._host_copies(), self._learner

        def answer(peer_weights: Tensor, _: float) -> Tensor:
            with copies.stream():
                return copies.to_host(learner.average_with(copies.to_device(peer_weights)))

        return answer

    def _average(self, copies: HostCopies) -> None:
        """Average with a neighbour at every request, until `close`; runs in a thread."""
        while self._requested.wait():
            with self._averaging:
                self._requested.clear()
                if self._closing:
                    return
                if not self._servers:
                    continue
                peer = partner(self._index, len(self._ranks), self._pattern, self.asked)
                # Send x_i, receive (x_i - x_j) / 2 and subtract it. Steps that the optimizer makes
                # in between are not lost, as the correction is relative.
                with copies.stream():
                    weights = copies.to_host(self._learner.weights())
                    correction = self._exchange.request(self._ranks[peer], weights)
                    self._learner.apply_correction(copies.to_device(correction))
                self.asked += 1


class Adpsgd(Asynchronous):
    """Asynchronous decentralised SGD (B1; Lian et al. 2018), with three patterns from IBM.

    Every learner updates its own model at each step; each worker is a learner. Meanwhile the model
    is averaged with that of a neighbour (`NeighbourAverager`) or, with delay by one, with those of
    all learners, which then keep in step (`delay_by_one_update`). The model that is validated and
    stored after an epoch is the mean of all models (the consensus model), from which all continue.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._delayed = config.adpsgd.pattern == "delayed"
        self._averager: NeighbourAverager | None = None
        self._copied = 0  # models copied to the host before the last start

    @property
    def host_copies(self) -> int:
        """Number of times that this worker has copied a model to the host to exchange it."""
        return self._copied + (0 if self._averager is None else self._averager.host_copies)

    def learners(self) -> Sequence[int]:
        """Return the ranks whose models are averaged with others: here all ranks."""
        return range(self.workers.world_size)

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
        super().start(model, optimizer)
        self._copied = 0
        self._learner: Learner | None = None
        """The learner whose weights this rank holds, on the model's device; None if it holds
        none."""
        self._before_step: Tensor
        """[P] weights of the learner before the step."""
        ranks = self.learners()
        device = self.flat.parameters[0].device
        streams = streams_of(device)
        if self.workers.rank in ranks:
            self._learner = Learner(self.flat.weights(), streams)
            self._before_step = self._learner.weights()
        self._mean: Any = None  # delay by one: the all-reduce in progress
        self._group = self.workers.new_group(ranks)
        self._averager = None
        if self._delayed:
            self._begin_mean()
        elif len(ranks) > 1:
            self._exchange = PointToPoint(self.workers, len(self.flat), streams)
            index = ranks.index(self.workers.rank) if self._learner is not None else 0
            self._averager = NeighbourAverager(
                self._exchange,
                self._learner,
                ranks,
                index,
                self.config.adpsgd.pattern,
                lambda: HostCopies(streams, len(self.flat), device),
            )

    def batches(
        self,
        data: BatchSource,
        epoch: int,
        start: int,
        prefetch: Prefetch,
        may_share: bool = True,
    ) -> Iterator[Any]:
        """Yield this rank's batches; with delay by one, workers keep in step and share none."""
        return super().batches(data, epoch, start, prefetch, may_share and not self._delayed)

    def agree_on_checkpoint(self, due: bool) -> bool:
        """Decide on a checkpoint; with delay by one as the synchronous methods do."""
        if not self._delayed:
            return super().agree_on_checkpoint(due)
        agreed = Distributed.agree_on_checkpoint(self, due)
        if agreed:
            self.workers.leave_steps()
        return agreed

    def can_checkpoint(self) -> bool:
        """Implement `Strategy.can_checkpoint`: with delay by one after every step."""
        return self._delayed or super().can_checkpoint()

    def stop(self, failed: bool = False) -> None:
        """Implement `Strategy.stop`."""
        super().stop(failed)
        if self._averager is not None:
            self._copied = self.host_copies
            averager, self._averager = self._averager, None
            averager.close(failed)

    def after_step(self) -> None:
        """Add the update to the learner, then load the averaged weights."""
        super().after_step()
        if self._learner is not None and len(self.learners()) > 1:
            self._mix()
            self.flat.set_weights(self._before_step)

    def end_epoch(self) -> None:
        """Implement `Strategy.end_epoch`: all workers continue from the mean of all models."""
        super().end_epoch()
        with self._quiet():
            self._take(self._average())

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Implement `Strategy.consensus`: the mean of all models."""
        local = self.flat.weights()
        with self._quiet():
            mean = self._average()
        self.flat.set_weights(mean)
        try:
            with super().consensus():
                yield
        finally:
            self.flat.set_weights(local)

    def rank_state_dict(self) -> dict[str, Any]:
        """Return the weights, the optimizer state, and the numbers of averagings and requests."""
        with self._quiet():
            alone = self._learner is None or len(self.learners()) == 1  # then nothing was mixed
            weights = self.flat.weights() if alone else self._learner.weights()
        optimizer = self.optimizer.state_dict()
        state = {**super().rank_state_dict(), "weights": weights, "optimizer": optimizer}
        state["host_copies"] = self.host_copies
        if self._averager is not None:
            averagings = 0 if self._learner is None else self._learner.averagings
            state["averagings"] = [averagings, self._averager.asked]
        return state

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Restore the mean of `rank_states`' weights, and the first one's optimizer state."""
        super().load_state_dict(state, rank_states)
        with self._quiet():
            weights = self.flat.weights()
            if rank_states:
                self.optimizer.load_state_dict(rank_states[0]["optimizer"])
                self._copied = rank_states[0]["host_copies"]
                if self._averager is not None and self._learner is not None:
                    self._learner.averagings, self._averager.asked = rank_states[0]["averagings"]
                # This rank may continue several ranks: [ranks, P] to their mean [P].
                weights = torch.stack([rank_state["weights"] for rank_state in rank_states]).mean(
                    dim=0
                )
            self._take(weights)
        # `_take` may begin a mean; the checkpoint has counted its bytes already.
        if rank_states:
            self.workers.sent = rank_states[0]["counts"]["sent"]

    def report(self) -> dict[str, float]:
        """Add `averagings` with a neighbour, and `host_copies`, both per step of this worker."""
        steps = max(1, self.steps)
        statistics = {**super().report(), "host_copies": self.host_copies / steps}
        if self._averager is not None:
            averagings = 0 if self._learner is None else self._learner.averagings
            statistics["averagings"] = averagings / steps
        return statistics

    def _mix(self) -> None:
        """Add the optimizer's update to the learner; set `_before_step` for the next step."""
        updated = self.flat.weights()
        if self._delayed:
            mean = self._finished_mean()
            self._before_step = delay_by_one_update(self._before_step, updated, mean)
            self._learner.set_weights(self._before_step)
            self._begin_mean()
        else:
            # Averagings may have moved the learner meanwhile: add the update, not the weights.
            self._before_step = self._learner.add(updated - self._before_step)
            self._averager.wake()

    def _take(self, weights: Tensor) -> None:
        """Replace the weights, while no averaging is in progress on any rank (collective)."""
        if self._delayed:  # wait for the mean that is under way; nothing uses it
            self._finished_mean()
        if self._learner is not None:
            self._learner.set_weights(weights)
            self._before_step = self._learner.weights()
        self.flat.set_weights(weights)
        self.workers.all_gather_object(None)  # barrier, before any rank averages with these weights
        if self._delayed:
            self._begin_mean()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Return a context without averagings; it begins when all have ended (collective)."""
        self.barrier()
        paused = nullcontext() if self._averager is None else self._averager.paused()
        with paused:
            self.workers.all_gather_object(None)
            yield

    def _average(self) -> Tensor:
        """Return the mean of all models, while no averaging is in progress (collective).

        Ranks that hold no learner return their own weights.
        """
        if self._learner is None or len(self.learners()) == 1:
            return self.flat.weights()
        # 1/K sum_i x_i over the K learners, the consensus model
        weights = self._learner.weights()
        return self.workers.all_reduce(weights, self._group).wait() / len(self.learners())

    def _begin_mean(self) -> None:
        """Start the all-reduce of the learners' weights, for `_finished_mean`."""
        if self._learner is not None:
            self._mean = self.workers.all_reduce(self._learner.weights(), self._group)

    def _finished_mean(self) -> Tensor | None:
        """Wait for the mean of the learners' weights; return None on a rank without a learner."""
        return None if self._learner is None else self._mean.wait() / len(self.learners())


class HierarchicalAdpsgd(Adpsgd):
    """ADPSGD whose learners are nodes of several workers, the super-learners (B3).

    Within a node every step uses the gradient of the mean loss over its workers' batches (S-SGD),
    so that they take the same step. Only the first worker of each node copies the model to the
    host and averages it with other nodes' models in the background. This worker then broadcasts
    the result to its node over the links between devices. So a host copies, sends and averages one
    model, not one per worker as in ADPSGD (B6). Nodes take batches at their own pace. With a single
    node, the method is S-SGD.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`.

        Raises:
          ParallelError: the number of workers is not a multiple of the workers per node.
        """
        rank, world_size = self.workers.rank, self.workers.world_size
        self._size = self.config.adpsgd.workers_per_node or self.workers.local_world_size
        if world_size % self._size:
            raise ParallelError(
                f"{world_size} workers cannot be divided into nodes of {self._size} workers. Start "
                "the same number of workers on each host, or set "
                "`parallel.adpsgd.workers_per_node`"
            )
        # Node k has the ranks k * size to (k + 1) * size - 1. All ranks create all groups, since
        # that is collective; each keeps its own node's.
        number = rank // self._size
        nodes = [range(i, i + self._size) for i in self.learners()]
        self._inside = [self.workers.new_group(node) for node in nodes][number]
        control = self._inside
        if self.workers.cuda:
            control = [self.workers.new_group(node, "gloo") for node in nodes][number]
        self._node = Node(number, len(nodes), self._size, control)
        super().start(model, optimizer)
        self._buckets = GradientBuckets(self.flat.parameters, self.workers, self._inside)

    def learners(self) -> Sequence[int]:
        """Return the ranks whose models are averaged: the first worker of each node."""
        return range(0, self.workers.world_size, self._size)

    def node(self) -> Node:
        """Implement `Asynchronous.node`."""
        return self._node

    def stop(self, failed: bool = False) -> None:
        """Implement `Strategy.stop`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()
        super().stop(failed)

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """Implement `Strategy.backward`: as in S-SGD, within the node."""
        self._buckets.backward(loss, weight)

    def after_step(self) -> None:
        """Mix the models in the node's first worker, then copy the result to its other workers."""
        super().after_step()
        if len(self.learners()) > 1:
            self._pass_on(None if self._learner is None else self._before_step)

    def report(self) -> dict[str, float]:
        """Add `bytes_between_per_step`, the bytes that this worker sends to other nodes."""
        between = 0 if self._exchange is None else self._exchange.sent
        return {**super().report(), "bytes_between_per_step": between / max(1, self.steps)}

    def _take(self, weights: Tensor) -> None:
        """Replace the weights by those of the node's first worker, see `Adpsgd._take`."""
        super()._take(weights)
        self._pass_on(None if self._learner is None else weights)

    def _average(self) -> Tensor:
        """Return the mean of all models on every rank, see `Adpsgd._average`."""
        mean = super()._average()
        return self._pass_on(None if self._learner is None else mean)

    def _pass_on(self, weights: Tensor | None) -> Tensor:
        """Broadcast the weights of the node's first worker to the node's other workers."""
        passed = torch.empty(len(self.flat), device=self.flat.parameters[0].device)
        if weights is not None:
            passed.copy_(weights)
        self.workers.broadcast(passed, self._node.leader, self._inside)
        if weights is None:
            self.flat.set_weights(passed)
        return passed
