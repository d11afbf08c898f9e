"""Simulation of data-parallel training: real updates on a small task, in virtual time.

Computed for real are every worker's gradients on a small task, and the method's updates from them.
Simulated is the time: steps take as long as measured or configured, messages as long as the
modelled network needs for the real model's bytes.
"""

from toolkit.scaling.simulator import asynchronous, synchronous
from toolkit.scaling.simulator.run import Outcome, Run, Scenario
from toolkit.scaling.simulator.task import Task


def simulate(
    method: str, workers: int, scenario: Scenario, task: Task | None, points: int = 1
) -> Outcome:
    """Simulate a training.

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
        return asynchronous.Adpsgd(run, pattern or "fixed", group).simulate()
    methods = {
        "ssgd": synchronous.ssgd,
        "scpsgd": synchronous.scpsgd,
        "gtc": synchronous.gtc,
        "bmuf": synchronous.bmuf,
        "adpsgd": synchronous.delay_by_one,
        "asgd": asynchronous.asgd,
    }
    return methods[name](run)
