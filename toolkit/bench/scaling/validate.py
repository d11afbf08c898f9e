"""The simulator measured against real processes: seconds of an epoch, predicted and measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from toolkit.bench.scaling.outcomes import NAMES
from toolkit.bench.scaling.processes import ALONE, Load, Machine, measure
from toolkit.parallel.config import AdpsgdConfig, BmufConfig, ParallelConfig
from toolkit.parallel.simulator.methods import simulate
from toolkit.parallel.simulator.network import GIGABIT, Network
from toolkit.parallel.simulator.run import Scenario, StepTimes

NODE = 2
"""Workers per node of H-ADPSGD."""
BLOCK = 10
"""Minibatches per block of BMUF."""
METHODS = {
    "ssgd": ParallelConfig("ssgd"),
    "scpsgd": ParallelConfig("scpsgd"),
    "gtc": ParallelConfig("gtc"),
    "bmuf": ParallelConfig("bmuf", bmuf=BmufConfig(block=BLOCK)),
    "asgd": ParallelConfig("asgd"),
    "adpsgd": ParallelConfig("adpsgd"),
    "adpsgd random": ParallelConfig("adpsgd", adpsgd=AdpsgdConfig("random")),
    "adpsgd shuffled": ParallelConfig("adpsgd", adpsgd=AdpsgdConfig("shuffled")),
    "adpsgd delayed": ParallelConfig("adpsgd", adpsgd=AdpsgdConfig("delayed")),
    "hadpsgd": ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(node=NODE)),
}
"""The methods compared, as the simulator names them."""


HEADING = "Seconds of an epoch of real processes on this machine, measured and predicted"


@dataclass(frozen=True)
class Compared:
    """Seconds of an epoch of one method and number of workers."""

    method: str
    workers: int
    measured: tuple[float, float]
    """Without and with the slow worker."""
    predicted: tuple[float, float]

    def error(self, slow: bool) -> float:
        """Return the prediction divided by the measurement, minus 1."""
        return self.predicted[slow] / self.measured[slow] - 1

    def kept(self, seconds: tuple[float, float]) -> float:
        """Return the share of the speed that is kept with the slow worker."""
        return seconds[0] / seconds[1]


def validate(
    workers: Sequence[int], load: Load, report: Callable[[str], None], methods: Sequence[str]
) -> list[Compared]:
    """Measure epochs of methods in real processes, and predict them.

    Args:
      workers: numbers of processes.
      load: their work.
      report: called with a line for each number.
      methods: some of `METHODS`.
    """
    compared = []
    for number in workers:
        machine = measure({method: METHODS[method] for method in methods}, number, load)
        report(f"{number} processes: all-reduce of the weights {1e3 * machine.reduction:.1f} ms")
        for method in methods:
            epochs = machine.epochs[method]
            predicted = predict(method, number, load, machine)
            compared.append(Compared(method, number, (epochs.even, epochs.slow), predicted))
    return compared


def table_rows(compared: Sequence[Compared]) -> list[dict[str, object]]:
    """Return a row for each method and number of workers."""
    return [
        {
            "method": NAMES[found.method],
            "processes": found.workers,
            "measured": round(found.measured[0], 2),
            "predicted": round(found.predicted[0], 2),
            "off, %": round(100 * found.error(slow=False), 1),
            "one slow, measured": round(found.measured[1], 2),
            "one slow, predicted": round(found.predicted[1], 2),
            "one slow, off, %": round(100 * found.error(slow=True), 1),
            "speed kept, %": round(100 * found.kept(found.measured)),
            "predicted, %": round(100 * found.kept(found.predicted)),
        }
        for found in compared
    ]


def note(load: Load) -> str:
    """Describe the measurement."""
    return (
        f"{load.steps} steps of each worker, {load.weights:,} weights, gloo. Instead of computing, "
        f"processes sleep for {load.seconds:g} s in every step, the slow one {load.factor:g} times "
        f"as long; both kinds of epochs alternate, {load.rounds} of each, whose medians are shown. "
        "Predicted from the time of the same epochs without exchanges, and that of an all-reduce."
    )


def predict(method: str, workers: int, load: Load, machine: Machine) -> tuple[float, float]:
    """Simulate an epoch without and with the slow worker.

    Of the machine only two things are known: how long epochs of processes take that do not
    exchange anything, and an all-reduce of the weights over all of them.
    """
    alone = machine.epochs[ALONE]
    size = 4.0 * load.weights
    rate = 2 * (workers - 1) * size / workers / machine.reduction / GIGABIT
    scenario = Scenario(
        minibatches=load.steps * workers,
        model_bytes=size,
        times=StepTimes(alone.even / load.steps),
        network=Network(NODE, rate, inside=rate, latency=0.0, latency_inside=0.0),
        bmuf=BmufConfig(block=BLOCK),
    )
    if method != "hadpsgd":  # all workers are on one host
        scenario = replace(scenario, network=replace(scenario.network, per_host=workers))
    even = simulate(method, workers, scenario, None).seconds
    factor = alone.slow / alone.even
    times = replace(scenario.times, slow={workers - 1: factor})
    return even, simulate(method, workers, replace(scenario, times=times), None).seconds
