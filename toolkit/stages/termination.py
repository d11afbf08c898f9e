"""Ends a run on SIGTERM as on Ctrl-C: unfinished outputs are kept, and a line says so."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

COMPILERS = ("numba", "llvmlite")
"""Modules in which nothing is raised: what they call back from compiled code ignores exceptions, so
that half a kernel would be left, and its call crash."""
PAUSE = 0.05
"""Seconds until a signal that came while a kernel was compiled or loaded is sent again."""

_waiting = threading.Lock()


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end by SIGTERM; handled like Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise a `TerminatedError` on SIGTERM inside the `with` block, and end the child processes.

    Only this process gets the signal, whereas Ctrl-C reaches all of them. A second SIGTERM kills.
    Neither interrupts the compilation of a kernel. Whoever ignores SIGTERM, or is no main thread,
    is left alone.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    handlers = {signal.SIGTERM: (_terminate, signal.SIG_DFL)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers[signal.SIGINT] = (_interrupt, signal.default_int_handler)
    for number, (ours, _) in handlers.items():
        signal.signal(number, ours)
    try:
        yield
    finally:
        for number, (_, before) in handlers.items():
            signal.signal(number, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    if _comes_later(number, frame):
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.terminate()
    raise TerminatedError("stopped by SIGTERM")


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _comes_later(number, frame):
        signal.default_int_handler(number, frame)


def _comes_later(number: int, frame: FrameType | None) -> bool:
    """Whether a kernel is being made; then the signal is sent once more in a moment."""
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] not in COMPILERS:
        frame = frame.f_back
    if frame and _waiting.acquire(blocking=False):  # else it will be sent anyway
        timer = threading.Timer(PAUSE, _send, (number,))
        timer.daemon = True
        timer.start()
    return frame is not None


def _send(number: int) -> None:
    _waiting.release()
    os.kill(os.getpid(), number)
