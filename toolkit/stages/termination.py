"""Ends a run on SIGTERM as on Ctrl-C: unfinished outputs are kept, and a line says so."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TypeVar

CALLED_BACK = ("numba", "llvmlite", "soundfile")
"""Modules in which nothing is raised: they are called back from compiled code that ignores
exceptions, so that half a kernel would be left, and its call crash; half a recording would be."""
PAUSE = 0.05
"""Seconds until a signal that came where nothing can be raised is sent again."""

F = TypeVar("F", bound=Callable)
_callbacks: set[CodeType] = set()
_raised: list[KeyboardInterrupt] = []
"""By signals, in the present `with` block."""
_waiting: dict[int, threading.Timer] = {}
"""By signal, what will send it again."""


def interruption() -> KeyboardInterrupt | None:
    """Return what a signal has raised in the present `terminable` block, None if none came.

    Where C code calls back it may become an error of that code, or be caught as one.
    """
    return _raised[-1] if _raised else None


def uninterrupted(callback: F) -> F:
    """Let no signal raise an exception in a function that C code calls, which would ignore it.

    Returns:
      The same function.
    """
    _callbacks.add(callback.__code__)
    return callback


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end by SIGTERM; handled like Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise a `TerminatedError` on SIGTERM inside the `with` block, and end the child processes.

    Only this process gets the signal, whereas Ctrl-C reaches all of them. A second SIGTERM kills.
    Neither interrupts the compilation of a kernel or an `uninterrupted` function; both come again
    where Python has ignored what was raised, as it does in a `__del__`. Whoever ignores SIGTERM,
    or is no main thread, is left alone.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    _raised.clear()
    hook, sys.unraisablehook = sys.unraisablehook, _come_again(sys.unraisablehook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for timer in _waiting.values():
            timer.cancel()
        _waiting.clear()
        _raised.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    if _comes_later(number, frame):
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.terminate()
    _raised.append(TerminatedError("stopped by SIGTERM"))
    raise _raised[-1]


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _comes_later(number, frame):
        _raised.append(KeyboardInterrupt())
        raise _raised[-1]


def _comes_later(number: int, frame: FrameType | None) -> bool:
    """Whether nothing may be raised at present; then the signal is sent once more in a moment."""
    while frame and not _is_called_back(frame):
        frame = frame.f_back
    if frame:
        _send_later(number)
    return frame is not None


def _is_called_back(frame: FrameType) -> bool:
    if frame.f_code in _callbacks:
        return True
    return frame.f_globals.get("__name__", "").partition(".")[0] in CALLED_BACK


def _come_again(before: Callable) -> Callable:
    """Return a hook for ignored exceptions, by which a signal is not lost."""

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if isinstance(ignored.exc_value, TerminatedError):
            signal.signal(signal.SIGTERM, _terminate)
            _send_later(signal.SIGTERM)
        elif isinstance(ignored.exc_value, KeyboardInterrupt):
            _send_later(signal.SIGINT)
        else:
            before(ignored)

    return hook


def _send_later(number: int) -> None:
    if number not in _waiting:
        timer = _waiting[number] = threading.Timer(PAUSE, _send, (number,))
        timer.daemon = True
        timer.start()


def _send(number: int) -> None:
    if _waiting.pop(number, None):
        os.kill(os.getpid(), number)
