"""Studies of data-parallel training with simulated workers (C31, B2, B4)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from math import inf, isfinite, isnan
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Literal

import numpy as np
import torch

from toolkit.align.store import AlignmentStore, LowRateAlignments
from toolkit.config.fields import Range, Settings
from toolkit.errors import ToolkitError
from toolkit.features.low_frame_rate import centre, stack
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.scaling.simulator import methods
from toolkit.scaling.simulator.methods import simulate
from toolkit.scaling.simulator.run import Network, OptimizerName, Outcome, Run, Scenario, StepTimes
from toolkit.scaling.simulator.tasks import (
    Frames,
    FrameTask,
    SequenceTask,
    SpeechLikeConfig,
    SyntheticConfig,
    Task,
    speech_like_frames,
    synthetic_frames,
)
from toolkit.train.corpus import split_held_out

NAMES = {
    "ssgd": "S-SGD",
    "scpsgd": "SCPSGD",
    "gtc": "GTC",
    "bmuf": "BMUF",
    "asgd": "A-SGD",
    "adpsgd": "ADPSGD",
    "adpsgd random": "ADPSGD, random pairs",
    "adpsgd shuffled": "ADPSGD, shuffled ring",
    "adpsgd delayed": "ADPSGD, delay by one",
    "hadpsgd": "H-ADPSGD",
}


def outcome_values(outcome: Outcome) -> dict[str, object]:
    """Return a training's values for a row of a CSV."""
    return {
        "method": NAMES[outcome.method],
        "workers": outcome.workers,
        "speedup": round(outcome.speedup, 3),
        "efficiency": round(outcome.efficiency, 4),
        "bytes_per_step": round(outcome.bytes_per_step),
        "bytes_between_hosts_per_step": round(outcome.between / outcome.minibatches),
        "computation_by_communication": round(outcome.ratio, 3),
        "density": None if isnan(outcome.density) else round(outcome.density, 5),
        "loss": outcome.loss,
        "accuracy": outcome.accuracy,
    }


MOST_FRAMES = 500_000
VALID_UTTERANCES = 100


def make_task(run: Path | None, seed: int = 0) -> FrameTask:
    """Make the frame classification task, from a finished run directory or synthetic frames.

    Args:
      run: see `frames_of`; None for frames drawn from Gaussians.
      seed: seed of weights, order, and the choice of utterances if there are too many.
    """
    if run is None:
        return FrameTask(*synthetic_frames(SyntheticConfig()), seed=seed)
    return FrameTask(*frames_of(run, seed), seed=seed)


def make_sequence_task(run: Path | None) -> SequenceTask:
    """Make the task with an LSTM, on frames of a run directory or on speech-like frames."""
    if run is None:
        return SequenceTask(*speech_like_frames(SpeechLikeConfig()))
    return SequenceTask(*frames_of(run), hidden=64)


def frames_of(run: Path, seed: int = 0) -> tuple[Frames, Frames]:
    """Load the low-rate frames of a finished run directory, utterance after utterance.

    Args:
      run: run directory with `fbank`, `ali`, `senones` and `sat`.
      seed: seed of the choice of utterances if there are too many.

    Returns:
      Frames to train on and to validate on. As in training, utterances are held out together with
      their augmented copies.
    """
    store = FeatureStore(run / "fbank" / "train")
    alignments = LowRateAlignments(
        AlignmentStore(run / "ali"),
        Topology.load(run / "sat" / "topology.json"),
        Senones.load(run / "senones"),
    )
    normaliser = Cmvn.load(run / "fbank" / "normaliser.json")
    aligned = set(alignments.ids)
    used, aside = split_held_out((n for n in store.ids if n in aligned), VALID_UTTERANCES)
    order = np.random.default_rng(seed).permutation(len(used))
    names = sorted(used)
    train = _frames(store, alignments, normaliser, (names[i] for i in order))
    return train, _frames(store, alignments, normaliser, sorted(aside))


