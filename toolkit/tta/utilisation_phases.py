"""Detection of a step's phases, and of devices that wait for others, from utilisation (A36)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from toolkit.train.runlog import Utilisation

Phase = Literal["transfer", "compute", "update"]
LEAST_SWING = 0.15
"""If the devices' mean utilisation varies by less than this share, no phases are detected."""
WAITING, WORKING = 0.25, 0.75
"""A device below the first share while another is above the second waits for it."""


@dataclass(frozen=True)
class Span:
    """Begin and end of a phase."""

    phase: Phase
    begin: float
    """Seconds, in the samples' clock."""
    end: float


@dataclass(frozen=True)
class Window:
    """Samples of an interval, at an even rate."""

    seconds: np.ndarray
    """[S], each sample's end, the first at 0."""
    cpu: np.ndarray
    """[S] share of all cores that the training used (A28), 0 to 1; that of the whole machine
    where the log does not have the training's own."""
    machine: np.ndarray
    """[S] share of all cores used by the whole machine."""
    gpus: np.ndarray
    """[S, G] share of each device."""
    began: float
    """Seconds after the model's creation at which the window begins."""


def window(
    samples: Sequence[Utilisation],
    length: float = 25.0,
    avoid: Sequence[tuple[float, float]] = (),
) -> Window | None:
    """Select the interval of at most `length` seconds with the most samples (A36: 25).

    Among equal ones the one with the least of `avoid` in it, and among those the middle one: the
    paper's trends are stable over time, but the first minutes of a training are not.

    Args:
      samples: in order of time.
      length: in seconds.
      avoid: (begin, end) of pauses of training.

    Returns:
      None where there are fewer than 3 samples.
    """
    if len(samples) < 3:
        return None
    ends = np.array([sample.seconds for sample in samples])
    last = np.searchsorted(ends, ends + length, side="right")
    counts = last - np.arange(len(ends))
    best = np.flatnonzero(counts >= 0.98 * counts.max())
    paused = np.zeros(len(best))
    for begin, end in avoid:
        paused += np.clip(
            np.minimum(end, ends[best] + length) - np.maximum(begin, ends[best]), 0, None
        )
    best = best[paused <= paused.min() + 0.02 * length]
    first = best[len(best) // 2]
    chosen = samples[first : last[first]]
    devices = min(len(sample.gpus) for sample in chosen)
    machine = np.array([_cores(sample) for sample in chosen])
    process = np.array([sample.process for sample in chosen])
    return Window(
        seconds=ends[first : last[first]] - ends[first],
        cpu=process if process.any() else machine,
        machine=machine,
        gpus=np.array([sample.gpus[:devices] for sample in chosen]).reshape(len(chosen), devices),
        began=float(ends[first]),
    )


def phases(samples: Window) -> list[Span]:
    """Find the three phases of each step: transfer, compute on the devices, update (A36).

    Devices compute where their mean utilisation is above the middle of its range. Between two such
    intervals, the spike of the CPUs, from where they first exceed the middle of their range in it,
    is the transfer of the next batch; the time before it is the update (gather, sum, update).

    Returns:
      Spans in order; empty without devices, or if their utilisation is constant.
    """
    if not samples.gpus.shape[1]:
        return []
    busy = samples.gpus.mean(axis=1)
    low, high = np.percentile(busy, [5, 95])
    if high - low < LEAST_SWING:
        return []
    found = []
    computes = busy > (low + high) / 2
    begins = np.concatenate([samples.seconds[:1], samples.seconds[:-1]])

    def add(phase: Phase, first: int, end: int) -> None:
        if end > first:
            found.append(Span(phase, float(begins[first]), float(samples.seconds[end - 1])))

    position = 0
    for on, run in groupby(computes.tolist()):
        first, position = position, position + len(list(run))
        if on:
            add("compute", first, position)
            continue
        cpu = samples.cpu[first:position]
        spike = int(np.argmax(cpu >= (cpu.min() + cpu.max()) / 2))
        if spike == 0 and position == len(computes):  # the next transfer is after the window
            spike = len(cpu)
        cut = first + spike
        add("update", first, cut)
        add("transfer", cut, position)
    return found


def waiting(samples: Window) -> list[float]:
    """Return the share of the time (0 to 1) that each device waits while another computes (A36).

    It shows unequal links: the device with the widest one is done first and idles.
    """
    if samples.gpus.shape[1] < 2:
        return [0.0] * samples.gpus.shape[1]
    others_work = samples.gpus.max(axis=1, keepdims=True) > WORKING
    return ((samples.gpus < WAITING) & others_work).mean(axis=0).tolist()


def mean_utilisation(samples: Sequence[Utilisation]) -> tuple[float, list[float]]:
    """Return the mean share of all cores and of each device, weighted by the samples' spans.

    The cores' share is that of the training, or of the whole machine where the log has only that.
    """
    if not samples:
        return 0.0, []
    ends = np.array([0.0, *(sample.seconds for sample in samples)])
    weights = np.maximum(np.diff(ends), 1e-9)
    devices = min(len(sample.gpus) for sample in samples)
    own = any(sample.process for sample in samples)
    cpu = np.average([s.process if own else _cores(s) for s in samples], weights=weights)
    gpus = [
        float(np.average([sample.gpus[n] for sample in samples], weights=weights))
        for n in range(devices)
    ]
    return float(cpu), gpus


def _cores(sample: Utilisation) -> float:
    return float(np.mean(sample.cpu)) if sample.cpu else 0.0
