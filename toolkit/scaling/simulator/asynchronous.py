"""Simulated asynchronous methods: ADPSGD, H-ADPSGD, A-SGD."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from toolkit.parallel.learner import Learner, ParameterServer
from toolkit.parallel.topology import Pattern, consensus_distance, is_active, partner, partners
from toolkit.parallel.work_sharing import Shares, Steps
from toolkit.scaling.simulator.network import NetworkCards
from toolkit.scaling.simulator.optimizer import make_optimizer
from toolkit.scaling.simulator.run import Outcome, Run


class EventQueue:
    """Event queue of a discrete-event simulation, in virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()  # order of simultaneous events

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action."""
        heapq.heappush(self._due, (time, next(self._order), action))

    def run(self) -> None:
        """Run all actions in order of time, until none is left."""
        while self._due:
            self.now, _, action = heapq.heappop(self._due)
            action()


def shared_steps(run: Run, nodes: int) -> list[Shares]:
    """Return the steps as each node sees them: shared as in `SharedBatches`.

    Minibatches that are too few for all workers are dropped, as by the training loop.
    """
    counters: Counter[str] = Counter()

    def add(name: str, number: int) -> int:
        counters[name] += number
        return counters[name]

    parts = [Steps(node, 0, run.scenario.minibatches // run.workers) for node in range(nodes)]
    return [Shares(add, node, parts) for node in range(nodes)]


class Adpsgd:
    """ADPSGD between groups of workers that average gradients at every step (B1, B3).

    Within a group gradients are averaged during the backward pass. After every step the first
    worker of a group broadcasts the group's model, which averaging with other groups may have
    changed; the next step begins when all workers of the group have it.

    Args:
      run: the training.
      pattern: which learners average with each other.
      group: number of workers of a learner; 1, or those of a host.
    """

    def __init__(self, run: Run, pattern: Pattern, group: int) -> None:
        self._run, self._pattern, self._group = run, pattern, group
        self._clock, self._cards = EventQueue(), NetworkCards(run.network)
        self._count = -(-run.workers // group)
        if self._count > 1 and run.workers % group:
            raise ValueError(f"{run.workers} workers are not whole nodes of {group}")
        self._shares = shared_steps(run, self._count)
        initial = run.task.initial() if run.task else torch.zeros(1)
        self._learners = [Learner(initial) for _ in range(self._count)]
        self._optimizers = [run.optimizers(1) for _ in range(self._count)] if run.task else []
        self._averagings = [0] * self._count
        self._busy = [False] * self._count
        self._requested = [False] * self._count
        self._finished = 0.0

    def simulate(self) -> Outcome:
        """Train to the end; the result is the mean of the models."""
        run, outcome = self._run, self._run.outcome
        for number in range(self._count):
            self._begin(number, self._learners[number].weights())
        self._clock.run()
        models = torch.stack([learner.weights() for learner in self._learners])
        outcome.seconds = self._finished
        outcome.seconds += run.network.all_reduce(run.workers, run.scenario.model_bytes)
        outcome.between += self._cards.carried
        outcome.averagings = sum(learner.averagings for learner in self._learners)
        mean = models.mean(dim=0)
        if run.task is None:
            return outcome
        outcome.spread = consensus_distance(models) / float(mean.norm())
        return run.finish(mean)

    def _begin(self, number: int, weights: torch.Tensor) -> None:
        """Begin a step of a learner at weights [P], if there is one left."""
        run, scenario = self._run, self._run.scenario
        members = range(number * self._group, min((number + 1) * self._group, run.workers))
        rate = scenario.rate_at(run.done, run.workers)
        taken = self._shares[number].take()
        if taken is None:
            return
        run.take(len(members))
        first = taken.first * run.workers + taken.owner * self._group
        minibatches = list(range(first, first + len(members)))
        times = run.draw(members)
        size, others = scenario.model_bytes, len(members) - 1
        reduction = run.network.all_reduce(len(members), size)
        broadcast = run.network.broadcast(len(members), size) if self._count > 1 else 0.0
        run.outcome.sent += (2 + (self._count > 1)) * others * size
        run.outcome.computed += times.sum()
        run.outcome.communicated += (reduction + broadcast) * len(members)

        def end() -> None:
            after = weights
            if run.task:
                gradients = run.task.gradients(weights[None], minibatches, scenario.frames)
                mean = gradients.mean(dim=0, keepdim=True)
                update = self._optimizers[number].step(weights[None], mean, rate)[0] - weights
                after = self._learners[number].add(update)
                if run.due:
                    models = [learner.weights() for learner in self._learners]
                    run.track(torch.stack(models).mean(dim=0))
            copied = self._clock.now
            if scenario.host_rate and self._count > 1:
                copied = self._cards.copy(copied, members[0], size / scenario.host_rate)
            self._finished = max(self._finished, copied + broadcast)
            self._clock.at(copied + broadcast, lambda: self._begin(number, after))
            self._requested[number] = True
            self._average(number)

        step = times.max() + run.exposed(reduction, times.max())
        self._clock.at(self._clock.now + step, end)

    def _average(self, number: int) -> None:
        """Begin an averaging if requested, unless one is in progress or there is no partner."""
        neighbours = partners(number, self._count, self._pattern)
        if not (is_active(number) and neighbours and self._requested[number]) or self._busy[number]:
            return
        self._requested[number], self._busy[number] = False, True
        other = partner(number, self._count, self._pattern, self._averagings[number])
        self._averagings[number] += 1
        began, size = self._clock.now, self._run.scenario.model_bytes
        ranks = number * self._group, other * self._group
        asking, asked = self._learners[number], self._learners[other]
        weights = asking.weights()

        def arrive() -> None:
            half = asked.answer(weights)
            back = self._cards.send(self._clock.now, ranks[1], ranks[0], size)

            def finish() -> None:
                asking.finish(half)
                self._run.outcome.communicated += 2 * (self._clock.now - began)
                self._run.outcome.sent += 2 * size
                self._busy[number] = False
                self._average(number)

            self._clock.at(back, finish)

        self._clock.at(self._cards.send(began, *ranks, size), arrive)


def asgd(run: Run) -> Outcome:
    """A-SGD: workers push gradients to the parameter server, worker 0, and go on at once (A19)."""
    scenario, task, outcome = run.scenario, run.task, run.outcome
    clock, cards = EventQueue(), NetworkCards(run.network)
    shares = shared_steps(run, run.workers)
    initial = task.initial() if task else torch.zeros(1)
    optimizer = make_optimizer(scenario.optimizer, [nn.Parameter(initial.clone())])
    server = ParameterServer(initial, optimizer, parts=run.workers)

    def begin(worker: int, weights: torch.Tensor) -> None:
        rate = scenario.rate_at(run.done, run.workers)
        taken = shares[worker].take()
        if taken is None:
            return
        run.take(1)
        minibatches = [taken.first * run.workers + taken.owner]
        seconds = float(run.draw([worker])[0])
        outcome.computed += seconds

        def end() -> None:
            began = clock.now

            def arrive() -> None:
                reply = weights
                if task:
                    gradient = task.gradients(weights[None], minibatches, scenario.frames)[0]
                    reply = server.add(gradient, rate)
                    run.track(reply)
                back = clock.now
                if worker:
                    back = cards.send(back, 0, worker, scenario.model_bytes)
                    outcome.sent += 2 * scenario.model_bytes
                    outcome.communicated += back - began
                outcome.seconds = max(outcome.seconds, back)
                clock.at(back, lambda: begin(worker, reply))

            there = cards.send(began, worker, 0, scenario.model_bytes) if worker else began
            clock.at(there, arrive)

        clock.at(clock.now + seconds, end)

    for worker in range(run.workers):
        begin(worker, server.weights())
    clock.run()
    server.flush()
    outcome.between = cards.carried
    return run.finish(server.weights())
