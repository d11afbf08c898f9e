"""Detects a reader that starts a program or writes outside the temporary folder."""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PROCESSES = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.forkpty", "pty.spawn", "socket.connect", "os.kill", "ctypes.dlopen"),
)
CHANGES = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.rename": 2, "os.link": 2}
CHANGES |= {"os.symlink": 2, "os.chmod": 2, "os.chown": 3, "os.truncate": None}
"""Which argument of the event holds the descriptor that a relative path starts from."""
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
    elif event in CHANGES:
        place = CHANGES[event]
        if not _allowed(arguments[0], -1 if place is None else arguments[place]):
            _seen.append(f"{event} {arguments[0]!r}")


@functools.cache
def _open_folders() -> tuple[str, ...]:
    return tuple(map(os.path.realpath, (tempfile.gettempdir(), "/dev/null", "/dev/shm")))


def _allowed(path: object, place: int = -1) -> bool:
    """Whether a reader may change a path; place: descriptor of the folder the path starts from."""
    if isinstance(path, int) or path is None:
        return True
    try:
        start = os.readlink(f"/proc/self/fd/{place}") if place >= 0 else ""
        whole = Path(os.path.realpath(os.path.join(start, os.fsdecode(path))))
    except (TypeError, ValueError):
        return True  # no path that the system takes
    inside = any(whole.is_relative_to(folder) for folder in _open_folders())
    return inside or not set(KEPT).isdisjoint(whole.parts)


sys.addaudithook(_hook)


@contextlib.contextmanager
def no_side_effects() -> Iterator[None]:
    """Fail if the block starts a program or changes anything outside the temporary folder."""
    global _seen
    outer, _seen = _seen, (actions := [])
    try:
        yield
    finally:
        _seen = outer
    assert not actions, f"a file's content made the reader do this: {'; '.join(actions[:5])}"
