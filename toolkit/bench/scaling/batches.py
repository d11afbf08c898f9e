"""Large batches as the paper trained with them: momentum, a long warm-up, tuned rates (B2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from toolkit.bench.scaling.outcomes import NAMES
from toolkit.bench.scaling.studies import IBM_PER_HOST, Report
from toolkit.parallel.simulator.methods import simulate
from toolkit.parallel.simulator.network import Network
from toolkit.parallel.simulator.run import Outcome, Scenario, StepTimes
from toolkit.parallel.simulator.tasks import SequenceTask

POWERS = (0.0, 1 / 3, 2 / 3, 1.0)
"""Rates tried for a batch k times the baseline's: its best rate times k to these powers. 1 is the
paper's scaling; all methods and batches have as many trials as the baseline."""


@dataclass(frozen=True)
class Trial:
    """A training with one of the rates tried."""

    method: str
    batch: int
    """Frames of a step of all learners together."""
    rate: float
    power: float
    """See `POWERS`; 0 for the baseline."""
    outcome: Outcome

    @property
    def loss(self) -> float:
        """Held-out loss; infinite where the training diverged."""
        return self.outcome.loss if isfinite(self.outcome.loss) else inf


@dataclass(frozen=True)
class TunedBatches:
    """Settings of the study."""

    smallest: int = 256
    """Frames of a step of the baseline, which is one worker."""
    batches: tuple[int, ...] = (1024, 2048, 4096, 8192)
    learners: int = 8
    rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """Rates tried for the baseline."""
    epochs: int = 16
    """As in the paper (B4)."""
    warm_epochs: int = 10
    """Epochs over which the rate rises; then it falls by the square root of 2 per epoch."""
    methods: tuple[str, ...] = ("ssgd", "adpsgd", "adpsgd shuffled", "adpsgd delayed")
    """With momentum, SCPSGD's averaged step is that of S-SGD."""
    shares: tuple[float, ...] = (1.0,)
    """Measured variation of step times, which makes models stale."""

    def trials(self, task: SequenceTask, report: Report) -> Iterator[Trial]:
        """Train the baseline with every rate, then every method and batch with as many."""
        alone = [self._train("ssgd", self.smallest, rate, 0.0, task) for rate in self.rates]
        yield from alone
        base = min(alone, key=lambda trial: trial.loss)
        report(f"batch {self.smallest}: loss {base.loss:.4f} at rate {base.rate:g}")
        for batch in self.batches:
            for method in self.methods:
                for power in POWERS:
                    rate = base.rate * (batch / self.smallest) ** power
                    yield self._train(method, batch, rate, power, task)
            report(f"batch {batch}")

    @property
    def note(self) -> str:
        """Describe the study."""
        return (
            f"LSTM on chunks of 16 frames, SGD with momentum 0.9, {self.epochs} epochs: the rate "
            f"rises for {self.warm_epochs} and then falls by the square root of 2 in each; "
            f"{self.learners} learners. Batches in frames. Rates tried: for batch {self.smallest} "
            f"{', '.join(map(str, self.rates))}, for one k times as large the best of these times "
            "k to the power of 0, 1/3, 2/3 and 1; the last is the paper's, in the column 'rate by "
            "the batch'. Losses relative to that of the baseline. Distance: of the models from "
            "their mean, relative to its norm, at the end."
        )

    def rows(self, trials: Sequence[Trial]) -> list[dict[str, object]]:
        """Return a row for each method and batch: the best of its rates, and the paper's."""
        groups: dict[tuple[str, int], list[Trial]] = {}
        for trial in trials:
            groups.setdefault((trial.method, trial.batch), []).append(trial)
        alone = min(trial.loss for trial in groups["ssgd", self.smallest])
        found = []
        for (method, batch), tried in groups.items():
            best = min(tried, key=lambda trial: trial.loss)
            scaled = max(tried, key=lambda trial: trial.power)
            averagings = best.outcome.averagings / best.outcome.minibatches
            found.append(
                {
                    "method": NAMES[method],
                    "batch": batch,
                    "loss": round(best.loss, 4),
                    "by batch 256": round(best.loss / alone, 3),
                    "rate": round(best.rate, 3),
                    "rate by the batch": round(scaled.loss / alone, 3),
                    "averagings per step": round(averagings, 2),
                    "distance": round(best.outcome.spread, 4),
                }
            )
        return found

    def _train(
        self, method: str, batch: int, rate: float, power: float, task: SequenceTask
    ) -> Trial:
        """Train; learners with equal weights and states are simulated as one."""
        learners = 1 if method == "ssgd" else self.learners
        own = rate / learners  # of one learner, which is multiplied by their number
        rest = self.epochs - self.warm_epochs
        scenario = Scenario(
            minibatches=self.epochs * task.frames * learners // batch,
            frames=batch // learners,
            rate=own,
            final_rate=own / 2 ** (rest / 2),
            max_rate=inf,
            warmup=self.warm_epochs / self.epochs,
            decay_from=self.warm_epochs / self.epochs,
            optimizer="momentum",
            times=StepTimes(shares=self.shares),
            network=Network(per_host=IBM_PER_HOST, between=100.0),
        )
        outcome = simulate(method, learners, scenario, task, points=self.epochs)
        return Trial(method, batch, rate, power, outcome)
