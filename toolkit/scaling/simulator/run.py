"""A simulated training: its network, scenario, clock and outcome."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.config.fields import NonNegative, Positive, PositiveInt, Settings, Share
from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.ssgd import BUCKET_BYTES
from toolkit.scaling.simulator.tasks import Task

GIGABIT = 1e9 / 8  # bytes


@dataclass(frozen=True)
class Network(Settings):
    """Hosts with a network card each, and links between the workers of a host."""

    per_host: PositiveInt = 16
    """Workers per host; 16 GPUs in the machines of Table I (C25), 8 in those of (B4)."""
    between: Positive = 25.0
    """Gbit/s of a host's network card, each way (C25); 100 in (B4)."""
    core: NonNegative = 0.0
    """Gbit/s of the core network that connects all hosts, where that is less than the sum of their
    cards; 0: no such limit."""
    inside: Positive = 300.0
    """Gbit/s between workers of a host (C25)."""
    latency: NonNegative = 50e-6
    """Seconds of latency between hosts, for any size."""
    latency_inside: NonNegative = 10e-6
    """Seconds of latency within a host."""

    def host(self, worker: int) -> int:
        """Return the index of a worker's host."""
        return worker // self.per_host

    def hosts(self, workers: int) -> int:
        """Return the number of hosts needed for the given number of workers."""
        return -(-workers // self.per_host)

    def all_reduce(self, workers: int, size: float) -> float:
        """Return the seconds of an all-reduce of `size` bytes: in each host, then between hosts.

        In a ring of n, each member sends 2 (n - 1) / n times the bytes, in 2 (n - 1) messages one
        after the other.
        """
        inside, hosts = min(workers, self.per_host), self.hosts(workers)
        within = self._ring(inside, size, self.inside, self.latency_inside)
        across = self._ring(hosts, size, self.between, self.latency)
        return within + max(across, self._through_core(2 * (hosts - 1) * size))

    def broadcast(self, workers: int, size: float) -> float:
        """Return the seconds of a broadcast to `workers` of one host, pipelined as in nccl.

        A tree, as in gloo, takes longer.
        """
        if workers == 1:
            return 0.0
        return size / (self.inside * GIGABIT) + (workers - 1) * self.latency_inside

    def all_to_all(self, sizes: Sequence[float]) -> float:
        """Return the seconds until every worker has all messages, of `sizes` bytes by worker.

        A message is sent to each receiver separately. A host's card carries its workers' messages
        to all other hosts and vice versa; the slower direction of the slowest host counts, and
        messages within a host overlap with that.
        """
        workers, total = len(sizes), sum(sizes)
        seconds = self._through_core(self.bytes_between(sizes))
        for host in range(self.hosts(workers)):
            first = host * self.per_host
            here = sizes[first : first + self.per_host]
            # Messages from here go to all workers elsewhere, those from elsewhere to all here.
            out = sum(here) * (workers - len(here))
            into = (total - sum(here)) * len(here)
            card = max(out, into) / (self.between * GIGABIT)
            # Within the host, the worker with the smallest message receives the most.
            link = (sum(here) - min(here)) / (self.inside * GIGABIT)
            delay = self.latency if workers > len(here) else self.latency_inside
            seconds = max(seconds, max(card, link) + delay)
        return seconds

    def bytes_between(self, sizes: Sequence[float]) -> float:
        """Return the bytes sent between hosts in `all_to_all`."""
        first = [host * self.per_host for host in range(self.hosts(len(sizes)))]
        hosts = [sizes[i : i + self.per_host] for i in first]
        return sum(sum(here) * (len(sizes) - len(here)) for here in hosts)

    def _through_core(self, size: float) -> float:
        """Return the seconds that bytes take through the core network; 0 without a limit."""
        return size / (self.core * GIGABIT) if self.core else 0.0

    def _ring(self, members: int, size: float, rate: float, latency: float) -> float:
        """Return the seconds of a ring all-reduce among `members`."""
        # A ring of n members reduces and then gathers chunks of 1 / n: n - 1 steps each.
        steps = 2 * (members - 1)
        return steps * (size / members / (rate * GIGABIT) + latency)


class NetworkCards:
    """The network cards of the hosts; each sends one message after the other.

    Likewise, the processors of a host copy and average one model after the other.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._free: dict[tuple[int, str], float] = {}
        self.carried = 0.0
        """Bytes sent from one host to another."""

    def copy(self, now: float, worker: int, seconds: float) -> float:
        """Occupy the processors of a worker's host for `seconds`; return the end time."""
        key = self._network.host(worker), "memory"
        self._free[key] = max(now, self._free.get(key, 0.0)) + seconds
        return self._free[key]

    def send(self, now: float, source: int, target: int, size: float) -> float:
        """Send `size` bytes from one worker to another at time `now`; return the arrival time."""
        network = self._network
        if network.host(source) == network.host(target):
            return now + network.latency_inside + size / (network.inside * GIGABIT)
        cards = (network.host(source), "out"), (network.host(target), "in")
        cards = (*cards, (0, "core")) if network.core else cards
        # The message occupies sender, receiver and core for the same time, once all are free.
        begin = max(now, *(self._free.get(card, 0.0) for card in cards))
        rate = min(network.between, network.core or network.between)
        end = begin + size / (rate * GIGABIT)
        for card in cards:
            self._free[card] = end
        self.carried += size
        return end + network.latency


OptimizerName = Literal["sgd", "momentum", "adam"]
MOMENTUM = 0.9  # of `momentum`, which is SGD with it


def make_optimizer(name: OptimizerName, weights: Iterable[nn.Parameter]) -> Optimizer:
    """Make an optimizer with torch's settings; its learning rate is set before every step."""
    if name == "adam":
        return torch.optim.Adam(weights, lr=1.0)
    return torch.optim.SGD(weights, lr=1.0, momentum=MOMENTUM if name == "momentum" else 0.0)


class Optimizers:
    """Optimizers of synchronous workers, each with its own state.

    They are element-wise, so that a single optimizer of all workers' weights is equivalent.

    Args:
      name: name of the optimizer.
      workers: N.
      size: P, number of weights of a model.
    """

    def __init__(self, name: OptimizerName, workers: int, size: int) -> None:
        self._weights = nn.Parameter(torch.zeros(workers, size))
        self._optimizer = make_optimizer(name, [self._weights])

    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> Tensor:
        """Return the workers' weights after a step of their optimizers.

        Args:
          weights: [N, P].
          gradients: [K, P] of the first K workers. K is less than N only at the last step, where
            the data ends; the other workers' weights are unchanged.
          rate: learning rate.

        Returns:
          [N, P].
        """
        moved = len(gradients)
        self._weights.data.copy_(weights)
        self._weights.grad = torch.zeros_like(weights)
        self._weights.grad[:moved] = gradients
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        return torch.cat([self._weights.data[:moved], weights[moved:]])


@dataclass(frozen=True)
class StepTimes(Settings):
    """Computation time of a worker per minibatch, with its variation."""

    seconds: Positive = 0.3
    """Mean seconds."""
    shares: tuple[NonNegative, ...] = (1.0,)
    """Measured times divided by their mean, from which each step's time is drawn."""
    spread: NonNegative = 0.0
    """Standard deviation of the workers' mean times, relative to the mean: machines that are not
    equally fast."""
    slow: dict[int, float] = field(default_factory=dict)
    """Worker -> factor by which it is slower still."""
    backward: Share = 2 / 3
    """Share of a step that is the backward pass, which computes twice as much as the forward pass.
    Buckets of gradients are all-reduced meanwhile."""

    def check(self) -> None:
        """Refuse an empty list of step times."""
        if not self.shares:
            raise ValueError(
                "`shares` is empty: give at least one step time, divided by the mean step time"
            )

    def means(self, rng: np.random.Generator, workers: int) -> np.ndarray:
        """Return each worker's mean seconds: [N].

        These are the expected order statistics of N draws from a normal distribution, in random
        order. So the slowest worker is as slow as the slowest of N draws is on average.
        """
        if workers == 1:
            return np.array([self.seconds * self.slow.get(0, 1.0)])
        # Blom's approximation of expected order statistics: Phi^-1((i - 3/8) / (N + 1/4)).
        ranks = (np.arange(workers) + 0.625) / (workers + 0.25)
        normal = np.array([NormalDist().inv_cdf(rank) for rank in ranks])
        means = self.seconds * np.maximum(0.1, 1 + self.spread * rng.permutation(normal))
        return means * [self.slow.get(worker, 1.0) for worker in range(workers)]


@dataclass(frozen=True)
class Scenario:
    """Parameters that all simulated training runs share."""

    minibatches: int = 360_000
    """Minibatches of all workers together, the same for any number of workers."""
    frames: int = 8
    """Frames of a worker's minibatch in the small task."""
    stands_for: float = 1.0
    """Number of minibatches of the real training that one of the small task represents. A block of
    `bmuf` has fewer minibatches than a real block by this factor, so its exchange counts for as
    much less; methods that communicate at every minibatch do so at every real one."""
    rate: float = 0.1
    """Initial learning rate of one worker."""
    final_rate: float = 0.004
    """Final learning rate; it decays exponentially with the share of the data seen (C7)."""
    max_rate: float = 1.1
    """Upper limit of the rate of methods whose steps take N minibatches and N times the rate."""
    warmup: float = 0.0
    """Share of the data over which the learning rate is warmed up."""
    decay_from: float = 0.0
    """Share of the data after which the learning rate begins to decay."""
    optimizer: OptimizerName = "sgd"
    """Optimizer of every worker, with torch's settings. If models are exchanged, each worker has
    its own optimizer state; if gradients are exchanged, there is one state, for their mean."""
    model_bytes: float = 4 * 24_270_000
    """Bytes of the model whose training time is simulated: 24.27 M float32 (C6)."""
    times: StepTimes = StepTimes()
    """Computation times."""
    network: Network = Network()
    """Hosts, and the links between workers."""
    host_rate: float = 0.0
    """Bytes of models per second that a host's processors exchange with its GPUs and average. Every
    learner of `adpsgd` needs this work in every step, and a host serves one learner after the
    other. 0: the work takes no time."""
    codec: float = 40e9
    """Bytes per second of `gtc`'s coding: of the encoded gradient and the decoded messages."""
    gtc: GtcConfig = GtcConfig()
    """Parameters of `gtc`."""
    bmuf: BmufConfig = BmufConfig()
    """Parameters of `bmuf`."""
    density: float = 1e-3
    """Share of the elements that `gtc` sends, used if only time is simulated."""
    seed: int = 0
    """Random seed of the step times."""

    def rate_at(self, done: float, workers: int = 1) -> float:
        """Return the learning rate for `workers` minibatches after a share `done` of the data."""
        # n workers: rate = min(max_rate, rate_0 n) (final / rate_0)^x, x from 0 to 1 in the decay.
        decaying = max(0.0, done - self.decay_from) / (1 - self.decay_from)
        decayed = min(self.max_rate, self.rate * workers)
        decayed *= (self.final_rate / self.rate) ** decaying
        # Linear warm-up from one minibatch's share; + 1 / minibatches keeps the first step above 0.
        return decayed * min(1.0, (done + 1 / self.minibatches) / self.warmup if self.warmup else 1)


@dataclass
class Outcome:
    """Result of a simulated training."""

    method: str
    workers: int
    step: float
    """Mean seconds of a minibatch on a worker that is not slow."""
    seconds: float = 0.0
    """Virtual time of the training."""
    minibatches: int = 0
    """Number of minibatches processed by all workers."""
    computed: float = 0.0
    """Seconds of computation, summed over the workers."""
    communicated: float = 0.0
    """Seconds of communication, summed over the workers; may overlap with computation."""
    sent: float = 0.0
    """Bytes sent, summed over the workers."""
    between: Positive = 0.0
    """The part of `sent` that goes between hosts."""
    averagings: int = 0
    """Number of averagings of two models, counted at both learners; a node of `hadpsgd` is one
    learner."""
    density: float = math.nan
    """Share of the elements that `gtc` sends per step."""
    spread: NonNegative = math.nan
    """Consensus distance divided by the norm of the mean model at the end, where models differ."""
    loss: float = math.nan
    accuracy: float = math.nan
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    """(epoch, held-out loss, accuracy)."""

    @property
    def speedup(self) -> float:
        """Minibatches per second relative to one worker without communication."""
        return self.minibatches * self.step / self.seconds

    @property
    def efficiency(self) -> float:
        """Speed-up per worker."""
        return self.speedup / self.workers

    @property
    def bytes_per_step(self) -> float:
        """Bytes sent per minibatch."""
        return self.sent / self.minibatches

    @property
    def ratio(self) -> float:
        """Computation time divided by communication time (B6)."""
        return self.computed / self.communicated if self.communicated else math.inf


class Run:
    """A training in progress: its task and its outcome so far, with helpers for the methods.

    Args:
      method: name of the method.
      workers: N.
      scenario: the common parameters.
      task: the task to train on; None simulates time alone.
      points: number of points of the learning curve, evenly over the data.
    """

    def __init__(
        self,
        method: str,
        workers: int,
        scenario: Scenario,
        task: Task | None,
        points: int = 1,
    ) -> None:
        self.scenario, self.task, self.workers = scenario, task, workers
        self.network = scenario.network
        self._rng = np.random.default_rng([scenario.seed, workers])
        self._means = scenario.times.means(self._rng, workers)
        self.outcome = Outcome(method, workers, scenario.times.seconds)
        self._points = points

    @property
    def done(self) -> float:
        """Share of the data seen."""
        return self.outcome.minibatches / self.scenario.minibatches

    @property
    def left(self) -> int:
        """Number of minibatches left."""
        return self.scenario.minibatches - self.outcome.minibatches

    def optimizers(self, workers: int) -> Optimizers:
        """Construct the optimizers of this number of models of the task."""
        return Optimizers(self.scenario.optimizer, workers, self.task.size)

    def draw(self, workers: Sequence[int]) -> np.ndarray:
        """Draw the step time in seconds of each of `workers`."""
        return self._means[workers] * self._rng.choice(self.scenario.times.shares, len(workers))

    def exposed(self, reduction: float, step: float) -> float:
        """Return the seconds by which an all-reduce outlasts the backward pass that it overlaps.

        Gradients come in buckets as large as those of `toolkit.parallel.ssgd`, which complete
        evenly over the backward pass and are all-reduced one after the other.

        Args:
          reduction: seconds of an all-reduce of the whole gradient.
          step: seconds of the slowest worker's step.
        """
        buckets = math.ceil(self.scenario.model_bytes / BUCKET_BYTES)
        backward = self.scenario.times.backward * step
        # At least the last bucket is reduced after the backward pass, and no bucket before the
        # gradients of the first are complete.
        return max(reduction / buckets, reduction - backward * (1 - 1 / buckets))

    def take(self, number: int) -> list[int]:
        """Take the next `number` minibatches, or as many as are left; return their indices."""
        first = self.outcome.minibatches
        last = min(first + number, self.scenario.minibatches)
        self.outcome.minibatches = last
        return list(range(first, last))

    @property
    def due(self) -> bool:
        """Whether the learning curve is due for another point."""
        points = len(self.outcome.curve) + 1
        return points < self._points and self.done * self._points >= points

    def track(self, weights: Tensor) -> None:
        """Add a point to the learning curve if one is due."""
        if self.due:
            self._measure(weights)

    def finish(self, weights: Tensor | None) -> Outcome:
        """Evaluate the final model, if there is one, and return the outcome."""
        if self.task is not None and weights is not None:
            self._measure(weights)
            _, self.outcome.loss, self.outcome.accuracy = self.outcome.curve[-1]
        return self.outcome

    def _measure(self, weights: Tensor) -> None:
        """Add the loss and accuracy of a model to the learning curve."""
        epoch = self.outcome.minibatches * self.scenario.frames / self.task.frames
        self.outcome.curve.append((epoch, *self.task.evaluate(weights)))
