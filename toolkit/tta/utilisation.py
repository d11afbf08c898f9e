"""Utilisation of processors and devices during training (A28, A36): samples, phases of a step.

The paper sampled 30 ms of `top` now and then; here every sample is the mean since the sample
before, so that all time is covered, and bursts of fine samples alternate with coarse samples.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from time import monotonic
from typing import Literal

import numpy as np
import psutil

from toolkit.config.fields import NonNegative, Positive, Settings
from toolkit.environment import usable_cpus
from toolkit.processes import ranks
from toolkit.train.runlog import Utilisation
from toolkit.tta.machine import Accelerators

logger = logging.getLogger(__name__)
CHILDREN_INTERVAL = 5.0
"""Seconds between searches for new child processes, each of which takes milliseconds."""


@dataclass(frozen=True)
class UtilisationConfig(Settings):
    """Settings of sampling. By default a day makes about 8 MB of log."""

    fine: Positive = 0.1
    """Seconds between samples of a burst: a batch of the paper takes some seconds (A36)."""
    coarse: Positive = 5.0
    """Seconds between samples otherwise."""
    burst: NonNegative = 30.0
    """Seconds of a burst; the figure shows 25 of them (A36)."""
    period: Positive = 300.0
    """Seconds from the start of a burst to the start of the next."""

    def check(self) -> None:
        """Refuse `fine` above `coarse`, and `burst` above `period`."""
        if self.fine > self.coarse:
            raise ValueError(
                f"`fine` is {self.fine:g}; it must be at most `coarse`, which is {self.coarse:g}"
            )
        if self.burst > self.period:
            raise ValueError(
                f"`burst` is {self.burst:g}; it must be at most `period`, which is {self.period:g}"
            )

    def interval(self, seconds: float) -> float:
        """Return the wait in seconds before the next sample, `seconds` after the start."""
        phase = seconds % self.period
        if phase < self.burst:
            return self.fine
        return min(self.coarse, max(self.period - phase, self.fine))


@contextmanager
def sampling(
    write: Callable[[Utilisation], None], config: UtilisationConfig | None = None
) -> Iterator[None]:
    """Sample utilisation inside the `with` block.

    With several ranks, all ranks on this machine are included: the children of the process that
    started them. An error while sampling, such as a full disk, ends only the sampling, with a
    warning.

    Args:
      write: called with each sample in the sampler's thread, such as `RunLogWriter.write`.
      config: settings of sampling.
    """
    config, root = config or UtilisationConfig(), _root()
    if reason := Accelerators().unmeasured():
        logger.warning("the utilisation of the GPUs is not measured: %s", reason)
    stop = threading.Event()

    def run() -> None:
        try:
            meter, start = Meter(root), monotonic()
            while not stop.wait(config.interval(monotonic() - start)):
                write(meter.sample())
        except Exception:
            logger.warning("utilisation sampling stopped after an error", exc_info=True)

    thread = threading.Thread(target=run, name="utilisation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Meter:
    """Measures utilisation since the previous call of `sample`.

    Args:
      root: the process that is measured, with its children; by default the current process.
    """

    def __init__(self, root: psutil.Process | None = None) -> None:
        self._root = root or psutil.Process()
        self._devices = Accelerators()
        self._cpus = usable_cpus()
        self._processes: dict[int, tuple[psutil.Process, float]] = {}
        self._last_search = self._last_sample = monotonic()
        self._find_processes()
        psutil.cpu_percent(percpu=True)

    def sample(self) -> Utilisation:
        """Return the shares (0 to 1) of each usable core, of each device and of the processes.

        The processes are `root` and its children, such as data readers (A28: of the process).
        """
        now = monotonic()
        # Share of all usable cores: processor seconds / (wall seconds * cores).
        cpu_seconds = sum(map(self._cpu_seconds_since, list(self._processes)))
        process = cpu_seconds / max(now - self._last_sample, 1e-9) / self._cpus
        if now - self._last_search >= CHILDREN_INTERVAL:
            self._last_search = now
            self._find_processes()
        self._last_sample = now
        cores = psutil.cpu_percent(percpu=True)
        # Only the cores that this process may use.
        if hasattr(os, "sched_getaffinity"):
            cores = [cores[n] for n in sorted(os.sched_getaffinity(0)) if n < len(cores)]
        return Utilisation(
            cpu=tuple(round(core / 100, 3) for core in cores),
            gpus=self._devices.utilisation(),
            process=round(min(process, 1.0), 4),
        )

    def _find_processes(self) -> None:
        """Find new processes, which are measured from now on."""
        for process in (self._root, *self._root.children(recursive=True)):
            self._add_process(process)

    def _add_process(self, process: psutil.Process) -> None:
        """Measure a process from now on."""
        if process.pid not in self._processes:
            try:
                self._processes[process.pid] = process, _seconds(process)
            except psutil.Error:  # it has ended
                return

    def _cpu_seconds_since(self, pid: int) -> float:
        """Return the CPU seconds of a process since the last call."""
        process, previous_seconds = self._processes[pid]
        try:
            seconds = _seconds(process)
        except psutil.Error:
            del self._processes[pid]
            return 0.0
        self._processes[pid] = process, seconds
        return max(0.0, seconds - previous_seconds)


def _root() -> psutil.Process:
    """Return the process that makes up the training together with its children."""
    process = psutil.Process()
    return process if ranks.world_size() == 1 else process.parent() or process


def _seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process."""
    times = process.cpu_times()
    return times.user + times.system


