"""Ends a run on SIGTERM as on Ctrl-C: unfinished outputs are kept, and a line says so."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end by SIGTERM; handled like Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise a `TerminatedError` on SIGTERM inside the `with` block, and end the child processes.

    Only this process gets the signal, whereas Ctrl-C reaches all of them. A second SIGTERM kills.
    Whoever ignores the signal, or is no main thread, is left alone.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.terminate()
    raise TerminatedError("stopped by SIGTERM")
