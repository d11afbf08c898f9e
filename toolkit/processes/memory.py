"""The peak memory of this process and of the processes that it starts; garbage collection."""

import contextlib
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from toolkit.environment import peak_bytes, reset_peak

if TYPE_CHECKING:
    from psutil import Process

INTERVAL = 0.5  # seconds

excluded_pids: set[int] = set()
"""Neither these processes nor their descendants are counted: another watch measures them."""
_resident = 0  # bytes, as of the last sample of a watch that is running


class MemoryWatch:
    """Measures the peak resident size of this process and its descendants in a `with` block.

    Every `INTERVAL` seconds the sizes of all these processes are added up; shared memory counts for
    each of them. The server from which workers are forked is not counted, since they share its
    memory. For this process alone, the system also records the peak between these samples.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)
        self._kernel_counts = False
        self.peak_bytes = 0
        """The peak so far; complete once the block has been left."""

    def __enter__(self) -> "MemoryWatch":
        self._kernel_counts = reset_peak()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _resident
        self._stop.set()
        self._thread.join()
        if self._kernel_counts:
            self.peak_bytes = max(self.peak_bytes, peak_bytes())
        else:
            self._sample()
        _resident = 0

    def _watch(self) -> None:
        """Sample the memory at intervals until the block is left; runs in a thread."""
        while not self._stop.wait(INTERVAL):
            self._sample()

    def _sample(self) -> None:
        """Measure the resident size of the process and its descendants, and update the peak."""
        global _resident
        import psutil

        process, total = psutil.Process(), 0
        excluded = set(excluded_pids)
        for pid in excluded_pids:
            with contextlib.suppress(psutil.Error):
                excluded |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        excluded |= {child.pid for child in process.children() if is_fork_server(child)}
        for each in (process, *process.children(recursive=True)):
            if each.pid not in excluded:
                with contextlib.suppress(psutil.Error):  # it has just ended
                    total += each.memory_info().rss
        self.peak_bytes, _resident = max(self.peak_bytes, total), total


def is_fork_server(child: "Process") -> bool:
    """Return whether a child of this process is the server from which its workers are forked.

    The workers have the same command line, but are children of the server.
    """
    import psutil

    try:
        return any("multiprocessing.forkserver" in word for word in child.cmdline())
    except psutil.Error:  # it has just ended
        return False


def resident_bytes() -> int:
    """Return the resident size in the last sample of a running `MemoryWatch`; 0 without one."""
    return _resident


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector in a `with` block, or in a function that it decorates.

    For work that makes many objects, none of them in a cycle. A collection visits all objects, so
    time would grow faster than their number: scoring takes 15 microseconds per utterance for 2,000
    utterances, and for 16,000 it takes 19 with collections and 15 without.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
