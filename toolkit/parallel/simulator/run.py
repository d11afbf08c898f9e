"""A simulated training under way: its scenario, its virtual clock, and what has come of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from torch import Tensor

from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.simulator.network import Network
from toolkit.parallel.simulator.optimizer import OptimizerName, Optimizers
from toolkit.parallel.simulator.task import FrameTask
from toolkit.parallel.ssgd import BUCKET_BYTES


@dataclass(frozen=True)
class StepTimes:
    """How long a worker computes for a minibatch."""

    seconds: float = 0.3
    """Mean."""
    shares: tuple[float, ...] = (1.0,)
    """Measured times divided by their mean; each step's is drawn from them."""
    spread: float = 0.0
    """Standard deviation over the workers of their own mean times, as a share of the mean: that of
    machines that are not equally fast."""
    slow: dict[int, float] = field(default_factory=dict)
    """Workers that are slower still, and how many times."""
    backward: float = 2 / 3
    """Share of a step in which gradients come about, from the last layer to the first: the backward
    pass computes twice as much as the forward one. Buckets of gradients are averaged meanwhile."""

    def __post_init__(self) -> None:
        if not self.seconds > 0 or not self.shares or min(self.shares) < 0:
            raise ValueError("step times need to be above 0")
        if not 0 <= self.backward <= 1:
            raise ValueError(f"backward is {self.backward}, needs to be in [0, 1]")

    def means(self, rng: np.random.Generator, workers: int) -> np.ndarray:
        """Give each worker's mean seconds: [N].

        They are what one expects of so many drawn from a normal distribution, in random order, so
        that the slowest of N is as slow as on average.
        """
        if workers == 1:
            return np.array([self.seconds * self.slow.get(0, 1.0)])
        ranks = (np.arange(workers) + 0.625) / (workers + 0.25)
        normal = np.array([NormalDist().inv_cdf(rank) for rank in ranks])
        means = self.seconds * np.maximum(0.1, 1 + self.spread * rng.permutation(normal))
        return means * [self.slow.get(worker, 1.0) for worker in range(workers)]


@dataclass(frozen=True)
class Scenario:
    """What all simulated trainings have in common."""

    minibatches: int = 360_000
    """Minibatches of all workers together, the same for any number of them."""
    frames: int = 8
    """Frames of a worker's minibatch in the small task."""
    stands_for: float = 1.0
    """Minibatches of the real training for which one of the small task stands. A block of `bmuf`
    has so many times fewer of them, and then takes as long as a real one; what is exchanged at
    every minibatch is exchanged at each of the real ones."""
    rate: float = 0.1
    """Learning rate of one worker at the beginning."""
    final_rate: float = 0.004
    """At the end; it decays exponentially with the share of the data seen (C7)."""
    max_rate: float = 1.1
    """A method that takes one step for N minibatches uses N times the rate, but at most this."""
    warmup: float = 0.0
    """Share of the data over which rates climb."""
    optimizer: OptimizerName = "sgd"
    """Of every worker, with torch's settings. Where models are exchanged, each worker's has a state
    of its own gradients; where gradients are, the state is of their mean."""
    model_bytes: float = 4 * 24_270_000
    """Of the model whose training time is simulated: 24.27 M float32 (C6)."""
    times: StepTimes = StepTimes()
    """How long steps take."""
    network: Network = Network()
    """How long messages take."""
    codec: float = 40e9
    """Bytes of gradient per second that a worker encodes, and of others' messages that it adds."""
    gtc: GtcConfig = GtcConfig()
    """Threshold of `gtc`."""
    bmuf: BmufConfig = BmufConfig()
    """Block, momentum of `bmuf`."""
    density: float = 1e-3
    """Share of the elements that `gtc` sends, where time alone is simulated."""
    seed: int = 0
    """Of the step times."""

    def rate_at(self, done: float, workers: int = 1) -> float:
        """Give the learning rate of a step for `workers` minibatches at a share `done` of all."""
        decayed = min(self.max_rate, self.rate * workers) * (self.final_rate / self.rate) ** done
        return decayed * min(1.0, (done + 1 / self.minibatches) / self.warmup if self.warmup else 1)


