"""End a run on SIGTERM and Ctrl-C: a line names the stage; the same command continues the run.

Nothing is raised where the signal arrives. C code that calls back into Python, such as numba's
compiler, libsndfile and espeak-ng, ignores exceptions and would continue with half a kernel or half
a recording. The process exits at once instead, as if it had been killed, which loses nothing.
"""

import contextlib
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil

INTERRUPTED, TERMINATED = 130, 143
"""The shell's exit status for Ctrl-C and SIGTERM."""
GRACE = 3.0
"""Seconds that child processes have to end by themselves."""
cleanups: list[Callable[[], object]] = []
"""Functions to call before the process exits on a signal, such as to release a lock."""
_stage: int | None = None


@contextmanager
def in_stage(number: int) -> Iterator[None]:
    """Let the message of a signal that arrives in a `with` block name a stage."""
    global _stage
    _stage = number
    try:
        yield
    finally:
        _stage = None


@contextmanager
def exit_on_signals(message: bool = True) -> Iterator[None]:
    """Exit on SIGTERM (status 143) and on Ctrl-C (130) in a `with` block; child processes end too.

    A second signal kills. A process that ignores one of the signals, or handles SIGTERM itself,
    continues to do so. In threads other than the main one this does nothing.

    Args:
      message: whether to print a line on standard error.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        for caught in previous_handlers:
            signal.signal(caught, signal.SIG_DFL)
        if os.getpid() != process:  # a forked process, such as a reader of batches
            os.kill(os.getpid(), number)
            return
        _exit(number, message)

    previous_handlers = {signal.SIGTERM: signal.signal(signal.SIGTERM, handle)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _exit(number: int, message: bool) -> None:
    """Print the message, run the clean-ups, end the child processes and exit."""
    status = TERMINATED if number == signal.SIGTERM else INTERRUPTED
    # Clean-up that waits for what the signal has interrupted would wait for ever.
    timer = threading.Timer(2 * GRACE, os._exit, (status,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    if message:
        event = "stopped by SIGTERM" if number == signal.SIGTERM else "interrupted"
        where = "" if _stage is None else f" in stage {_stage}"
        with contextlib.suppress(OSError):
            os.write(2, f"\n{event}{where}; run the same command again to continue\n".encode())
    _end_descendants()
    for cleanup in cleanups:
        cleanup()
    multiprocessing.util._exit_function()  # removes semaphores, which avoids a warning
    os._exit(status)


def _end_descendants() -> None:
    """End all child processes: with SIGTERM, after `GRACE` seconds by killing them."""
    descendants = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            # The tracker of shared semaphores ignores signals and ends with this process.
            if not any("multiprocessing.resource_tracker" in word for word in process.cmdline()):
                process.terminate()
                descendants.append(process)
    for process in psutil.wait_procs(descendants, timeout=GRACE)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
