"""How worker processes come about: forked from a process that has imported what they need."""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from toolkit.environment import project_root

PACKAGES = ("toolkit", "local", "recipes")
LONGEST_FOLDER = 64
"""Bytes of the temporary folder's path: the server's socket lies below it, and a socket's path ends
after 107."""


def worker_context() -> BaseContext:
    """Return the context in which to start processes that compute.

    They are never forked from this process: k2's search leaves threads behind that do not survive
    that, nor does CUDA. On Linux they are forked from multiprocessing's server, which computes
    nothing. It starts at the first call and imports what this process has imported of the project,
    once instead of in each of them: a recipe's modules take some four seconds of processor time.
    Its environment variables and streams are those of that moment; `start_worker` takes over
    today's variables. Where it cannot run, processes are spawned.
    """
    if sys.platform != "linux" or len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    known = server_pid()
    try:
        resource_tracker.ensure_running()  # which lets signals through again
        with deaf_to_interrupts(), _in(project_root()):
            context.set_forkserver_preload([*_imported(), "toolkit.processes.preloaded"])
            forkserver.ensure_running()
    except OSError:
        return multiprocessing.get_context("spawn")
    if not os.path.exists(_address()):  # somebody has tidied the temporary folder
        return multiprocessing.get_context("spawn")
    if server_pid() != known:
        while _imports(server_pid()):  # here Ctrl-C is heard; where workers start it is not
            time.sleep(0.02)
    return context


def server_pid() -> int | None:
    """Return the id of the process from which this one's workers are forked; None before."""
    return getattr(_server(), "_forkserver_pid", None)


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Let Ctrl-C, which reaches them too, do nothing to processes that start in the `with` block.

    Their parent ends them. While they import it would end them with tracebacks, and where C code
    calls back an exception would be ignored: a worker would go on without the piece of speech, say,
    that it was about to get, and write the rest.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _imported() -> list[str]:
    """Return the project's modules in the order of their imports, on which the BLAS depends.

    Not those of a recipe elsewhere, which the server would not find.
    """
    root = project_root()
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return [
        name
        for name, file in files.items()
        if file
        and (package := name.partition(".")[0]) in PACKAGES
        and Path(file).is_relative_to(root / package)
    ]


def _imports(server: int | None) -> bool:
    """Whether the server is not done: it ignores Ctrl-C from then on."""
    try:
        status = Path(f"/proc/{server}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    told = dict(line.split(":", 1) for line in status.splitlines())
    ignored = int(told["SigIgn"], 16) >> (signal.SIGINT - 1) & 1
    return not ignored and not told["State"].strip().startswith("Z")


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Let the server start in a folder: it imports from its working directory before all others."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def _server() -> object:
    return forkserver._forkserver  # type: ignore[attr-defined]


def _address() -> str:
    return getattr(_server(), "_forkserver_address", None) or ""


def _forget_server() -> None:
    """In a process forked from this one, which cannot wait for this one's server."""
    server: Any = _server()
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


if sys.platform == "linux":
    os.register_at_fork(after_in_child=_forget_server)