def _frames(
    store: FeatureStore,
    alignments: LowRateAlignments,
    normaliser: Cmvn,
    names: Iterable[str],
) -> Frames:
    """Stack the frames of utterances (C5) until there are `MOST_FRAMES`."""
    inputs, targets, total = [], [], 0
    for name in names:
        features = normaliser.apply(store.load(name), store.cmn_state(name))
        inputs.append(stack(features))
        targets.append(alignments.load(name)[centre(len(features))])
        total += len(inputs[-1])
        if total >= MOST_FRAMES:
            break
    return Frames(torch.cat(inputs).float(), torch.cat(targets))


def measured_shares(steps: int = 60) -> tuple[float, ...]:
    """Measure the variation of training step times on this machine: times divided by their mean.

    The times are CPU times of a small LSTM on chunks of 32 frames, after some warm-up steps.
    """
    model = LstmModel(LstmConfig(input_dim=192, hidden=64, layers=2, output_dim=250))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(16, 32 + model.config.lookahead, 192)
    targets = torch.randint(250, (16 * 32,))
    times = []
    for _ in range(steps + 5):
        begin = process_time()
        logits, _ = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(process_time() - begin)
    steady_times = sorted(times[5:])
    mean = sum(steady_times) / len(steady_times)
    return tuple(time / mean for time in steady_times)


TABLE1 = {"gtc": (8, 16, 32, 64), "bmuf": (8, 16, 32, 64, 128)}
"""Methods and numbers of workers of the paper's table (C31)."""
PAPERS_TAU = 8.0
"""The paper's tau, the threshold of GTC (C28)."""
REAL_BLOCK = 100
"""Minibatches per block of BMUF in the paper (C29)."""
PAPERS_MINIBATCHES = 11_720
"""Number of minibatches of the small task, with blocks of 2, that stand for the paper's training
runs of ten epochs of 1,000 h."""
SHORT = 2560
"""Minibatches of a simulation that only computes times."""
LEARNERS = 16
"""Number of workers in the study of stragglers."""
STRAGGLER = 10.0
"""Factor by which the slow worker is slower."""
Report = Callable[[str], None]


def table1_scenario(
    minibatches: int, block: int, threshold: float, shares: Sequence[float]
) -> Scenario:
    """Return the scenario of Table I's training runs: hosts with 16 GPUs and 25 Gbit/s each (C25).

    `toolkit.scaling.page` gives the source of each number. A minibatch of 64 chunks of 32 frames
    takes 0.3 TFLOP, which such a GPU computes in about 0.3 s. The spread of speeds is fitted to the
    published speed-ups of BMUF, whose workers hardly communicate.

    Args:
      minibatches: number of minibatches of the small task.
      block: BMUF's block length in the small task; it stands for 100 real minibatches (C29).
      threshold: tau of GTC on the small task, which determines the share of elements sent.
      shares: variation of step times, see `StepTimes`.
    """
    return Scenario(
        minibatches=minibatches,
        stands_for=REAL_BLOCK / block,
        warmup=0.02,
        times=StepTimes(0.3, tuple(shares), spread=0.11),
        network=Network(per_host=16),
        gtc=GtcConfig(threshold=threshold),
        bmuf=BmufConfig(block=block),
    )


def table1(scenario: Scenario, task: FrameTask | None, report: Report) -> list[Outcome]:
    """Train with one worker, then with each method and number of workers of Table I."""
    outcomes = []
    for method, workers in [("ssgd", 1), *((m, n) for m in TABLE1 for n in TABLE1[m])]:
        outcomes.append(simulate(method, workers, scenario, task))
        report(f"{method}, {workers} workers")
    return outcomes


SHARED = "hosts share 25 Gbit/s"
"""The input with which GTC is slower with 64 workers than with 32, as published."""


@dataclass(frozen=True)
class Variation:
    """Table I's speed-ups of GTC and BMUF with one input changed."""

    name: str
    gtc: tuple[float, ...]
    """Speed-ups of GTC with the numbers of workers in `TABLE1`."""
    bmuf: tuple[float, ...]
    """Speed-ups of BMUF, likewise."""

    @property
    def peak(self) -> int:
        """Number of workers with which GTC is fastest."""
        return TABLE1["gtc"][max(range(len(self.gtc)), key=lambda i: self.gtc[i])]


