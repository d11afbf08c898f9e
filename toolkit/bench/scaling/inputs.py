"""What goes into the simulated Table I (C31), and where each number of it comes from."""

from dataclasses import dataclass
from typing import Literal

from toolkit.parallel.simulator.run import Scenario
from toolkit.parallel.simulator.task import FrameTask

FRAMES = 64 * 32
"""Low-rate frames of a real minibatch: 64 chunks of 32 frames (C7), where 64 is assumed."""
FRAME_SECONDS = 0.03


@dataclass(frozen=True)
class Input:
    """A number that goes into a simulation."""

    name: str
    value: str
    kind: Literal["paper", "measured", "assumed", "fitted"]
    """`paper`: published for these trainings; `measured`: here; `assumed`: chosen without a source
    for these machines; `fitted`: chosen so that published results come out, which are therefore
    no results of the simulation."""
    why: str


def audio_hours(scenario: Scenario) -> float:
    """Hours of audio for which the minibatches of a simulated training stand, passes included."""
    return scenario.minibatches * scenario.stands_for * FRAMES * FRAME_SECONDS / 3600


def table1_inputs(scenario: Scenario, task: FrameTask, made_up: bool) -> list[Input]:
    """List what goes into Table I: first what decides accuracy, then what decides time.

    Args:
      scenario: of the table.
      task: what is trained.
      made_up: whether its frames are drawn from Gaussians, not of a run directory.
    """
    bmuf, times, network = scenario.bmuf, scenario.times, scenario.network
    momentum = "1 - 1/N" if bmuf.momentum is None else f"{bmuf.momentum:g}"
    core = f"{network.core:g} Gbit/s" if network.core else "no limit"
    frames = "made up" if made_up else "of the run directory"
    return [
        Input(
            "task",
            f"{task.frames:,} frames, {task.size:,} weights",
            "assumed",
            f"a small network in place of the real one, on frames {frames}",
        ),
        Input(
            "length of training",
            f"{scenario.minibatches:,} minibatches",
            "assumed",
            f"of {scenario.frames} frames; each stands for {scenario.stands_for:g} real ones, all "
            f"for {audio_hours(scenario):,.0f} h of audio; the paper's are 1,000 h (C32), and "
            "10 epochs (C7) of them 10,000; accuracy depends on it, see below",
        ),
        Input(
            "learning rate",
            f"{scenario.rate:g} to {scenario.final_rate:g}",
            "assumed",
            "for the small task; the exponential decay is the paper's (C7)",
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
            "in place of the paper's 100 (C29); accuracy depends on it, see below",
        ),
        Input("block momentum", momentum, "assumed", f"with C = {bmuf.rate:g}, at least 1 (C29)"),
        Input(
            "tau of GTC",
            f"{scenario.gtc.threshold:g}",
            "paper" if scenario.gtc.threshold == 8 else "assumed",
            f"8 (C28), for the real model; here on sums over {scenario.frames} frames of the small "
            "one; decides how much is sent, and so speed-up and accuracy, see below",
        ),
        Input("model", f"{scenario.model_bytes / 1e6:.0f} MB", "paper", "24.27 M float32 (C6)"),
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
        Input("workers per host", f"{network.per_host}", "paper", "GPUs of a p2.16xlarge (C25)"),
        Input(
            "network card of a host",
            f"{network.between:g} Gbit/s",
            "assumed",
            "given for p3.16xlarge alone (C25)",
        ),
        Input(
            "links inside a host",
            f"{network.inside:g} Gbit/s",
            "assumed",
            "given for p3.16xlarge alone (C25)",
        ),
        Input(
            "all hosts together",
            core,
            "assumed",
            "not in (C25); whether GTC is slower with 64 workers than with 32 depends on it and on "
            "how much it sends, see below",
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
