"""The inputs of the simulated Table I (C31), and the source of each number."""

from dataclasses import dataclass
from typing import Literal

from toolkit.parallel.simulator.run import Scenario
from toolkit.parallel.simulator.tasks import FrameTask

FRAMES = 64 * 32
"""Low-rate frames of a real minibatch: 64 chunks of 32 frames (C7); the 64 are assumed."""
FRAME_SECONDS = 0.03
SHAPING_MINIBATCHES = 360_000
"""Length of training that was chosen for losses of accuracy of the order of the published ones."""


Kind = Literal["paper", "measured", "assumed", "fitted"]


@dataclass(frozen=True)
class Input:
    """An input of a simulation."""

    name: str
    value: str
    kind: Kind
    """`paper`: published for these trainings; `measured`: on this machine; `assumed`: without a
    source for these machines; `fitted`: to published results, which are then no results of the
    simulation."""
    why: str
    """Source or reason of the value."""


def audio_hours(scenario: Scenario) -> float:
    """Return the hours of audio that a simulated training stands for, all epochs included."""
    return scenario.minibatches * scenario.stands_for * FRAMES * FRAME_SECONDS / 3600


def table1_inputs(scenario: Scenario, task: FrameTask, synthetic: bool) -> list[Input]:
    """List the inputs of Table I: first those of the accuracies, then those of the times.

    Args:
      scenario: the table's scenario.
      task: the task to train on.
      synthetic: whether its frames are drawn from Gaussians, not taken from a run directory.
    """
    bmuf, times, network = scenario.bmuf, scenario.times, scenario.network
    momentum = "1 - 1/N" if bmuf.momentum is None else f"{bmuf.momentum:g}"
    core = f"{network.core:g} Gbit/s" if network.core else "no limit"
    frames = "synthetic frames" if synthetic else "frames of the run directory"
    return [
        Input(
            "task",
            f"{task.frames:,} frames, {task.size:,} weights",
            "assumed",
            f"a small network in place of the real one, on {frames}",
        ),
        Input(
            "length of training",
            f"{scenario.minibatches:,} minibatches",
            _chosen(scenario.minibatches == SHAPING_MINIBATCHES),
            f"of {scenario.frames} frames; each stands for {scenario.stands_for:g} real ones, all "
            f"for {audio_hours(scenario):,.0f} h of audio; the paper's are 1,000 h, in "
            f"10 epochs 10,000 h, which the table has beside it; {SHAPING_MINIBATCHES:,} are "
            "chosen for losses of the order of the published ones",
        ),
        Input(
            "learning rate",
            f"{scenario.rate:g} to {scenario.final_rate:g}",
            "assumed",
            "for the small task; the exponential decay is the paper's",
        ),
        Input(
            "highest learning rate",
            f"{scenario.max_rate:g}",
            "assumed",
            "of GTC, whose rate grows with N up to it; accuracy depends on it, see below",
        ),
        Input("warm-up", f"{100 * scenario.warmup:g} % of the data", "assumed", "of all methods"),
        Input(
            "block of BMUF",
            f"{bmuf.block} minibatches",
            "assumed",
            "in place of the paper's 100; accuracy depends on it, see below",
        ),
        Input(
            "block momentum",
            momentum,
            "assumed",
            f"with C = {bmuf.rate:g} in the block learning rate; the paper's C is at least 1",
        ),
        Input(
            "tau of GTC",
            f"{scenario.gtc.threshold:g}",
            "paper" if scenario.gtc.threshold == 8 else "assumed",
            f"the paper's is 8, for the real model; here on sums over {scenario.frames} frames of "
            "the small one; determines how much is sent, and so speed-up and accuracy, see below",
        ),
        Input(
            "model", f"{scenario.model_bytes / 1e6:.0f} MB", "paper", "24.27 M weights in float32"
        ),
        Input(
            "seconds of a minibatch",
            f"{times.seconds:g}",
            "assumed",
            f"{FRAMES:,} frames are 0.3 TFLOP; about 1 TFLOP/s of a GPU",
        ),
        Input(
            "steps by their mean",
            f"{min(times.shares):.2f} to {max(times.shares):.2f}",
            "measured",
            "processor time of a small LSTM's steps on this machine, not on a GPU",
        ),
        Input(
            "spread of the workers' speeds",
            f"{100 * times.spread:g} %",
            "fitted",
            "to the published speed-ups of BMUF, whose workers hardly communicate",
        ),
        Input(
            "workers per host", f"{network.per_host}", "paper", "GPUs of the paper's p2.16xlarge"
        ),
        Input(
            "network card of a host",
            f"{network.between:g} Gbit/s",
            "assumed",
            "the paper gives it only for p3.16xlarge",
        ),
        Input(
            "links inside a host",
            f"{network.inside:g} Gbit/s",
            "assumed",
            "the paper gives it only for p3.16xlarge",
        ),
        Input(
            "all hosts together",
            core,
            _chosen(network.core > 0, "paper"),
            "the paper's 25 Gbit/s are those of each host; only where all hosts share them is "
            "GTC slower with 64 workers than with 32, see below",
        ),
        Input(
            "latency",
            f"{1e6 * network.latency:g} and {1e6 * network.latency_inside:g} us",
            "assumed",
            "between hosts, and inside one",
        ),
        Input(
            "coding of GTC",
            f"{scenario.codec / 1e9:g} GB/s",
            "assumed",
            "of the gradient, and of the messages of others",
        ),
    ]


def _chosen(fitted: bool, otherwise: Kind = "assumed") -> Kind:
    """Return the kind of a value that was perhaps chosen for the results to be as published."""
    return "fitted" if fitted else otherwise