Phase = Literal["transfer", "compute", "update"]
LEAST_SWING = 0.15
"""Smallest variation of the devices' mean utilisation with which phases are detected."""
WAITING, WORKING = 0.25, 0.75
"""A device waits if its utilisation is below the first share and another's above the second."""


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
    """[S] each sample's end; the first is 0."""
    cpu: np.ndarray
    """[S] share of all cores that the training used (A28), 0 to 1; the whole machine's share if the
    log does not have the training's."""
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

    Among intervals with equally many samples, those that overlap least with `avoid` are taken, and
    of these the middle one: the paper's trends are stable over time, but the first minutes of a
    training are not.

    Args:
      samples: in order of time.
      length: in seconds.
      avoid: (begin, end) of pauses of training.

    Returns:
      The interval; None if there are fewer than 3 samples.
    """
    if len(samples) < 3:
        return None
    ends = np.array([sample.seconds for sample in samples])
    # For each sample as the first of a window: the end of the window, and its number of samples.
    last = np.searchsorted(ends, ends + length, side="right")
    counts = last - np.arange(len(ends))
    # Counts differ because sampling times are rounded: 2 % fewer samples are as good.
    best = np.flatnonzero(counts >= 0.98 * counts.max())
    paused = np.zeros(len(best))
    for begin, end in avoid:
        # Overlap of the pause with each window in seconds.
        paused += np.clip(
            np.minimum(end, ends[best] + length) - np.maximum(begin, ends[best]), 0, None
        )
    # Half a second of pause more or less (2 % of 25 s) does not matter.
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
    intervals, the transfer of the next batch begins with the CPUs' spike, where they first exceed
    the middle of their range in between; the time before is the update (gather, sum, update).

    Returns:
      Spans in order; empty without devices, or if their utilisation is constant.
    """
    if not samples.gpus.shape[1]:
        return []
    # [S] mean over devices.
    busy = samples.gpus.mean(axis=1)
    # Percentiles instead of the extremes, which single samples reach.
    low, high = np.percentile(busy, [5, 95])
    if high - low < LEAST_SWING:
        return []
    spans = []
    computes = busy > (low + high) / 2
    # A sample covers the time since the sample before.
    begins = np.concatenate([samples.seconds[:1], samples.seconds[:-1]])

    def add(phase: Phase, first: int, end: int) -> None:
        if end > first:
            spans.append(Span(phase, float(begins[first]), float(samples.seconds[end - 1])))

    position = 0
    for on, run in groupby(computes.tolist()):
        first, position = position, position + len(list(run))
        if on:
            add("compute", first, position)
            continue
        cpu = samples.cpu[first:position]
        # First sample above the middle of the CPUs' range: reading of the next batch begins.
        spike = int(np.argmax(cpu >= (cpu.min() + cpu.max()) / 2))
        # If the window ends before the next spike, all that is left is the update.
        if spike == 0 and position == len(computes):
            spike = len(cpu)
        cut = first + spike
        add("update", first, cut)
        add("transfer", cut, position)
    return spans


def waiting(samples: Window) -> list[float]:
    """Return the share of the time (0 to 1) that each device waits while another computes (A36).

    It shows unequal links: the device with the widest link is done first and idles.
    """
    if samples.gpus.shape[1] < 2:
        return [0.0] * samples.gpus.shape[1]
    others_work = samples.gpus.max(axis=1, keepdims=True) > WORKING
    return ((samples.gpus < WAITING) & others_work).mean(axis=0).tolist()


def mean_utilisation(samples: Sequence[Utilisation]) -> tuple[float, list[float]]:
    """Return the mean share of all cores and of each device, weighted by the samples' spans.

    The share of the cores is the training's, or the whole machine's if the log has only that.
    """
    if not samples:
        return 0.0, []
    ends = np.array([0.0, *(sample.seconds for sample in samples)])
    # A sample counts for the seconds since the sample before.
    weights = np.maximum(np.diff(ends), 1e-9)
    devices = min(len(sample.gpus) for sample in samples)
    has_process_times = any(sample.process for sample in samples)
    cpu = np.average(
        [s.process if has_process_times else _cores(s) for s in samples], weights=weights
    )
    gpus = [
        float(np.average([sample.gpus[n] for sample in samples], weights=weights))
        for n in range(devices)
    ]
    return float(cpu), gpus


def _cores(sample: Utilisation) -> float:
    """Return the mean utilisation of all cores in a sample."""
    return float(np.mean(sample.cpu)) if sample.cpu else 0.0