@dataclass
class Outcome:
    """A simulated training."""

    method: str
    workers: int
    step: float
    """Mean seconds of a minibatch on a worker that is not slow."""
    seconds: float = 0.0
    """Virtual."""
    minibatches: int = 0
    """Done by all workers."""
    computed: float = 0.0
    """Seconds that workers computed, summed over them."""
    communicated: float = 0.0
    """Seconds of exchanges that workers took part in, summed over them; they may overlap with
    computing."""
    sent: float = 0.0
    """Bytes that left workers, summed over them."""
    between: float = 0.0
    """Those of them that left hosts."""
    averagings: int = 0
    """How often a learner's model was averaged with another's, summed over the learners; a node of
    `hadpsgd` is one learner."""
    density: float = math.nan
    """Share of the elements sent per step, of `gtc`."""
    spread: float = math.nan
    """Consensus distance over the length of the mean model at the end, where models differ."""
    loss: float = math.nan
    accuracy: float = math.nan
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    """(epoch, held-out loss, accuracy)."""

    @property
    def speedup(self) -> float:
        """Minibatches per second over those of one worker that computes all the time."""
        return self.minibatches * self.step / self.seconds

    @property
    def efficiency(self) -> float:
        """Speed-up per worker."""
        return self.speedup / self.workers

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a worker sends per minibatch."""
        return self.sent / self.minibatches

    @property
    def ratio(self) -> float:
        """Computation over communication (B6): seconds of a worker in both."""
        return self.computed / self.communicated if self.communicated else math.inf


class Run:
    """A training under way: task, outcome so far, and what methods need of both.

    Args:
      method: its name.
      workers: N.
      scenario: see there.
      task: what is trained; None simulates time alone.
      points: how often the held-out loss is taken, evenly over the data.
    """

    def __init__(
        self,
        method: str,
        workers: int,
        scenario: Scenario,
        task: FrameTask | None,
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
        """Minibatches not taken yet."""
        return self.scenario.minibatches - self.outcome.minibatches

    def optimizers(self, workers: int) -> Optimizers:
        """Make the optimizers of so many models of the task."""
        return Optimizers(self.scenario.optimizer, workers, self.task.size)

    def draw(self, workers: Sequence[int]) -> np.ndarray:
        """Draw the seconds of a step of each of `workers`."""
        return self._means[workers] * self._rng.choice(self.scenario.times.shares, len(workers))

    def exposed(self, reduction: float, step: float) -> float:
        """Give the seconds by which an all-reduce outlasts the backward pass that it overlaps.

        Buckets of gradients are as large as those of `toolkit.parallel.ssgd`; they become full
        evenly over the backward pass, and are added up one after the other.

        Args:
          reduction: seconds of the all-reduce of the whole gradient.
          step: seconds of the slowest worker's step.
        """
        buckets = math.ceil(self.scenario.model_bytes / BUCKET_BYTES)
        backward = self.scenario.times.backward * step
        return max(reduction / buckets, reduction - backward * (1 - 1 / buckets))

    def take(self, number: int) -> list[int]:
        """Take the next minibatches, at most what is left."""
        first = self.outcome.minibatches
        last = min(first + number, self.scenario.minibatches)
        self.outcome.minibatches = last
        return list(range(first, last))

    @property
    def due(self) -> bool:
        """Whether the curve wants another point."""
        points = len(self.outcome.curve) + 1
        return points < self._points and self.done * self._points >= points

    def watch(self, weights: Tensor) -> None:
        """Add to the curve when it is time."""
        if self.due:
            self._measure(weights)

    def finish(self, weights: Tensor | None) -> Outcome:
        """Evaluate the final model."""
        if self.task is not None and weights is not None:
            self._measure(weights)
            _, self.outcome.loss, self.outcome.accuracy = self.outcome.curve[-1]
        return self.outcome

    def _measure(self, weights: Tensor) -> None:
        epoch = self.outcome.minibatches * self.scenario.frames / self.task.frames
        self.outcome.curve.append((epoch, *self.task.evaluate(weights)))
