"""Recipes run in processes forked from this one, which has imported all that they import.

Each run is a process of its own, in a group of its own, and ends as a program does; only what
Python does before a recipe's first line is saved.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing.util
import os
import resource
import runpy
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.torture.clock import jump_on_signal
from toolkit.stages.marker import code_version

PR_CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2
CAPABILITY_VERSION = 0x20080522
PAUSE = 0.1
"""Seconds until a process that says nothing is looked at again."""


class Forked:
    """A process that runs a recipe, and what it has printed so far."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid, self._pipe = pid, output
        self._printed = b""
        self._status: int | None = None

    @property
    def output(self) -> str:
        """What it has printed, as of the last `poll`."""
        return self._printed.decode(errors="replace")

    def poll(self) -> int | None:
        """Return its exit status, minus the signal if one killed it, or None as long as it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._listen()
            if pid:
                os.close(self._pipe)
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def hear(self, text: str, seconds: float) -> bool:
        """Wait until it has printed a text; False if it has not within that time."""
        until = time.monotonic() + seconds
        while text not in self.output:
            if self.poll() is not None or time.monotonic() > until:
                return text in self.output
            self.pause(PAUSE)
        return True

    def wait(self, seconds: float) -> int:
        """Wait for its end; raises a `TimeoutError`, and kills its group, if that takes longer."""
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                self.kill()
                raise TimeoutError(f"still running after {seconds:.0f} s")
            self.pause(PAUSE)
        return self._status

    def send(self, number: int) -> None:
        """Send a signal to its whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it and its workers."""
        self.send(signal.SIGKILL)
        while self.poll() is None:
            self.pause(PAUSE)

    def pause(self, seconds: float) -> None:
        """Wait, at most until it prints something or ends."""
        select.select([self._pipe], [], [], seconds)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._pipe, 1 << 16):
                self._printed += piece


def preload(script: Path) -> None:
    """Import what a recipe imports at its start, and ask git as every run does."""
    recipe = runpy.run_path(str(script), run_name="_recipe")["recipe"]
    code_version(recipe.folder)


def learn(modules: Path) -> None:
    """Import what a run had imported at its end."""
    for name in modules.read_text().split() if modules.exists() else ():
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def start(
    script: Path,
    arguments: Sequence[str],
    modules: Path,
    limit: int | None = None,
    jump: float = 0.0,
) -> Forked:
    """Run a recipe; file permissions hold for it even where the user is root.

    Args:
      script: its `run.py`.
      arguments: of its command line.
      modules: where it notes its modules, for `learn`, once it has ended well.
      limit: of the size of files, in bytes.
      jump: how far the clock jumps when the process gets `clock.JUMP`, in seconds.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.set_blocking(reading, False)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return Forked(pid, reading)
    status = 1
    try:
        os.setpgid(0, 0)
        _redirect(writing)
        faulthandler.enable()  # a crash says where
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        _respect_permissions()
        jump_on_signal(jump)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sys.argv = [str(script), *arguments]
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _end(status, modules)


def _redirect(output: int) -> None:
    """A pipe, to which a limit of the size of files does not apply."""
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(descriptor, number)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _end(status: int, modules: Path) -> None:
    """End as the interpreter does: threads and child processes first, then what is not flushed."""
    try:
        threading._shutdown()
        multiprocessing.util._exit_function()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if status == 0:
            with contextlib.suppress(OSError):
                modules.write_text("\n".join(sys.modules))
    finally:
        os._exit(status)


def _respect_permissions() -> None:
    """Drop the capabilities that let root ignore file permissions."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    if libc.capget(header, sets) == 0:
        for number in range(3):
            sets[number] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
        libc.capset(header, sets)
