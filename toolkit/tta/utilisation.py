"""Utilisation of CPUs and devices during a run, sampled by a background thread (A28).

The paper sampled 30 ms of `top` now and then; here every sample is the mean since the one before,
so that all time is covered, and bursts of fine samples alternate with coarse ones.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import psutil

from toolkit.environment import usable_cpus
from toolkit.processes import ranks
from toolkit.train.runlog import Utilisation
from toolkit.tta.accelerators import Accelerators

logger = logging.getLogger(__name__)
CHILDREN_INTERVAL = 5.0
"""Seconds between searches for new child processes, each of which takes milliseconds."""


@dataclass(frozen=True)
class UtilisationConfig:
    """Settings of sampling. By default a day makes about 8 MB of log."""

    fine: float = 0.1
    """Seconds between samples of a burst: a batch of the paper takes some seconds (A36)."""
    coarse: float = 5.0
    """Seconds between samples otherwise."""
    burst: float = 30.0
    """Seconds of a burst; the figure shows 25 of them (A36)."""
    period: float = 300.0
    """Seconds from the start of a burst to the start of the next."""

    def __post_init__(self) -> None:
        if not 0 < self.fine <= self.coarse:
            raise ValueError("needs 0 < fine <= coarse")
        if not 0 <= self.burst <= self.period or self.period <= 0:
            raise ValueError("needs 0 <= burst <= period and a period above 0")

    def interval(self, seconds: float) -> float:
        """Return the seconds until the next sample, `seconds` after the first."""
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
    started them. An error of the sampler, such as a full disk, only ends it with a warning.

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
      root: this process and its children are measured; by default the current one.
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
        spent = sum(map(self._cpu_seconds_since, list(self._processes)))
        process = spent / max(now - self._last_sample, 1e-9) / self._cpus
        if now - self._last_search >= CHILDREN_INTERVAL:
            self._last_search = now
            self._find_processes()
        self._last_sample = now
        cores = psutil.cpu_percent(percpu=True)
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
        process, before = self._processes[pid]
        try:
            seconds = _seconds(process)
        except psutil.Error:
            del self._processes[pid]
            return 0.0
        self._processes[pid] = process, seconds
        return max(0.0, seconds - before)


def _root() -> psutil.Process:
    """Return the process of which training consists, with its children."""
    own = psutil.Process()
    return own if ranks.world_size() == 1 else own.parent() or own


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