def speedup_variations(scenario: Scenario, densities: Sequence[float]) -> list[Variation]:
    """Simulate the speed-ups of Table I (times alone) with one input changed at a time.

    Args:
      scenario: the table's scenario.
      densities: share of the elements that GTC sent in the table, by number of workers.
    """
    times, network = scenario.times, scenario.network
    base = replace(scenario, minibatches=SHORT)
    shared = replace(base, network=replace(network, core=25.0))
    faster = replace(base, network=replace(network, between=100.0))
    longer = replace(base, times=replace(times, seconds=3 * times.seconds))
    smaller = replace(base, network=replace(network, per_host=8))
    even = replace(base, times=replace(times, spread=0.0))
    third = [density / 3 for density in densities]
    return [
        _variation("as in Table I", base, densities),
        _variation("elements as with 8 workers", base, densities[:1] * len(densities)),
        _variation("a third of the elements", base, third),
        _variation(SHARED, shared, densities),
        _variation("100 Gbit/s per host", faster, densities),
        _variation("steps 3 times as long", longer, densities),
        _variation("8 workers per host", smaller, densities),
        _variation("workers equally fast", even, densities),
    ]


def _variation(name: str, scenario: Scenario, densities: Sequence[float]) -> Variation:
    """Simulate the speed-ups of Table I in a scenario, with `densities` for GTC."""
    gtc = [
        simulate("gtc", workers, replace(scenario, density=density), None).speedup
        for workers, density in zip(TABLE1["gtc"], densities, strict=True)
    ]
    bmuf = [simulate("bmuf", workers, scenario, None).speedup for workers in TABLE1["bmuf"]]
    return Variation(name, tuple(gtc), tuple(bmuf))


VARIED = (("gtc", 32), ("gtc", 64), ("bmuf", 64), ("bmuf", 128))
"""Methods and numbers of workers that are trained with other inputs."""


@dataclass(frozen=True)
class Retrained:
    """Trainings of Table I with one input changed."""

    name: str
    scenario: Scenario
    alone: float
    """Accuracy of one worker after a training of the same length."""
    outcomes: tuple[Outcome, ...]
    """Outcomes in the order of `VARIED`."""


