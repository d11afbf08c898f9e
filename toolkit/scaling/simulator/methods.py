"""Simulation of data-parallel training: real updates on a small task, in virtual time.

Every worker's gradients on a small task, and the method's updates from them, are computed for real.
The time is simulated: steps take as long as measured or configured, messages as long as the
modelled network needs for the real model's bytes.

Some methods are newer than the papers' and are simulated before any of them is built for real
processes: reduced precision of exchanged values; momentum correction for threshold compression
(Lin et al. 2018, deep gradient compression); post-local SGD (Lin et al. 2020). Slow momentum
(SlowMo, Wang et al. 2020) is `bmuf` with other settings.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from toolkit.parallel.adpsgd import (
    Learner,
    Pattern,
    consensus_distance,
    delay_by_one_update,
    is_active,
    partner,
    partners,
)
from toolkit.parallel.asgd import ParameterServer
from toolkit.parallel.asynchronous import StepQueue, StepRange
from toolkit.parallel.bmuf import BmufState
from toolkit.parallel.compression import PER_WORD, decode
from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.gtc import GtcState
from toolkit.scaling.simulator.run import (
    MOMENTUM,
    NetworkCards,
    OptimizerName,
    Optimizers,
    Outcome,
    Run,
    Scenario,
    make_optimizer,
)
from toolkit.scaling.simulator.tasks import Task

WORD = 4  # bytes
Rounding = Callable[[Tensor], Tensor]
"""Rounds values [K, P] of K workers to the precision in which they are sent."""


def ssgd(run: Run) -> Outcome:
    """S-SGD: gradients are all-reduced at every step, overlapping with the backward pass."""
    optimizer = run.optimizers(1) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        # [K, P]: the K workers' gradients at the same weights; K is less than N at the last step.
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        return optimizer.step(weights[None], gradients.mean(dim=0, keepdim=True), rate)[0]

    return run.finish(train(run, update, lambda: all_reduce(run), run.exposed))


def scpsgd(run: Run) -> Outcome:
    """SC-PSGD: models of all workers are averaged after every step (B1).

    With plain SGD the models equal those of S-SGD; but communication does not overlap.
    """
    optimizers = run.optimizers(run.workers) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        # [workers, P]: every worker steps from the same weights with its own gradient ...
        models = optimizers.step(weights.repeat(run.workers, 1), gradients, rate)
        # ... then models are averaged; the last step may have fewer minibatches than workers.
        return models[: len(minibatches)].mean(dim=0)

    return run.finish(train(run, update, lambda: all_reduce(run)))


def gtc(run: Run) -> Outcome:
    """GTC: every worker sends the elements beyond the threshold to every other worker (C28)."""
    return compressed(run, GtcState, run.scenario.optimizer)


def compressed(
    run: Run, make: Callable[[int, GtcConfig], GtcState], last: OptimizerName
) -> Outcome:
    """Take synchronous steps with compressed gradients, as `gtc` does.

    Args:
      run: the training.
      make: makes the state of each worker.
      last: optimizer that takes the step, with the mean of the decoded messages.
    """
    scenario, task, workers = run.scenario, run.task, run.workers
    states = [make(task.size, scenario.gtc) for _ in range(workers)] if task else []
    optimizer = Optimizers(last, 1, task.size) if task else None
    sizes = [WORD + _share(scenario) * scenario.model_bytes] * workers
    densities: list[float] = []

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = task.gradients(weights[None], minibatches, scenario.frames)
        # tau is a threshold of sums over the frames of a minibatch (C28), or of their mean.
        scale = scenario.frames if scenario.gtc.grad_scale == "sum" else 1
        messages = [
            state.encode(scale * gradient)
            for state, gradient in zip(states, gradients, strict=False)
        ]
        # The header does not scale with the size of the model.
        sizes[:] = [WORD + (len(x) - 1) / task.size * scenario.model_bytes for x in messages]
        total, density = states[0].decode(messages)
        # An adaptive threshold is the same for all workers.
        for state in states[1:]:
            state.threshold = states[0].threshold
        densities.append(density)
        return optimizer.step(weights[None], total[None] / (scale * len(messages)), rate)[0]

    def exchange() -> tuple[float, float, float]:
        if workers == 1:
            return 0.0, 0.0, 0.0
        seconds = run.network.all_to_all(sizes)
        # Every worker encodes its gradient and decodes all messages, at `codec` bytes per second.
        coded = (scenario.model_bytes + sum(sizes)) / scenario.codec
        return seconds + coded, sum(sizes) * (workers - 1), run.network.bytes_between(sizes)

    outcome = run.finish(train(run, update, exchange))
    outcome.density = sum(densities) / len(densities) if densities else scenario.density
    return outcome


def _share(scenario: Scenario) -> float:
    """Return a message's 32-bit words per element of the gradient, in the shorter format."""
    bitmap = 1 / PER_WORD if scenario.gtc.dense_fallback else 1.0
    return min(scenario.density, bitmap)


