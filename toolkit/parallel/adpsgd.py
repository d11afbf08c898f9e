"""ADPSGD: each worker averages its model with a neighbour's while it computes (B1)."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.asynchronous import Asynchronous
from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.learner import Learner, delay_by_one_update
from toolkit.parallel.point_to_point import Answer, PointToPoint
from toolkit.parallel.process_group import Workers
from toolkit.parallel.strategy import BatchSource, Prefetch
from toolkit.parallel.streams import Channel, streams_of
from toolkit.parallel.topology import Pattern, is_active, partner, partners


class NeighbourAverager:
    """Averages a learner's weights with its neighbours' in background threads.

    A learner with an even index requests an averaging from one of its partners once per step, as
    soon as its previous request has completed. A learner with an odd index answers requests in
    threads that do not depend on how fast its worker computes. So no learner waits for a slow
    worker, and no deadlock is possible. These threads copy weights from and to a GPU, beside the
    training's own work; the averaging itself happens on the GPU.

    All ranks must construct one at the same time; ranks that hold no learner pass learner=None.

    Args:
      exchange: the point-to-point channel for the weights.
      learner: the weights of this rank; None where the rank holds no learner.
      ranks: rank of each learner.
      index: this learner's index in `ranks`.
      pattern: which learners average with each other.
      make_channel: makes the copies between device and host of one thread.
    """

    def __init__(
        self,
        exchange: PointToPoint,
        learner: Learner | None,
        ranks: Sequence[int],
        index: int,
        pattern: Pattern,
        make_channel: Callable[[], Channel],
    ) -> None:
        self._exchange = exchange
        self._make_channel = make_channel
        self._channels: list[Channel] = []
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
        neighbours = [ranks[other] for other in partners(index, len(ranks), pattern)]
        if is_active(index):
            self._servers = neighbours
            channel = self._channel()
            exchange.start(lambda: self._average(channel))
        else:
            exchange.serve(neighbours, self._answering)

    @property
    def host_copies(self) -> int:
        """How often a model, or half of a difference, was brought to the host."""
        return sum(channel.copies for channel in self._channels)

    def wake(self) -> None:
        """Request an averaging; raise the exception of an earlier one that failed."""
        self._exchange.check()
        self._requested.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Request no averaging inside this context."""
        with self._averaging:
            yield

    def close(self, failed: bool = False) -> None:
        """End the threads (on every rank); after a failure without waiting for other ranks."""
        with nullcontext() if failed else self._averaging:
            self._closing = True
        self._requested.set()
        if not failed:
            self._exchange.close(self._servers)

    def _channel(self) -> Channel:
        self._channels.append(self._make_channel())
        return self._channels[-1]

    def _answering(self) -> Answer:
        """Make what answers the requests of one neighbour."""
        channel, learner = self._channel(), self._learner

        def answer(asking: Tensor, _: float) -> Tensor:
            with channel.stream():
                return channel.to_host(learner.answer(channel.to_device(asking)))

        return answer

    def _average(self, channel: Channel) -> None:
        while self._requested.wait():
            with self._averaging:
                self._requested.clear()
                if self._closing:
                    return
                if not self._servers:
                    continue
                other = partner(self._index, len(self._ranks), self._pattern, self.asked)
                with channel.stream():
                    mine = channel.to_host(self._learner.weights())
                    half = self._exchange.request(self._ranks[other], mine)
                    self._learner.finish(channel.to_device(half))
                self.asked += 1


