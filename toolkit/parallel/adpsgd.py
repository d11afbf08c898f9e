"""ADPSGD: each worker averages its model with a neighbour's while it computes (B1)."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.asynchronous import Asynchronous
from toolkit.parallel.batch import DataSource
from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.exchange import Exchange
from toolkit.parallel.launch import Workers
from toolkit.parallel.learner import Learner, delayed
from toolkit.parallel.shared import SharedBatches
from toolkit.parallel.topology import Pattern, is_active, partner, partners


class Neighbours:
    """Averages a learner with others in the background.

    A learner of even number asks one of its partners once per step, as soon as the averaging
    before is through; those of odd number answer, in threads that do not depend on how fast their
    worker computes. So nobody waits for a slow worker, and nobody in a circle.

    All ranks must make one at the same time; those that are no learner, with learner None.

    Args:
      exchange: of the weights.
      learner: the weights of this rank.
      ranks: rank of each learner.
      number: this rank's number among them.
      pattern: who meets whom.
    """

    def __init__(
        self,
        exchange: Exchange,
        learner: Learner | None,
        ranks: Sequence[int],
        number: int,
        pattern: Pattern,
    ) -> None:
        self._exchange = exchange
        self._learner = learner
        self._ranks = ranks
        self._number = number
        self._pattern = pattern
        self._wanted = threading.Event()
        self._closing = False
        self._averaging = threading.Lock()
        self._servers: list[int] = []
        self.asked = 0
        """How often this learner has asked for an averaging."""
        if learner is None:
            return
        around = [ranks[other] for other in partners(number, len(ranks), pattern)]
        if is_active(number):
            self._servers = around
            exchange.start(self._average)
        else:
            exchange.serve(around, lambda asking, _: learner.answer(asking))

    def wake(self) -> None:
        """Ask for an averaging; raise what went wrong in an earlier one."""
        self._exchange.check()
        self._wanted.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold back averagings that this learner would ask for."""
        with self._averaging:
            yield

    def close(self, failed: bool = False) -> None:
        """End the threads; all ranks must. After a failure nobody is waited for."""
        with nullcontext() if failed else self._averaging:
            self._closing = True
        self._wanted.set()
        if not failed:
            self._exchange.close(self._servers)

    def _average(self) -> None:
        while self._wanted.wait():
            with self._averaging:
                self._wanted.clear()
                if self._closing:
                    return
                if not self._servers:
                    continue
                other = partner(self._number, len(self._ranks), self._pattern, self.asked)
                half = self._exchange.request(self._ranks[other], self._learner.weights())
                self._learner.finish(half)
                self.asked += 1


class Adpsgd(Asynchronous):
    """Asynchronous decentralised SGD (B1; Lian et al. 2018, three patterns of IBM's).

    A worker's own model takes the update of every step and is averaged with a neighbour's meanwhile
    (`Neighbours`), or with all others' at the same time (`delayed`, where all keep step with each
    other). The model that is validated and stored is the mean of all; at the end of an epoch, to
    which workers may come with different numbers of steps, all go on from it. Between the ends of
    epochs there are no checkpoints, since the workers are not at the same step.
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._delayed = config.adpsgd.pattern == "delayed"
        self._neighbours: Neighbours | None = None

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._learner = Learner(self.flat.weights().cpu())
        self._taken = self._learner.weights()  # what the model held before the step
        self._mean: Any = None  # delayed: the mean under way
        self._group = self.workers.new_group(range(self.workers.ranks), "gloo")
        self._neighbours = None if self._delayed else self._make_neighbours()
        if self._delayed:
            self._begin_mean()

    def share(self, data: DataSource) -> DataSource:
        """See `Strategy`: fast workers take over batches of slow ones, unless all keep step."""
        return data if self._delayed else SharedBatches(data)

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        if self._neighbours is not None:
            neighbours, self._neighbours = self._neighbours, None
            neighbours.close(failed)

    def after_step(self) -> None:
        """See `Strategy`: add the update to the learner, and take over what averaging has done."""
        super().after_step()
        mixed = self._mix(self.flat.weights().cpu())
        if mixed is not None:
            self.flat.set_weights(mixed)

    def end_epoch(self) -> None:
        """See `Strategy`: all go on from the mean of all models."""
        super().end_epoch()
        with self._quiet():
            self._take(self._average())

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """See `Strategy`: the mean of all models."""
        own = self.flat.weights()
        with self._quiet():
            mean = self._average()
        self.flat.set_weights(mean)
        try:
            with super().consensus():
                yield
        finally:
            self.flat.set_weights(own)

    def own_state(self) -> dict[str, Any]:
        """See `Strategy`: the weights, the optimizer's state, how often averaged and asked."""
        optimizer = self.optimizer.state_dict()
        own = {**super().own_state(), "weights": self._learner.weights(), "optimizer": optimizer}
        if self._neighbours is not None:
            own["averagings"] = [self._learner.averagings, self._neighbours.asked]
        return own

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`: of several workers' weights the mean, of their optimizers the first."""
        super().load_state(state, own)
        with self._quiet():
            if own:
                self.optimizer.load_state_dict(own[0]["optimizer"])
                if self._neighbours is not None:
                    self._learner.averagings, self._neighbours.asked = own[0]["averagings"]
                weights = torch.stack([held["weights"] for held in own]).mean(dim=0)
            else:
                weights = self.flat.weights().cpu()
            self._take(weights)

    def report(self) -> dict[str, float]:
        """See `Strategy`; `averagings`: with a neighbour, per step."""
        if self._neighbours is None:
            return super().report()
        return {**super().report(), "averagings": self._learner.averagings / max(1, self.steps)}

    def _make_neighbours(self) -> Neighbours | None:
        """Begin to average in the background (all)."""
        ranks = range(self.workers.ranks)
        self._exchange = Exchange(self.workers, len(self.flat))
        pattern = self.config.adpsgd.pattern
        return Neighbours(self._exchange, self._learner, ranks, self.workers.rank, pattern)

    def _mix(self, now: Tensor) -> Tensor | None:
        """Return what the model's weights shall be, now that the optimizer has made them `now`."""
        if self._delayed:
            self._taken = delayed(self._taken, now, self._finished_mean())
            self._learner.set_weights(self._taken)
            self._begin_mean()
        else:
            self._taken = self._learner.add(now - self._taken)
            self._neighbours.wake()
        return self._taken

    def _take(self, weights: Tensor) -> None:
        """Go on from other weights, while nothing is being averaged anywhere (all)."""
        if self._delayed:
            self._finished_mean()
        self._learner.set_weights(weights)
        self._taken = self._learner.weights()
        self.flat.set_weights(self._taken)
        self.workers.gather_plain(None)  # before anybody averages with them
        if self._delayed:
            self._begin_mean()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Wait for all workers, however slow, and for the averagings under way (all)."""
        self.barrier()
        paused = nullcontext() if self._neighbours is None else self._neighbours.paused()
        with paused:
            self.workers.gather_plain(None)
            yield

    def _average(self) -> Tensor:
        """Return the mean of all models, while nothing is being averaged anywhere (all)."""
        weights = self._learner.weights()
        return self.workers.add_up(weights, self._group).wait() / self.workers.ranks

    def _begin_mean(self) -> None:
        self._mean = self.workers.add_up(self._learner.weights(), self._group)

    def _finished_mean(self) -> Tensor:
        return self._mean.wait() / self.workers.ranks
