"""The peak of the memory of this process and of the processes that it starts."""

import contextlib
import threading
from types import TracebackType

from toolkit.environment import forget_peak, peak_bytes
from toolkit.processes.context import server_pid

INTERVAL = 0.5  # seconds

counted_apart: set[int] = set()
"""Processes that, with their descendants, do not count: another watch measures them."""
_held = 0  # bytes, as of the last sample of a watch that is running


class MemoryWatch:
    """Measures, in a `with` block, the peak resident size of this process and of its descendants.

    Every `INTERVAL` seconds the sizes of all are added up; what they share counts for each of them.
    The process from which workers are forked does not count: they have what it has. Of this process
    alone the system also knows the peak in between.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)
        self._own_counts = False
        self.peak_bytes = 0
        """The peak so far; complete once the block has been left."""

    def __enter__(self) -> "MemoryWatch":
        self._own_counts = forget_peak()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _held
        self._stop.set()
        self._thread.join()
        if self._own_counts:
            self.peak_bytes = max(self.peak_bytes, peak_bytes())
        else:
            self._sample()
        _held = 0

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._sample()

    def _sample(self) -> None:
        global _held
        import psutil

        me, total = psutil.Process(), 0
        left_out = {server_pid(), *counted_apart}
        for pid in counted_apart:
            with contextlib.suppress(psutil.Error):
                left_out |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        for process in (me, *me.children(recursive=True)):
            if process.pid in left_out:
                continue
            try:
                total += process.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
        self.peak_bytes, _held = max(self.peak_bytes, total), total


def held_bytes() -> int:
    """Return what a running `MemoryWatch` found in its last sample; 0 without one."""
    return _held