class Adpsgd(Asynchronous):
    """Asynchronous decentralised SGD (B1; Lian et al. 2018, three patterns of IBM's).

    Every learner updates its own model at each step; here each worker is one. Meanwhile the model
    is averaged with that of a neighbour (`NeighbourAverager`) or, with delay by one, with those of
    all learners, which then keep in step (`delay_by_one_update`). The model that is validated and
    stored after an epoch is the mean of all models (the consensus model), from which all continue.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._delayed = config.adpsgd.pattern == "delayed"
        self._averager: NeighbourAverager | None = None
        self._copied = 0  # models brought to the host before the last start

    @property
    def host_copies(self) -> int:
        """How often this worker has brought a model to the host's memory, to exchange it."""
        return self._copied + (0 if self._averager is None else self._averager.host_copies)

    def learners(self) -> Sequence[int]:
        """Return the ranks that hold a model which is averaged with others; here all."""
        return range(self.workers.world_size)

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._copied = 0
        self._learner: Learner | None = None
        """The learner of which this rank holds the model, if any; on the model's device."""
        self._taken: Tensor
        """The learner's weights before the step."""
        ranks = self.learners()
        device = self.flat.parameters[0].device
        streams = streams_of(device)
        if self.workers.rank in ranks:
            self._learner = Learner(self.flat.weights(), streams)
            self._taken = self._learner.weights()
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
                lambda: Channel(streams, len(self.flat), device),
            )

    def batches(
        self,
        data: BatchSource,
        epoch: int,
        start: int,
        prefetch: Prefetch,
        may_share: bool = True,
    ) -> Iterator[Any]:
        """See `Strategy`: with delay by one all workers keep in step, and share no batches."""
        return super().batches(data, epoch, start, prefetch, may_share and not self._delayed)

    def agree_on_checkpoint(self, due: bool) -> bool:
        """See `Strategy`: with delay by one, as in synchronous methods."""
        if not self._delayed:
            return super().agree_on_checkpoint(due)
        agreed = Distributed.agree_on_checkpoint(self, due)
        if agreed:
            self.workers.leave_steps()
        return agreed

    def can_checkpoint(self) -> bool:
        """See `Strategy`: with delay by one after every step."""
        return self._delayed or super().can_checkpoint()

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        if self._averager is not None:
            self._copied = self.host_copies
            averager, self._averager = self._averager, None
            averager.close(failed)

    def after_step(self) -> None:
        """See `Strategy`: add the update to the learner, then load the averaged weights."""
        super().after_step()
        if self._learner is not None and len(self.learners()) > 1:
            self._mix()
            self.flat.set_weights(self._taken)

    def end_epoch(self) -> None:
        """See `Strategy`: all workers continue from the mean of all models."""
        super().end_epoch()
        with self._quiet():
            self._take(self._average())

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """See `Strategy`: the mean of all models."""
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
        """See `Strategy`: weights, optimizer state, numbers of averagings and of requests."""
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
        """See `Strategy`: takes the mean of the stored weights, and the first optimizer state."""
        super().load_state_dict(state, rank_states)
        with self._quiet():
            weights = self.flat.weights()
            if rank_states:
                self.optimizer.load_state_dict(rank_states[0]["optimizer"])
                self._copied = rank_states[0].get("host_copies", 0)  # not in version 0.1
                if self._averager is not None and self._learner is not None:
                    self._learner.averagings, self._averager.asked = rank_states[0]["averagings"]
                weights = torch.stack([rank_state["weights"] for rank_state in rank_states]).mean(
                    dim=0
                )
            self._take(weights)
        if rank_states:  # without what is sent to go on: a mean under way was counted before
            self.workers.sent = rank_states[0]["counts"]["sent"]

    def report(self) -> dict[str, float]:
        """See `Strategy`; `averagings`: those with a neighbour, and `host_copies`, per step."""
        steps = max(1, self.steps)
        found = {**super().report(), "host_copies": self.host_copies / steps}
        if self._averager is not None:
            averagings = 0 if self._learner is None else self._learner.averagings
            found["averagings"] = averagings / steps
        return found

    def _mix(self) -> None:
        """Add the optimizer's update to the learner; set `_taken`, from which to continue."""
        now = self.flat.weights()
        if self._delayed:
            self._taken = delay_by_one_update(self._taken, now, self._finished_mean())
            self._learner.set_weights(self._taken)
            self._begin_mean()
        else:
            self._taken = self._learner.add(now - self._taken)
            self._averager.wake()

    def _take(self, weights: Tensor) -> None:
        """Continue from other weights, while no averaging is in progress on any rank (all)."""
        if self._delayed:
            self._finished_mean()
        if self._learner is not None:
            self._learner.set_weights(weights)
            self._taken = self._learner.weights()
        self.flat.set_weights(weights)
        self.workers.all_gather_object(None)  # barrier, before any rank averages with these weights
        if self._delayed:
            self._begin_mean()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Wait for all workers, however slow, and for averagings in progress (all)."""
        self.barrier()
        paused = nullcontext() if self._averager is None else self._averager.paused()
        with paused:
            self.workers.all_gather_object(None)
            yield

    def _average(self) -> Tensor:
        """Return the mean of all models, while no averaging is in progress on any rank (all).

        Ranks that hold no learner return their own weights.
        """
        if self._learner is None or len(self.learners()) == 1:
            return self.flat.weights()
        weights = self._learner.weights()
        return self.workers.all_reduce(weights, self._group).wait() / len(self.learners())

    def _begin_mean(self) -> None:
        if self._learner is not None:
            self._mean = self.workers.all_reduce(self._learner.weights(), self._group)

    def _finished_mean(self) -> Tensor | None:
        return None if self._learner is None else self._mean.wait() / len(self.learners())
