"""Simulated trainings: Table I (C31), H-ADPSGD's cluster (B4) and stragglers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.simulator.methods import simulate
from toolkit.parallel.simulator.network import Network
from toolkit.parallel.simulator.run import Outcome, Scenario, StepTimes
from toolkit.parallel.simulator.tasks import FrameTask

TABLE1 = {"gtc": (8, 16, 32, 64), "bmuf": (8, 16, 32, 64, 128)}
"""Methods and numbers of workers of the paper's table (C31)."""
PAPERS_TAU = 8.0
"""The paper's tau, the threshold of GTC (C28)."""
REAL_BLOCK = 100
"""Minibatches per block of BMUF in the paper (C29)."""
PAPERS_MINIBATCHES = 11_720
"""Length of the paper's trainings, ten epochs of 1,000 h, in minibatches of the small task with
blocks of 2."""
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
    """Describe Table I's trainings: 16 GPUs per host, which has 25 Gbit/s (C25).

    `toolkit.bench.scaling.inputs` gives the source of each number. A minibatch of 64 chunks
    of 32 frames is 0.3 TFLOP, what such a GPU does in about 0.3 s. The spread of speeds
    is fitted to the published speed-ups of BMUF, whose workers hardly communicate.

    Args:
      minibatches: number of minibatches of the small task.
      block: BMUF's block length in the small task; it stands for one of 100 minibatches (C29).
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
    bmuf: tuple[float, ...]

    @property
    def peak(self) -> int:
        """Number of workers with which GTC is fastest."""
        return TABLE1["gtc"][max(range(len(self.gtc)), key=lambda i: self.gtc[i])]


def speedup_variations(scenario: Scenario, densities: Sequence[float]) -> list[Variation]:
    """Simulate the speed-ups of Table I, only times, with one input changed at a time.

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
        _variation("as in the table", base, densities),
        _variation("elements as with 8", base, densities[:1] * len(densities)),
        _variation("a third of elements", base, third),
        _variation(SHARED, shared, densities),
        _variation("100 Gbit/s of a host", faster, densities),
        _variation("steps 3 times as long", longer, densities),
        _variation("8 workers per host", smaller, densities),
        _variation("workers equally fast", even, densities),
    ]


def _variation(name: str, scenario: Scenario, densities: Sequence[float]) -> Variation:
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
    """Repeat trainings of Table I, with one input changed at a time, for their accuracies.

    Args:
      scenario: the table's scenario.
      task: the task to train on.
      trained: the table's trainings, used where a training does not depend on the changed input.
      report: called with a line for each training.
    """
    known = {(outcome.method, outcome.workers): outcome for outcome in trained}

    def retrain(name: str, other: Scenario, *methods: str) -> Retrained:
        found = dict(known)
        for case in [("ssgd", 1), *VARIED]:
            if case[0] in methods:
                found[case] = simulate(*case, other, task)
        report(f"Table I again: {name}")
        outcomes = tuple(found[case] for case in VARIED)
        return Retrained(name, other, found["ssgd", 1].accuracy, outcomes)

    least = max(workers for _, workers in VARIED)
    quarter = replace(scenario, minibatches=max(least, scenario.minibatches // 4))
    blocks = [
        replace(scenario, bmuf=replace(scenario.bmuf, block=block))
        for block in (max(1, scenario.bmuf.block // 2), 2 * scenario.bmuf.block)
    ]
    rates = [replace(scenario, max_rate=factor * scenario.max_rate) for factor in (0.5, 2.0)]
    other = 7.0 if scenario.gtc.threshold == PAPERS_TAU else PAPERS_TAU
    tau = replace(scenario, gtc=replace(scenario.gtc, threshold=other))
    return [
        retrain("as in the table", scenario),
        retrain("1/4 of the minibatches", quarter, "ssgd", "gtc", "bmuf"),
        *(retrain(f"blocks of {s.bmuf.block}", s, "bmuf") for s in blocks),
        *(retrain(f"rates up to {s.max_rate:g}", s, "gtc") for s in rates),
        retrain(f"tau {other:g}", tau, "gtc"),
    ]


ALONE_HOURS = 208.0
"""Hours of training on one V100: 40 times the published 5.2 h; (B5) also says a week, 168 h."""
IBM_PER_HOST = 8
"""GPUs per host (B4)."""
IBM_WEIGHTS = 43_300_000
"""6 bidirectional LSTM layers of 2 x 512 cells, 260 inputs, a layer of 256, 32,000 outputs."""
IBM_MINIBATCHES = 16 * 2000 * 360_000 / (128 * 21)
"""16 epochs of 2,000 h (B4) in minibatches of 128 chunks of 21 frames."""


IBM_HOST_RATE = IBM_PER_HOST * 4 * IBM_WEIGHTS / (11.5 * 3600 * 32 / IBM_MINIBATCHES)
"""Bytes of models per second that a host copies and averages: 4.5 GB/s. Fitted: with it the eight
learners of a host keep it busy for as long as a step of the published 11.5 h with 32 GPUs takes."""


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
    found = [(simulate(method, workers, scenario, None), False) for method, workers in cases]
    charged = replace(scenario, host_rate=IBM_HOST_RATE)
    cases = [("adpsgd", 32), ("adpsgd", 64), ("hadpsgd", 64)]
    return found + [(simulate(method, workers, charged, None), True) for method, workers in cases]


def stragglers(shares: Sequence[float]) -> list[tuple[Outcome, Outcome]]:
    """Simulate time with equal workers and with one ten times as slow, for each method."""
    found = []
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
        found.append((pair[0], pair[1]))
    return found
