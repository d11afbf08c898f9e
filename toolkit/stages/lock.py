"""A lock that keeps two runs from working in one run directory at the same time."""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import click

from toolkit.errors import ToolkitError
from toolkit.stages.lock_file import HeldError, alive, hold_file
from toolkit.storage.links import open_regular
from toolkit.storage.reading import NATURAL, validated

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None

UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # by some network file systems
# Worker processes of a killed run may hold its lock until they notice that it is gone.
ORPHAN_TIMEOUT = 10.0  # seconds


class LockedError(ToolkitError):
    """Another run is going on in the same run directory."""


@contextmanager
def hold(path: Path, command: str) -> Iterator[None]:
    """Hold the lock at `path`, a file that names the holder.

    The operating system releases the lock when the process ends, in whatever way; the file stays.
    Where there are no such locks, a second file stands for the lock, see `hold_file`.

    Raises:
      LockedError: another process has it; the message names that process.
      LinkError: a link or no regular file is at `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_regular(path, os.O_RDWR)
    try:
        locked = _acquire(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if not locked:
            _hold_file(stack, path)
        holder = {
            "pid": os.getpid(),
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": command,
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)
        yield


def _hold_file(stack: ExitStack, path: Path) -> None:
    try:
        stack.enter_context(hold_file(path.with_name(f"{path.name}.held")))
    except HeldError as error:
        raise LockedError(
            f"another run is going on in {path.parent.parent}, where the file system has no locks: "
            f"{error}; or choose another directory with --exp DIR."
        ) from error


def _acquire(descriptor: int, path: Path) -> bool:
    """Lock the file; False where files cannot be locked."""
    if fcntl is None:
        return False
    deadline = time.monotonic() + ORPHAN_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in UNSUPPORTED:
                click.echo(f"warning: {path} cannot be locked ({error.strerror})", err=True)
                return False
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        holder = _read_holder(descriptor)
        if alive(holder.get("pid")) or time.monotonic() > deadline:
            raise LockedError(
                f"another run is going on in {path.parent.parent}: process {holder.get('pid')}, "
                f"`{holder.get('command')}`, since {holder.get('since')}. Wait for it or stop it, "
                "or choose another directory with --exp DIR."
            )
        time.sleep(0.1)


def _read_holder(descriptor: int) -> dict:
    try:
        return validated(json.loads(os.pread(descriptor, 65536, 0)), {"pid": NATURAL})
    except (ValueError, RecursionError):  # it is just being written
        return {}