def accuracy_variations(
    scenario: Scenario, task: FrameTask, trained: Sequence[Outcome], report: Report
) -> list[Retrained]:
    """Repeat training runs of Table I, with one input changed at a time, for their accuracies.

    Args:
      scenario: the table's scenario.
      task: the task to train on.
      trained: the table's training runs; they are not repeated if they do not depend on the
        changed input.
      report: called with a line for each training.
    """
    outcomes_by_key = {(outcome.method, outcome.workers): outcome for outcome in trained}

    # Only the methods that the changed input affects are trained again.
    def retrain(name: str, changed: Scenario, *methods: str) -> Retrained:
        by_case = dict(outcomes_by_key)
        for case in [("ssgd", 1), *VARIED]:
            if case[0] in methods:
                by_case[case] = simulate(*case, changed, task)
        report(f"Table I again: {name}")
        outcomes = tuple(by_case[case] for case in VARIED)
        return Retrained(name, changed, by_case["ssgd", 1].accuracy, outcomes)

    least = max(workers for _, workers in VARIED)
    quarter = replace(scenario, minibatches=max(least, scenario.minibatches // 4))
    blocks = [
        replace(scenario, bmuf=replace(scenario.bmuf, block=block))
        for block in (max(1, scenario.bmuf.block // 2), 2 * scenario.bmuf.block)
    ]
    rates = [replace(scenario, max_rate=factor * scenario.max_rate) for factor in (0.5, 2.0)]
    other_threshold = 7.0 if scenario.gtc.threshold == PAPERS_TAU else PAPERS_TAU
    tau = replace(scenario, gtc=replace(scenario.gtc, threshold=other_threshold))
    return [
        retrain("as in Table I", scenario),
        retrain("1/4 of the minibatches", quarter, "ssgd", "gtc", "bmuf"),
        *(retrain(f"blocks of {s.bmuf.block}", s, "bmuf") for s in blocks),
        *(retrain(f"rates up to {s.max_rate:g}", s, "gtc") for s in rates),
        retrain(f"tau {other_threshold:g}", tau, "gtc"),
    ]


ALONE_HOURS = 208.0
"""Hours of training on one V100: 40 times the published 5.2 h; (B5) also says a week, 168 h."""
IBM_PER_HOST = 8
"""GPUs per host (B4)."""
IBM_WEIGHTS = 43_300_000
"""Number of weights: 260 inputs, 6 bidirectional LSTM layers of 2 x 512 cells, a layer of 256,
32,000 outputs."""
IBM_MINIBATCHES = 16 * 2000 * 360_000 / (128 * 21)
"""16 epochs of 2,000 h (B4) in minibatches of 128 chunks of 21 frames."""


IBM_HOST_RATE = IBM_PER_HOST * 4 * IBM_WEIGHTS / (11.5 * 3600 * 32 / IBM_MINIBATCHES)
"""Bytes of models per second that a host copies and averages: 4.5 GB/s. It is fitted so that a
host's eight learners keep it busy for one step, if 32 GPUs take the published 11.5 h."""


def ibm(shares: Sequence[float]) -> list[tuple[Outcome, bool]]:
    """Simulate the times of (B5): 8 GPUs per host, 100 Gbit/s between hosts, batch 128 per GPU.

    The bandwidth inside hosts is not in (B4); 300 Gbit/s is that of another host with 8 V100 (C25).

    Returns:
      Each training, and whether the host's work on models was charged.
    """
    scenario = Scenario(
        minibatches=10 * SHORT,
        model_bytes=4 * IBM_WEIGHTS,
        times=StepTimes(ALONE_HOURS * 3600 / IBM_MINIBATCHES, tuple(shares)),
        network=Network(per_host=IBM_PER_HOST, between=100.0),
    )
    cases = [("ssgd", 1), ("ssgd", 32), ("adpsgd", 32)]
    cases += [(method, 64) for method in ("ssgd", "adpsgd", "adpsgd random", "hadpsgd")]
    without_host = [(simulate(method, workers, scenario, None), False) for method, workers in cases]
    charged = replace(scenario, host_rate=IBM_HOST_RATE)
    cases = [("adpsgd", 32), ("adpsgd", 64), ("hadpsgd", 64)]
    return without_host + [
        (simulate(method, workers, charged, None), True) for method, workers in cases
    ]


def stragglers(shares: Sequence[float]) -> list[tuple[Outcome, Outcome]]:
    """Simulate each method with equally fast workers, and with one that is ten times slower."""
    pairs = []
    methods = ("ssgd", "gtc", "bmuf", "adpsgd delayed", "asgd", "hadpsgd", "adpsgd")
    for method in methods:
        pair = []
        for slow in ({}, {LEARNERS - 1: STRAGGLER}):
            scenario = Scenario(
                minibatches=SHORT,
                times=StepTimes(0.3, tuple(shares), slow=slow),
                network=Network(per_host=4),
            )
            pair.append(simulate(method, LEARNERS, scenario, None))
        pairs.append((pair[0], pair[1]))
    return pairs


FRONTIER_LEARNERS = 16
TOLERANCES = (0.05, 0.1, 0.2, 0.4)
"""Tolerances of the loss in a table that shows how a method's loss rises with the batch."""


@dataclass(frozen=True)
class Trained:
    """One training of the study of large batches."""

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
    """`>=`: all batches tried are good; `<`: not even the smallest, which is `batch`, is good."""

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
class Frontier(Settings):
    """Settings of the study of large batches (B2)."""

    smallest: int = 64
    """Batch size of the baseline, which is one worker."""
    first: Annotated[int, Range(FRONTIER_LEARNERS)] = 512
    """Smallest batch size tried; the next are 1.5, 2, 3, 4, 6, 8, 12, ... times as large."""
    largest: int = 24_576
    """Largest batch size tried."""
    optimizer: OptimizerName = "sgd"
    """Optimizer of every learner."""
    rate: float = 0.1
    """Learning rate of the baseline; it grows in proportion to the batch."""
    epochs: int = 8
    """Number of epochs."""
    warmup: float = 0.1
    """Share of the data over which the learning rate is warmed up."""
    tolerance: float = 0.05
    """A batch is as good as the baseline if its held-out loss, the median over the seeds, is higher
    by at most this share."""
    seeds: int = 3
    """Number of training runs of each kind, with different initial weights and data orders."""
    methods: tuple[str, ...] = ("ssgd", "scpsgd", "adpsgd", "adpsgd random", "adpsgd delayed")
    """Methods to compare."""

    def check(self) -> None:
        """Refuse a range of batch sizes that is empty."""
        if self.largest < self.first:
            raise ValueError(
                f"`largest` is {self.largest}; it must be at least `first`, which is {self.first}"
            )

    def batches(self) -> list[int]:
        """List the batch sizes tried."""
        # 1, 1.5, 2, 3, 4, 6, ...: powers of two and what lies between.
        sizes, batch, factors = [], self.first, cycle([(3, 2), (4, 3)])
        while batch <= self.largest:
            sizes.append(batch)
            up, down = next(factors)
            batch = batch * up // down
        return sizes

    def trained(self, task: FrameTask, report: Report) -> Iterator[Trained]:
        """Train the baseline, then every method with every batch, with every seed.

        Raises:
          ToolkitError: a batch is larger than all epochs of the task's frames together.
        """
        most = self.epochs * task.frames
        if max(self.batches()) > most:
            raise ToolkitError(
                f"the largest batch has {max(self.batches())} frames, more than the {most} frames"
                f" of all {self.epochs} epochs: lower --largest or train more epochs"
            )
        for seed in range(self.seeds):
            seeded_task = task.reseeded(seed)
            yield self._train("ssgd", self.smallest, seeded_task, seed)
            report(f"seed {seed}: one worker, batch {self.smallest}")
            for batch in self.batches():
                for method in self.methods:
                    yield self._train(method, batch, seeded_task, seed)
                report(f"seed {seed}: batch {batch}")

    def excess(self, trained: Sequence[Trained]) -> dict[tuple[str, int], float]:
        """Return by (method, batch) the loss divided by the baseline's, as a median over seeds."""
        baseline = "ssgd", self.smallest
        alone = {t.seed: t.outcome.loss for t in trained if (t.method, t.batch) == baseline}
        ratios_by_case: dict[tuple[str, int], list[float]] = {}
        for t in trained:
            loss = inf if isnan(t.outcome.loss) else t.outcome.loss  # it diverged
            ratios_by_case.setdefault((t.method, t.batch), []).append(loss / alone[t.seed])
        return {case: median(ratios) for case, ratios in ratios_by_case.items()}

    def reached(
        self, trained: Sequence[Trained], tolerance: float | None = None
    ) -> dict[str, Reach]:
        """Find each method's largest batch such that it and all smaller batches tried are good.

        Args:
          trained: all training runs.
          tolerance: see `Frontier.tolerance`, the default.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        excess = self.excess(trained)
        reach_by_method = {}
        for method in self.methods:
            tried = {batch for name, batch in excess if name == method}
            if self.first > self.smallest:
                tried.discard(self.smallest)  # the baseline is not one of the batches tried
            batches = sorted(tried)
            good = [excess[method, batch] <= 1 + tolerance for batch in batches]
            # The last batch before the first whose loss is beyond the tolerance.
            count = good.index(False) if False in good else len(good)
            mark = "<" if count == 0 else ">=" if count == len(good) else ""
            reach_by_method[method] = Reach(batches[max(0, count - 1)], mark)
        return reach_by_method

    def _train(self, method: str, batch: int, task: FrameTask, seed: int) -> Trained:
        """Train with a method; learners with equal weights and states are simulated as one.

        In SCPSGD every learner has its own optimizer state, if the optimizer has any.
        """
        joint = method == "ssgd" or (method == "scpsgd" and self.optimizer == "sgd")
        learners = 1 if joint else FRONTIER_LEARNERS
        # Linear scaling of the rate with the batch; `rate_at` multiplies by the learners again.
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


POWERS = (0.0, 1 / 3, 2 / 3, 1.0)
"""For a batch k times the baseline's, the rates tried are the baseline's best rate times k to each
of these powers; the power 1 is the paper's scaling. Every method and batch has as many trials as
the baseline."""


@dataclass(frozen=True)
class Trial:
    """A training with one of the rates tried."""

    method: str
    batch: int
    """Frames of a step of all learners together."""
    rate: float
    power: float
    """Power of the batch ratio, see `POWERS`; 0 for the baseline."""
    outcome: Outcome

    @property
    def loss(self) -> float:
        """Held-out loss; infinite where the training diverged."""
        return self.outcome.loss if isfinite(self.outcome.loss) else inf


@dataclass(frozen=True)
class TunedBatches:
    """Settings of the study of batch sizes with tuned learning rates."""

    smallest: int = 256
    """Frames of a step of the baseline, which is one worker."""
    batches: tuple[int, ...] = (1024, 2048, 4096, 8192)
    """Frames of a step of all learners together, to compare with the baseline."""
    learners: int = 8
    """Number of learners with these batches."""
    rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """Rates tried for the baseline."""
    epochs: int = 16
    """Number of epochs, as in the paper (B4)."""
    warm_epochs: int = 10
    """Epochs over which the rate rises; then it falls by the square root of 2 per epoch."""
    methods: tuple[str, ...] = ("ssgd", "adpsgd", "adpsgd shuffled", "adpsgd delayed")
    """Methods to compare. SCPSGD is left out: with momentum its averaged step is that of S-SGD."""
    shares: tuple[float, ...] = (1.0,)
    """Measured variation of step times, which makes models stale."""

    def trials(self, task: SequenceTask, report: Report) -> Iterator[Trial]:
        """Train the baseline with every rate, then each method and batch with as many rates."""
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
            f"LSTM on chunks of 16 frames, SGD with momentum 0.9, {self.learners} learners, "
            f"{self.epochs} epochs. The rate rises for {self.warm_epochs} epochs and then falls by "
            "the square root of 2 per epoch. Batches are in frames. Rates tried for batch "
            f"{self.smallest}: {', '.join(map(str, self.rates))}. Rates tried for a batch k times "
            "as large: the best of these times k to the power of 0, 1/3, 2/3 and 1. The paper uses "
            "the power 1, see the column 'rate by the batch'. The columns 'by batch 256' and 'rate "
            "by the batch' are losses relative to the baseline's. Distance: of the models from "
            "their mean at the end, relative to the mean's norm."
        )

    def rows(self, trials: Sequence[Trial]) -> list[dict[str, object]]:
        """Return a row for each method and batch: the best of its rates, and the paper's."""
        groups: dict[tuple[str, int], list[Trial]] = {}
        for trial in trials:
            groups.setdefault((trial.method, trial.batch), []).append(trial)
        alone = min(trial.loss for trial in groups["ssgd", self.smallest])
        rows = []
        for (method, batch), tried in groups.items():
            best = min(tried, key=lambda trial: trial.loss)
            scaled = max(tried, key=lambda trial: trial.power)
            averagings = best.outcome.averagings / best.outcome.minibatches
            rows.append(
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
        return rows

    def _train(
        self, method: str, batch: int, rate: float, power: float, task: SequenceTask
    ) -> Trial:
        """Train once; learners with equal weights and states are simulated as one."""
        learners = 1 if method == "ssgd" else self.learners
        learner_rate = rate / learners  # of one learner: `rate_at` multiplies by their number
        decay_epochs = self.epochs - self.warm_epochs
        scenario = Scenario(
            minibatches=self.epochs * task.frames * learners // batch,
            frames=batch // learners,
            rate=learner_rate,
            final_rate=learner_rate / 2 ** (decay_epochs / 2),
            max_rate=inf,
            warmup=self.warm_epochs / self.epochs,
            decay_from=self.warm_epochs / self.epochs,
            optimizer="momentum",
            times=StepTimes(shares=self.shares),
            network=Network(per_host=IBM_PER_HOST, between=100.0),
        )
        outcome = simulate(method, learners, scenario, task, points=self.epochs)
        return Trial(method, batch, rate, power, outcome)


FEWER = 10.0
"""Momentum 0.9 makes steps ten times as long, so learning rates are divided by this factor; tau is
multiplied by it where momentum is corrected."""


@dataclass(frozen=True)
class Later:
    """Settings of the study of methods with momentum that came after the papers."""

    workers: int = 64
    """Number of workers."""
    minibatches: int = 120_000
    """Minibatches of all workers together."""
    block: int = 2
    """Minibatches per block of BMUF; stands for 100."""
    threshold: float = 8.0
    """tau of GTC."""

    def scenario(self) -> Scenario:
        """Return the training runs' scenario: equally fast workers, 16 per host, with momentum."""
        return Scenario(
            minibatches=self.minibatches,
            stands_for=100 / self.block,
            warmup=0.02,
            optimizer="momentum",
            rate=0.1 / FEWER,
            final_rate=0.004 / FEWER,
            max_rate=1.1 / FEWER,
            times=StepTimes(0.3),
            network=Network(per_host=16),
            gtc=GtcConfig(threshold=self.threshold),
            bmuf=BmufConfig(block=self.block),
        )

    def outcomes(self, task: Task, report: Report) -> Iterator[tuple[str, Outcome]]:
        """Train one worker alone, then all of them with every method."""
        base, number = self.scenario(), self.workers
        half_precision = partial(methods.ssgd_rounded, rounding=methods.to_float16, share=0.5)
        bits = partial(methods.ssgd_rounded, rounding=methods.to_8_bits, share=0.25)
        # Corrected momentum sends sums of ten gradients, so that tau has to be as much higher.
        higher = replace(base, gtc=GtcConfig(threshold=FEWER * self.threshold))
        corrected = partial(methods.compressed, make=methods.CorrectedState, last="sgd")
        slow = replace(base, bmuf=methods.slow_momentum(number, self.block))
        # Without momentum the block learning rate is zeta = rate N = 1: the global model becomes
        # the mean of the workers' models.
        averaged = replace(base, bmuf=BmufConfig(self.block, momentum=0.0, rate=1 / number))
        yield "one worker", simulate("ssgd", 1, base, task)
        cases = [
            ("S-SGD", base, methods.ssgd),
            ("S-SGD, float16", base, half_precision),
            ("S-SGD, 8 bits", base, bits),
            ("GTC", base, methods.gtc),
            ("GTC, momentum corrected", higher, corrected),
            ("BMUF", base, methods.bmuf),
            ("BMUF as SlowMo", slow, methods.bmuf),
            ("local SGD", averaged, methods.bmuf),
            *(
                (
                    f"S-SGD to {until:.0%}, then local SGD",
                    averaged,
                    partial(methods.post_local, until=until),
                )
                for until in (0.25, 0.5)
            ),
            ("S-SGD to 50%, then BMUF", base, partial(methods.post_local, until=0.5)),
        ]
        for name, scenario, method in cases:
            yield name, method(Run(name, number, scenario, task))
            report(name)

    @property
    def note(self) -> str:
        """Describe the study."""
        return (
            f"{self.minibatches:,} minibatches of 8 frames, SGD with momentum 0.9; all workers are "
            "equally fast, 16 per host with 25 Gbit/s, so that only communication reduces the "
            "efficiency. A model has 97 MB, a step takes 0.3 s. The rounding error of a gradient "
            f"is added to the next gradient. Blocks of {self.block} minibatches stand for 100; tau "
            f"is {self.threshold:g}, with corrected momentum {FEWER * self.threshold:g}."
        )

    def rows(self, outcomes: list[tuple[str, Outcome]]) -> list[dict[str, object]]:
        """Return a row for each training."""
        alone = outcomes[0][1].accuracy
        return [
            {
                "method": name,
                "workers": outcome.workers,
                "accuracy, %": round(100 * outcome.accuracy, 2),
                "against one, %": round(100 * (outcome.accuracy / alone - 1), 2),
                "efficiency, %": round(100 * float(outcome.efficiency), 1),
                "MB per step": round(outcome.bytes_per_step / 1e6, 2),
            }
            for name, outcome in outcomes
        ]
