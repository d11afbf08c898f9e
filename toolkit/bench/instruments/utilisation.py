"""How busy processors and devices are while something runs, sampled from a thread beside it (A28).

The paper looked at 30 ms of `top` now and then; here every sample is the mean since the one before,
so that nothing falls between two, and bursts of fine samples alternate with coarse ones.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import psutil

from toolkit.bench.instruments.nvml import Devices
from toolkit.environment import usable_cpus
from toolkit.processes import ranks
from toolkit.train.runlog import Utilisation

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LOOKS = 5.0
"""How often the process's children are looked for, which takes milliseconds."""


@dataclass(frozen=True)
class UtilisationConfig:
    """When to sample. A day of it makes about 8 MB of log."""

    fine: float = 0.1
    """Seconds between samples of a burst: a batch of the paper takes some seconds (A36)."""
    coarse: float = 5.0
    """Seconds between samples otherwise."""
    burst: float = 30.0
    """Seconds that a burst lasts; the figure shows 25 (A36)."""
    period: float = 300.0
    """Seconds from the beginning of a burst to that of the next."""

    def __post_init__(self) -> None:
        if not 0 < self.fine <= self.coarse:
            raise ValueError("needs 0 < fine <= coarse")
        if not 0 <= self.burst <= self.period or self.period <= 0:
            raise ValueError("needs 0 <= burst <= period and a period above 0")

    def interval(self, seconds: float) -> float:
        """Seconds until the next sample, `seconds` after the first; a burst begins on time."""
        phase = seconds % self.period
        if phase < self.burst:
            return self.fine
        return min(self.coarse, max(self.period - phase, self.fine))


@contextmanager
def sampling(
    write: Callable[[Utilisation], None], config: UtilisationConfig | None = None
) -> Iterator[None]:
    """Sample utilisation inside the `with` block.

    With several ranks, all those of this machine are counted: the children of what started them.
    A fault of the sampler, such as a full disk, ends it with a warning and nothing else.

    Args:
      write: is given each sample, from the sampler's thread; such as `RunLogWriter.write`.
      config: when to sample.
    """
    config, root = config or UtilisationConfig(), _root()
    stop = threading.Event()

    def run() -> None:
        try:
            meter, began = Meter(root), monotonic()
            while not stop.wait(config.interval(monotonic() - began)):
                write(meter.sample())
        except Exception:
            logger.warning("utilisation is not sampled any more", exc_info=True)

    thread = threading.Thread(target=run, name="utilisation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Meter:
    """Measures, at each call of `sample`, the time since the call before.

    Args:
      root: counted with its children; by default this process.
    """

    def __init__(self, root: psutil.Process | None = None) -> None:
        self._root = root or psutil.Process()
        self._devices = Devices()
        self._cpus = usable_cpus()
        self._processes: dict[int, tuple[psutil.Process, float]] = {}
        self._looked = self._then = monotonic()
        self._look_around()
        psutil.cpu_percent(percpu=True)

    def sample(self) -> Utilisation:
        """Return the shares (0 to 1) of each usable core, of each device and of the processes.

        Those are `root` and its children, as data readers are (A28: of the process).
        """
        now = monotonic()
        spent = sum(map(self._spent, list(self._processes)))
        process = spent / max(now - self._then, 1e-9) / self._cpus
        if now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked = now
            self._look_around()
        self._then = now
        cores = psutil.cpu_percent(percpu=True)
        if hasattr(os, "sched_getaffinity"):
            cores = [cores[n] for n in sorted(os.sched_getaffinity(0)) if n < len(cores)]
        return Utilisation(
            cpu=tuple(round(core / 100, 3) for core in cores),
            gpus=self._devices.utilisation(),
            process=round(min(process, 1.0), 4),
        )

    def _look_around(self) -> None:
        """Count the processes that are there from now on."""
        for process in (self._root, *self._root.children(recursive=True)):
            self._look(process)

    def _look(self, process: psutil.Process) -> None:
        """Count a process from now on."""
        if process.pid not in self._processes:
            try:
                self._processes[process.pid] = process, _seconds(process)
            except psutil.Error:  # it has ended
                return

    def _spent(self, pid: int) -> float:
        """Return the processor seconds of a process since the last call."""
        process, before = self._processes[pid]
        try:
            seconds = _seconds(process)
        except psutil.Error:
            del self._processes[pid]
            return 0.0
        self._processes[pid] = process, seconds
        return max(0.0, seconds - before)


def _root() -> psutil.Process:
    """Return the process whose children train."""
    own = psutil.Process()
    return own if ranks.count() == 1 else own.parent() or own


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
