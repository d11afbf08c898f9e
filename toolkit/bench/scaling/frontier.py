"""Simulated study of large batches: held-out loss by batch size and method (B2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf, isnan
from statistics import median
from typing import Literal

from toolkit.bench.instruments.harness import BenchmarkError
from toolkit.bench.scaling.studies import Report
from toolkit.parallel.simulator.methods import simulate
from toolkit.parallel.simulator.run import OptimizerName, Outcome, Scenario
from toolkit.parallel.simulator.tasks import FrameTask

LEARNERS = 16
TOLERANCES = (0.05, 0.1, 0.2, 0.4)
"""Other tolerances of the loss, which show how a method's loss rises with the batch."""


@dataclass(frozen=True)
class Trained:
    """One training of the study."""

    method: str
    batch: int
    """Batch size in samples, of all learners together."""
    outcome: Outcome
    seed: int = 0


@dataclass(frozen=True)
class Reach:
    """The largest batch tried that is as good as the baseline."""

    batch: int
    mark: Literal["", ">=", "<"] = ""
    """`>=`: all batches tried are good; `<`: not even the smallest one, which is `batch`, is."""

    def __str__(self) -> str:
        return f"{self.mark} {self.batch:,}".strip()

    def ratio(self, base: "Reach") -> str:
        """Format the ratio to another method's batch, as far as both are known."""
        if self.mark == base.mark != "":
            return "unknown"
        least, most = self.mark == ">=" or base.mark == "<", self.mark == "<" or base.mark == ">="
        mark = ">= " if least else "<= " if most else ""
        return f"{mark}{self.batch / base.batch:.2f}"


@dataclass(frozen=True)
class Frontier:
    """Settings of the study of large batches (B2)."""

    smallest: int = 64
    """Batch size of the baseline, which is one worker."""
    first: int = 512
    """Smallest batch size tried; the next are 1.5, 2, 3, 4, 6, 8, 12, ... times as large."""
    largest: int = 24_576
    """Largest batch size tried."""
    optimizer: OptimizerName = "sgd"
    """Optimizer of every learner."""
    rate: float = 0.1
    """Learning rate of the baseline; it grows in proportion to the batch."""
    epochs: int = 8
    warmup: float = 0.1
    """Share of the data over which the learning rate is warmed up."""
    tolerance: float = 0.05
    """A batch is as good as the baseline if its held-out loss, the median over the seeds, is higher
    by at most this share."""
    seeds: int = 3
    """Number of trainings of each kind, with different initial weights and data orders."""
    methods: tuple[str, ...] = ("ssgd", "scpsgd", "adpsgd", "adpsgd random", "adpsgd delayed")

    def __post_init__(self) -> None:
        if self.first < LEARNERS:
            raise ValueError(
                f"first is {self.first}, needs to be a sample for each of {LEARNERS} learners"
            )
        if self.largest < self.first:
            raise ValueError(f"largest is {self.largest}, needs to be at least first: {self.first}")

    def batches(self) -> list[int]:
        """List the batch sizes tried."""
        found, batch, factors = [], self.first, cycle([(3, 2), (4, 3)])
        while batch <= self.largest:
            found.append(batch)
            up, down = next(factors)
            batch = batch * up // down
        return found

    def trained(self, task: FrameTask, report: Report) -> Iterator[Trained]:
        """Train the baseline, then every method with every batch, with every seed.

        Raises:
          BenchmarkError: a batch is larger than all epochs of the task's frames together.
        """
        most = self.epochs * task.frames
        if max(self.batches()) > most:
            raise BenchmarkError(
                f"the largest batch, {max(self.batches())}, is more than the {most} frames of"
                f" {self.epochs} epochs: lower --largest or train more epochs"
            )
        for seed in range(self.seeds):
            own = task.reseeded(seed)
            yield self._train("ssgd", self.smallest, own, seed)
            report(f"seed {seed}: one worker, batch {self.smallest}")
            for batch in self.batches():
                for method in self.methods:
                    yield self._train(method, batch, own, seed)
                report(f"seed {seed}: batch {batch}")

    def excess(self, trained: Sequence[Trained]) -> dict[tuple[str, int], float]:
        """Return the median ratio of loss to the baseline's (same seed) by method and batch."""
        baseline = "ssgd", self.smallest
        alone = {t.seed: t.outcome.loss for t in trained if (t.method, t.batch) == baseline}
        found: dict[tuple[str, int], list[float]] = {}
        for t in trained:
            loss = inf if isnan(t.outcome.loss) else t.outcome.loss  # it diverged
            found.setdefault((t.method, t.batch), []).append(loss / alone[t.seed])
        return {case: median(ratios) for case, ratios in found.items()}

    def reached(
        self, trained: Sequence[Trained], tolerance: float | None = None
    ) -> dict[str, Reach]:
        """Find each method's largest batch such that it and all smaller ones are good.

        Args:
          trained: all trainings.
          tolerance: by default the study's.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        excess = self.excess(trained)
        found = {}
        for method in self.methods:
            tried = {batch for name, batch in excess if name == method}
            if self.first > self.smallest:
                tried.discard(self.smallest)  # the baseline is not one of the batches tried
            batches = sorted(tried)
            good = [excess[method, batch] <= 1 + tolerance for batch in batches]
            count = good.index(False) if False in good else len(good)
            mark = "<" if count == 0 else ">=" if count == len(good) else ""
            found[method] = Reach(batches[max(0, count - 1)], mark)
        return found

    def _train(self, method: str, batch: int, task: FrameTask, seed: int) -> Trained:
        """Train with a method; learners with equal weights and states are simulated as one.

        In SCPSGD every learner has its own optimizer state, if the optimizer has any.
        """
        joint = method == "ssgd" or (method == "scpsgd" and self.optimizer == "sgd")
        learners = 1 if joint else LEARNERS
        rate = self.rate * batch / self.smallest / learners
        scenario = Scenario(
            minibatches=self.epochs * task.frames * learners // batch,
            frames=batch // learners,
            rate=rate,
            final_rate=rate / 30,
            max_rate=float("inf"),
            warmup=self.warmup,
            optimizer=self.optimizer,
            seed=seed,
        )
        outcome = simulate(method, learners, scenario, task, points=self.epochs)
        return Trained(method, batch, outcome, seed)