def bmuf(run: Run, initial: Tensor | None = None, share: float = 1.0) -> Outcome:
    """BMUF: local training for a block of minibatches, then an update of the global model (C29).

    If too few minibatches are left for all workers, they are dropped, as in the training loop.
    Every worker keeps its optimizer state.

    Args:
      run: the training.
      initial: weights [P] to begin with; by default the task's.
      share: bytes of an exchange, as a share of the model's.
    """
    scenario, task, outcome, workers = run.scenario, run.task, run.outcome, run.workers
    if scenario.optimizer != "sgd" and scenario.bmuf.optimizer != "keep":
        raise ValueError(
            f"`bmuf.optimizer` is {scenario.bmuf.optimizer!r}; only 'keep' can be simulated"
        )
    initial = task.initial() if task and initial is None else initial
    state = BmufState(initial, workers, scenario.bmuf) if task else None
    optimizers = run.optimizers(workers) if task else None
    everyone = range(workers)
    while steps := min(scenario.bmuf.block, run.left // workers):
        # [workers, P]: every worker sets out from the same weights, and works on its own.
        models = state.broadcast_weights.repeat(workers, 1) if state else None
        alone = torch.zeros(workers, dtype=torch.float64).numpy()
        for _ in range(steps):
            rate = scenario.rate_at(run.done)
            minibatches = run.take(workers)
            alone += run.draw(everyone)
            if task:
                gradients = task.gradients(models, minibatches, scenario.frames)
                models = optimizers.step(models, gradients, rate)
        # The block lasts as long as the slowest worker takes. It has fewer minibatches than a real
        # block by the factor `stands_for`, so its exchange counts for as much less.
        once = (value / scenario.stands_for for value in all_reduce(run, share))
        seconds, sent, between = once
        outcome.seconds += alone.max() + seconds
        outcome.computed += alone.sum()
        _count(run, seconds, sent, between)
        if task:
            outcome.spread = _spread(models)
            # Block momentum on the mean of the models: BMUF's filter (C29).
            state.step(models.mean(dim=0))
            run.track(state.global_weights)
    return run.finish(state.global_weights if state else None)


def delay_by_one(run: Run) -> Outcome:
    """ADPSGD with delay by one: local steps from the mean of the previous step's models (B1).

    The all-reduce of the models overlaps with the computation of the gradients; a step takes as
    long as the longer of the two.
    """
    scenario, task, outcome, workers = run.scenario, run.task, run.outcome, run.workers
    models = task.initial().repeat(workers, 1) if task else None
    optimizers = run.optimizers(workers) if task else None
    while run.done < 1:
        rate = scenario.rate_at(run.done, workers)
        minibatches = run.take(workers)
        times = run.draw(range(len(minibatches)))
        seconds, sent, between = all_reduce(run)
        # Communication is hidden behind computation: the longer of the two counts.
        outcome.seconds += max(times.max(), seconds)
        outcome.computed += times.sum()
        _count(run, seconds, sent, between)
        if task:
            # x_{k+1} = mean(x_k) - rate * gradient(x_k): the mean of the old models plus the new
            # steps.
            mean = models.mean(dim=0)
            taking = models[: len(minibatches)]
            gradients = task.gradients(taking, minibatches, scenario.frames)
            models = delay_by_one_update(models, optimizers.step(models, gradients, rate), mean)
            run.track(mean)
    if task:
        outcome.spread = _spread(models)
    return run.finish(models.mean(dim=0) if task else None)


def train(
    run: Run,
    update: Callable[[Tensor, list[int], float], Tensor],
    exchange: Callable[[], tuple[float, float, float]],
    outlasting: Callable[[float, float], float] = lambda seconds, step: seconds,
    until: float = 1.0,
) -> Tensor | None:
    """Take synchronous steps: all workers compute gradients at the same weights.

    Args:
      run: the training.
      update: returns new weights from old ones, the minibatches' indices and the learning rate.
      exchange: returns seconds, bytes sent, and bytes between hosts of a step's communication.
      outlasting: returns the seconds that a communication adds to a step, from both durations.
      until: share of the data after which to stop.

    Returns:
      The weights.
    """
    scenario, task, outcome = run.scenario, run.task, run.outcome
    weights = task.initial() if task else None
    while run.done < until:
        rate = scenario.rate_at(run.done, run.workers)
        minibatches = run.take(run.workers)
        times = run.draw(range(len(minibatches)))
        if task:
            weights = update(weights, minibatches, rate)
        seconds, sent, between = exchange()
        # A synchronous step lasts as long as the slowest worker takes.
        outcome.seconds += times.max() + outlasting(seconds, times.max())
        outcome.computed += times.sum()
        _count(run, seconds, sent, between)
        if task:
            run.track(weights)
    return weights


def all_reduce(run: Run, share: float = 1.0) -> tuple[float, float, float]:
    """Return seconds, bytes sent by all workers and bytes between hosts of an all-reduce.

    Args:
      run: the training.
      share: bytes of the message, as a share of the model's.
    """
    size = share * run.scenario.model_bytes
    workers, hosts = run.workers, run.network.hosts(run.workers)
    seconds = run.network.all_reduce(workers, size)
    # In a ring all-reduce each worker sends 2 (n - 1) / n times the message; all send 2 (n - 1).
    return seconds, 2 * (workers - 1) * size, 2 * (hosts - 1) * size


def _count(run: Run, seconds: float, sent: float, between: float) -> None:
    """Add the time and the bytes of a communication to the outcome."""
    run.outcome.communicated += seconds * run.workers
    run.outcome.sent += sent
    run.outcome.between += between


def _spread(models: Tensor) -> float:
    """Return the consensus distance divided by the norm of the mean model."""
    mean = models.mean(dim=0)
    # sqrt(mean_i ||x_i - mean||^2) / ||mean||.
    return float((models - mean).square().sum(dim=1).mean().sqrt() / mean.norm())


class EventQueue:
    """Event queue of a discrete-event simulation, in virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()  # order of simultaneous events

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action at a time."""
        # Simultaneous events run in the order in which they were scheduled.
        heapq.heappush(self._due, (time, next(self._order), action))

    def run(self) -> None:
        """Run all actions in order of time, until none is left."""
        while self._due:
            self.now, _, action = heapq.heappop(self._due)
            action()


def shared_steps(run: Run, nodes: int) -> list[StepQueue]:
    """Return the steps that each node takes, shared as in `SharedBatches`.

    If too few minibatches are left for all workers, they are dropped, as in the training loop.
    """
    counters: Counter[str] = Counter()

    def add(name: str, number: int) -> int:
        counters[name] += number
        return counters[name]

    parts = [StepRange(node, 0, run.scenario.minibatches // run.workers) for node in range(nodes)]
    return [StepQueue(add, node, parts) for node in range(nodes)]


class Adpsgd:
    """ADPSGD between groups of workers that average gradients at every step (B1, B3).

    Within a group gradients are averaged during the backward pass. After every step the first
    worker of a group broadcasts the group's model, which averaging with other groups may have
    changed; the next step begins when all workers of the group have it.

    Args:
      run: the training.
      pattern: which learners average with each other.
      group: number of workers per learner: 1, or a host's number of workers.
    """

    def __init__(self, run: Run, pattern: Pattern, group: int) -> None:
        self._run, self._pattern, self._group = run, pattern, group
        self._clock, self._cards = EventQueue(), NetworkCards(run.network)
        self._count = -(-run.workers // group)
        if self._count > 1 and run.workers % group:
            raise ValueError(
                f"{run.workers} workers cannot be divided into nodes of {group} workers"
            )
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
        """Begin a step of a learner at weights [P], if a step is left."""
        run, scenario = self._run, self._run.scenario
        members = range(number * self._group, min((number + 1) * self._group, run.workers))
        rate = scenario.rate_at(run.done, run.workers)
        minibatch = self._shares[number].take()
        if minibatch is None:
            return
        run.take(len(members))
        # With N workers in groups of g, step s of node k has the minibatches s N + k g ...
        # s N + (k + 1) g - 1.
        first = minibatch.first * run.workers + minibatch.owner * self._group
        minibatches = list(range(first, first + len(members)))
        times = run.draw(members)
        size, num_other_members = scenario.model_bytes, len(members) - 1
        reduction = run.network.all_reduce(len(members), size)
        broadcast = run.network.broadcast(len(members), size) if self._count > 1 else 0.0
        # A ring all-reduce sends 2 (g - 1) messages in all, the broadcast g - 1.
        run.outcome.sent += (2 + (self._count > 1)) * num_other_members * size
        run.outcome.computed += times.sum()
        run.outcome.communicated += (reduction + broadcast) * len(members)

        def end() -> None:
            new_weights = weights
            if run.task:
                gradients = run.task.gradients(weights[None], minibatches, scenario.frames)
                mean = gradients.mean(dim=0, keepdim=True)
                # The update was computed at old `weights`; the model may have been averaged since
                # (staleness of ADPSGD): x <- x + update, not x <- weights + update.
                update = self._optimizers[number].step(weights[None], mean, rate)[0] - weights
                new_weights = self._learners[number].add(update)
                if run.due:
                    models = [learner.weights() for learner in self._learners]
                    run.track(torch.stack(models).mean(dim=0))
            # The host's processors serve one learner after the other.
            copied = self._clock.now
            if scenario.host_rate and self._count > 1:
                copied = self._cards.copy(copied, members[0], size / scenario.host_rate)
            self._finished = max(self._finished, copied + broadcast)
            self._clock.at(copied + broadcast, lambda: self._begin(number, new_weights))
            # The averaging runs beside the next step's computation.
            self._requested[number] = True
            self._average(number)

        # Only the part of the all-reduce that outlasts the backward pass lengthens the step.
        step = times.max() + run.exposed(reduction, times.max())
        self._clock.at(self._clock.now + step, end)

    def _average(self, number: int) -> None:
        """Begin an averaging if requested, unless one is in progress or there is no partner."""
        neighbours = partners(number, self._count, self._pattern)
        if not (is_active(number) and neighbours and self._requested[number]) or self._busy[number]:
            return
        self._requested[number], self._busy[number] = False, True
        peer_number = partner(number, self._count, self._pattern, self._averagings[number])
        self._averagings[number] += 1
        began, size = self._clock.now, self._run.scenario.model_bytes
        ranks = number * self._group, peer_number * self._group
        learner, peer = self._learners[number], self._learners[peer_number]
        weights = learner.weights()

        # The peer j sets x_j <- (x_i + x_j) / 2 and sends back c = (x_i - x_j) / 2. The learner i,
        # which may have taken steps meanwhile, sets x_i <- x_i - c (B1).
        def arrive() -> None:
            correction = peer.average_with(weights)
            back = self._cards.send(self._clock.now, ranks[1], ranks[0], size)

            def finish() -> None:
                learner.apply_correction(correction)
                self._run.outcome.communicated += 2 * (self._clock.now - began)
                self._run.outcome.sent += 2 * size
                self._busy[number] = False
                self._average(number)

            self._clock.at(back, finish)

        self._clock.at(self._cards.send(began, *ranks, size), arrive)


def asgd(run: Run) -> Outcome:
    """A-SGD: workers exchange gradients for new weights with a parameter server, worker 0 (A19).

    No worker waits for the others.
    """
    scenario, task, outcome = run.scenario, run.task, run.outcome
    clock, cards = EventQueue(), NetworkCards(run.network)
    shares = shared_steps(run, run.workers)
    initial = task.initial() if task else torch.zeros(1)
    optimizer = make_optimizer(scenario.optimizer, [nn.Parameter(initial.clone())])
    server = ParameterServer(initial, optimizer, parts=run.workers)

    def begin(worker: int, weights: torch.Tensor) -> None:
        rate = scenario.rate_at(run.done, run.workers)
        minibatch = shares[worker].take()
        if minibatch is None:
            return
        run.take(1)
        # With N workers, step s of worker w is minibatch s N + w.
        minibatches = [minibatch.first * run.workers + minibatch.owner]
        seconds = float(run.draw([worker])[0])
        outcome.computed += seconds

        def end() -> None:
            began = clock.now

            def arrive() -> None:
                reply = weights
                if task:
                    # The gradient is that of the weights with which the worker began; the server
                    # has applied other workers' gradients since.
                    gradient = task.gradients(weights[None], minibatches, scenario.frames)[0]
                    reply = server.add(gradient, rate)
                    run.track(reply)
                back = clock.now
                # Worker 0 is the server: its gradient and weights need no network.
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


def slow_momentum(workers: int, block: int, momentum: float = 0.5) -> BmufConfig:
    """Return the settings with which `bmuf` is SlowMo: the mean of the workers, plus momentum."""
    # The block learning rate is zeta = rate N (1 - momentum) = 1: the mean update of a block enters
    # the momentum unscaled.
    return BmufConfig(block, momentum=momentum, rate=1 / (workers * (1 - momentum)))


def to_float16(values: Tensor) -> Tensor:
    """Round to float16, 2 bytes per value."""
    return values.half().float()


def to_8_bits(values: Tensor) -> Tensor:
    """Round each row to 255 levels up to its largest magnitude, either sign; 1 byte per value."""
    # 127 is the largest magnitude of a signed byte; 1e-30 avoids 0 / 0 in rows of zeros.
    step = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    return (values / step).round() * step


def ssgd_rounded(run: Run, rounding: Rounding, share: float) -> Outcome:
    """Simulate S-SGD with rounded gradients; rounding errors are added to the next gradient.

    Args:
      run: the training.
      rounding: rounds the gradients.
      share: bytes of a rounded value, as a share of those of a float32.
    """
    optimizer = run.optimizers(1) if run.task else None
    left = torch.zeros(run.workers, run.task.size) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        # Error feedback: r <- r + g, send Q(r), r <- r - Q(r), a row per worker.
        residuals = left[: len(gradients)]
        residuals += gradients
        sent = rounding(residuals)
        residuals -= sent
        return optimizer.step(weights[None], sent.mean(dim=0, keepdim=True), rate)[0]

    exchange = lambda: all_reduce(run, share)  # noqa: E731
    return run.finish(train(run, update, exchange, run.exposed))


def post_local(run: Run, until: float) -> Outcome:
    """Simulate S-SGD for a share `until` of the data, then local steps with periodic averaging."""
    optimizer = run.optimizers(1) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        return optimizer.step(weights[None], gradients.mean(dim=0, keepdim=True), rate)[0]

    exchange = lambda: all_reduce(run)  # noqa: E731
    weights = train(run, update, exchange, run.exposed, until)
    return bmuf(run, weights)


class CorrectedState(GtcState):
    """Threshold compression of a worker's momentum, in place of its gradient.

    The optimizer after the exchange then has no momentum. The momentum of an element that is sent
    starts again from 0, so that old gradients have no further effect.

    Args:
      size: P, number of weights.
      config: configuration of the threshold.
    """

    def __init__(self, size: int, config: GtcConfig) -> None:
        super().__init__(size, config)
        self._velocity = torch.zeros(size)

    def encode(self, gradient: Tensor) -> Tensor:
        """Implement `GtcState.encode`."""
        # Momentum correction of Lin et al. 2018: u <- m u + g; the residual accumulates u, not g.
        self._velocity.mul_(MOMENTUM).add_(gradient)
        message = super().encode(self._velocity)
        sent = torch.zeros_like(self._velocity)
        decode(message, self.threshold, sent)
        self._velocity[sent != 0] = 0.0  # momentum factor masking: elements that were sent
        return message


def simulate(
    method: str, workers: int, scenario: Scenario, task: Task | None, points: int = 1
) -> Outcome:
    """Simulate a training run.

    Args:
      method: `ssgd`, `scpsgd`, `gtc`, `bmuf`, `asgd`, `hadpsgd`, `hadpsgd random`, `adpsgd`,
        `adpsgd random`, `adpsgd shuffled`, `adpsgd delayed`.
      workers: N.
      scenario: the common parameters.
      task: the task to train on; None simulates time alone.
      points: number of points of the learning curve, evenly over the data.

    Raises:
      ValueError: there are fewer minibatches than workers.
    """
    if scenario.minibatches < workers:
        raise ValueError(f"{scenario.minibatches} minibatches are too few for {workers} workers")
    run = Run(method, workers, scenario, task, points)
    name, _, pattern = method.partition(" ")
    if name in ("adpsgd", "hadpsgd") and pattern != "delayed":
        group = scenario.network.per_host if name == "hadpsgd" else 1
        return Adpsgd(run, pattern or "fixed", group).simulate()
    methods = {
        "ssgd": ssgd,
        "scpsgd": scpsgd,
        "gtc": gtc,
        "bmuf": bmuf,
        "adpsgd": delay_by_one,
        "asgd": asgd,
    }
    return methods[name](run)
