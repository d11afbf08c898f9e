"""A lock for file systems without locks: a file that only one process can make."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.processes.scope import pid_space
from toolkit.storage.reading import NATURAL, validated

_HOLDER = {"pid": NATURAL, "host": str, "pid_space": str}


class HeldError(Exception):
    """Another process has the lock, or nobody can tell whether it has; the message says which."""


@contextmanager
def hold_file(path: Path) -> Iterator[None]:
    """Make the file `path`, which names this process, and remove it at the end.

    A killed process leaves the file behind. It is taken over where its process certainly no longer
    runs: where that was on this host, since it was booted, in this container.

    Raises:
      HeldError: another process has made it.
    """
    if not _make(path) and not _take_over(path):
        raise HeldError(_why(path))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _make(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "pid_space": pid_space()}
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(holder) + "\n")
    return True


def _take_over(path: Path) -> bool:
    """Replace the file of a process that is gone; of several that try, one does."""
    turn = path.with_name(f"{path.name}.turn")
    if not _gone(path) or not _make(turn):
        return False
    try:
        if not _gone(path):
            return False
        path.unlink()
        return _make(path)
    finally:
        turn.unlink(missing_ok=True)


def _gone(path: Path) -> bool:
    holder = _read(path)
    return bool(holder) and holder["pid_space"] == pid_space() and not alive(holder["pid"])


def _why(path: Path) -> str:
    holder = _read(path)
    who = f"process {holder['pid']} on {holder['host']}" if holder else "an unknown process"
    turn = path.with_name(f"{path.name}.turn")
    files = f"{path} and {turn}" if turn.exists() else str(path)
    return f"{who} holds it; if no run goes on here any more, remove {files}"


def _read(path: Path) -> dict:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8") as file:
            return validated(json.loads(file.read(65536)), _HOLDER)
    except (OSError, ValueError, RecursionError):  # it is just being written, or removed
        return {}


def alive(pid: int | None) -> bool:
    """Whether a process of this host runs."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return False
    except PermissionError:
        pass
    return True
