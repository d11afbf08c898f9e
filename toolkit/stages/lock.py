"""A lock that keeps two runs from working in one run directory at the same time."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click

from toolkit.errors import ToolkitError
from toolkit.storage.links import open_regular
from toolkit.storage.reading import NATURAL, validated

UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # by some network file systems
# Worker processes of a killed run may hold its lock until they notice that it is gone.
ORPHAN_TIMEOUT = 10.0  # seconds


class LockedError(ToolkitError):
    """Another run is going on in the same run directory."""


@contextmanager
def hold(path: Path, command: str) -> Iterator[None]:
    """Hold the lock at `path`, a file that names the holder.

    The operating system releases the lock when the process ends, in whatever way; the file stays.

    Raises:
      LockedError: another process has it; the message names that process.
      LinkError: a link or no regular file is at `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_regular(path, os.O_RDWR)
    try:
        _acquire(descriptor, path)
        holder = {
            "pid": os.getpid(),
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": command,
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + ORPHAN_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in UNSUPPORTED:
                click.echo(f"warning: {path} cannot be locked ({error.strerror})", err=True)
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        holder = _read_holder(descriptor)
        if _alive(holder.get("pid")) or time.monotonic() > deadline:
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


def _alive(pid: int | None) -> bool:
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
