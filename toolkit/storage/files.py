"""Atomic writing of files: a file exists complete or not at all."""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
LONGEST = 240
"""Bytes of a file's name that its temporary file has too; file systems allow 255 in all."""
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""How a file system without hard links answers."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""How a full disk, or a limit on the size of files, answers: to writes alone, and without names."""
_writes = True


def leave_writing_to_others() -> None:
    """Write nothing from now on: for ranks other than 0, which computes and writes the same."""
    global _writes
    _writes = False


@contextmanager
def open_atomically(path: Path, mode: str = "w", own: bool = False) -> Iterator[IO]:
    """Open a temporary file beside `path` that is renamed to it once it is complete and on disk.

    The file is flushed and fsynced before the rename, so that a reader (or a run after a crash)
    sees the old content or the new, never a part. After an exception `path` is unchanged.

    Args:
      path: the file to write; its folder is made when missing.
      mode: "w" for UTF-8 text, "wb" for bytes. A link at `path` is replaced, not followed.
      own: the file belongs to this process alone, and is written even after
        `leave_writing_to_others`.
    """
    encoding = None if "b" in mode else "utf-8"
    if not (_writes or own):
        with open(os.devnull, mode, encoding=encoding) as file:
            yield file
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with _named(path, temporary):
            with open(temporary, mode.replace("w", "x"), encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes, own: bool = False) -> None:
    """Write `content` to `path` with `open_atomically`."""
    with open_atomically(path, "wb" if isinstance(content, bytes) else "w", own) as file:
        file.write(content)


def create_atomically(path: Path, content: bytes) -> bool:
    """Write a file unless there is one of that name; of several writers at once, one succeeds.

    It appears whole, except on file systems without hard links, where a writer that is killed
    leaves a part of it.

    Returns:
      Whether it was written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with _named(path, temporary):
            _write_new(temporary, content)
            try:
                os.link(temporary, path)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                _write_new(path, content)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def link_atomically(old: Path, new: Path) -> None:
    """Make `new` the same file as `old` (see `link_or_copy`), in place of one of that name."""
    new.parent.mkdir(parents=True, exist_ok=True)
    if new.exists() and new.samefile(old):
        return
    temporary = _temporary(new)
    try:
        link_or_copy(old, temporary)
        os.replace(temporary, new)
    finally:
        temporary.unlink(missing_ok=True)


def link_or_copy(old: Path, new: Path) -> None:
    """Make `new` the same file as `old`, or a copy where the file system has no hard links.

    Neither may be changed in place afterwards; what is written with `open_atomically` is not.
    """
    try:
        os.link(old, new)
    except OSError:
        with open(old, "rb") as source, open_atomically(new, "wb") as target:
            shutil.copyfileobj(source, target)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files that killed processes left anywhere below `folder`.

    Must only be called while no other process writes there.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            if TEMPORARY.fullmatch(name):
                Path(parent, name).unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    name = os.fsdecode(os.fsencode(path.name)[:LONGEST])
    return path.with_name(f".{name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def _named(path: Path, temporary: Path) -> Iterator[None]:
    """Let errors in writing name the file, not its temporary one or, of a full disk, none."""
    try:
        yield
    except OSError as error:
        full = error.filename is None and error.errno in NO_ROOM
        if full or str(error.filename) == str(temporary):
            error.filename = str(path)
        raise


def _write_new(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
