"""N workers in one process: the methods' own mathematics on a small problem, under a virtual clock.

What is computed is real: every worker's gradients on a small task, and what the method does with
them. What is simulated is time: steps take what was measured or given, messages what the network
needs for the real model's bytes.
"""

from toolkit.parallel.simulator import asynchronous, synchronous
from toolkit.parallel.simulator.run import Outcome, Run, Scenario
from toolkit.parallel.simulator.task import FrameTask


def simulate(
    method: str, workers: int, scenario: Scenario, task: FrameTask | None, points: int = 1
) -> Outcome:
    """Simulate a training.

    Args:
      method: `ssgd`, `scpsgd`, `gtc`, `bmuf`, `asgd`, `hadpsgd`, `hadpsgd random`, `adpsgd`,
        `adpsgd random`, `adpsgd delayed`.
      workers: N.
      scenario: see there.
      task: what is trained; None simulates time alone.
      points: how often the held-out loss is taken, evenly over the data.

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
