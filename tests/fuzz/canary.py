"""A canary among the hostile files: it tells when a reader starts a program or writes elsewhere."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PROCESSES = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.forkpty", "pty.spawn", "socket.connect", "os.kill", "ctypes.dlopen"),
)
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
CHANGES += ("os.symlink", "os.chmod", "os.chown", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
KEPT = ("__pycache__", ".cache", "numba")
"""Folders of what Python and numba compile."""
_seen: list[str] | None = None


def _hook(event: str, arguments: tuple) -> None:
    if _seen is None:
        return
    if event in PROCESSES:
        _seen.append(f"{event} {arguments!r:.200}")
    elif event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITES and not _allowed(path):
            _seen.append(f"open {path!r} for writing")
    elif event in CHANGES and not _allowed(arguments[0]):
        _seen.append(f"{event} {arguments[0]!r}")


def _allowed(path: object) -> bool:
    if isinstance(path, int) or path is None:
        return True
    try:
        whole = Path(os.path.realpath(os.fsdecode(path)))
    except (TypeError, ValueError):
        return True  # no path that the system takes
    folders = (tempfile.gettempdir(), "/dev/null", "/dev/shm")
    inside = any(whole.is_relative_to(os.path.realpath(folder)) for folder in folders)
    return inside or not set(KEPT).isdisjoint(whole.parts)


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Fail if, within, a program is started or anything outside of the temporary folder changes."""
    global _seen
    _seen = found = []
    try:
        yield
    finally:
        _seen = None
    assert not found, f"a file's content made the reader do this: {'; '.join(found[:5])}"
