"""Atomic writing, refusal of symbolic links, and walks of folders.

A file exists complete or not at all. Nothing outside a run directory is written, moved or deleted
through a link inside it.
"""

import errno
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from toolkit.errors import ToolkitError

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
"""Names of temporary files: the name of the target file and a random number."""
LONGEST_NAME = 240
"""Number of bytes of a file's name that are kept in the name of its temporary file; 14 are added,
and file systems allow 255."""
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Error numbers of file systems that do not support hard links."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a full disk or a limit on file sizes; these errors name no file."""
_writes = True


def disable_writes() -> None:
    """Write nothing from now on: for ranks other than 0, as rank 0 writes the same results."""
    global _writes
    _writes = False


@contextmanager
def open_atomically(path: Path, mode: str = "w", every_rank: bool = False) -> Iterator[IO]:
    """Open a temporary file beside `path`; it is renamed to `path` once it is whole and on disk.

    Since the file is fsynced before the rename, a reader (or a run after a crash) sees the old
    content or the new, never a partial file. After an exception `path` is unchanged.

    Args:
      path: the file to write; its folder is made when missing. A link is replaced, not followed.
      mode: "w" for UTF-8 text, "wb" for bytes.
      every_rank: whether to write even after `disable_writes`, as the file is this rank's own.
    """
    encoding = None if "b" in mode else "utf-8"
    if not (_writes or every_rank):
        with open(os.devnull, mode, encoding=encoding) as file:
            yield file
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with _named(path, temporary):
            # "x": fail if the temporary name exists, rather than write through a link.
            with open(temporary, mode.replace("w", "x"), encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes, every_rank: bool = False) -> None:
    """Write `content` to `path` with `open_atomically`."""
    with open_atomically(path, "wb" if isinstance(content, bytes) else "w", every_rank) as file:
        file.write(content)


def create_atomically(path: Path, content: bytes) -> bool:
    """Write a file unless it exists; of several writers at once, one succeeds.

    The file appears whole, except on file systems without hard links, where a writer that is killed
    leaves a partial file.

    Returns:
      Whether it was written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with _named(path, temporary):
            _write_new(temporary, content)
            # Unlike a rename, a link fails if `path` exists.
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
    """Replace `new` by a hard link to `old`, or by a copy; see `link_or_copy`."""
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
    """Make `new` a hard link to `old`, or a copy if the file system has no hard links.

    Neither may be changed in place afterwards, or both would change; `open_atomically` replaces
    files instead.
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
    """Return a new name for a temporary file beside `path`, see `TEMPORARY`."""
    name = os.fsdecode(os.fsencode(path.name)[:LONGEST_NAME])
    return path.with_name(f".{name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def _named(path: Path, temporary: Path) -> Iterator[None]:
    """Replace the temporary file's name in an `OSError` by that of the target file."""
    try:
        yield
    except OSError as error:
        full = error.filename is None and error.errno in NO_ROOM
        if full or str(error.filename) == str(temporary):
            error.filename = str(path)
        raise


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and wait until it is on disk."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class LinkError(ToolkitError):
    """A link, a pipe or a device stands where a file or folder of the run should be."""


def refuse_links(root: Path, path: Path) -> Path:
    """Return `path` if neither it nor a folder between `root` and it is a symbolic link.

    `root` itself, and what is above it, may be links. Parts that do not exist are not links.

    Raises:
      LinkError: a part is a link, or `path` is not below `root`; the message names it.
    """
    parts = Path(path).parts[len(Path(root).parts) :]
    if not Path(path).is_relative_to(root) or ".." in parts:
        raise LinkError(f"`{path}` is outside the run directory `{root}`")
    part = Path(root)
    for name in parts:
        part = part / name
        if part.is_symlink():
            raise LinkError(_link_message(part))
    return path


def refuse_links_below(root: Path, folder: Path) -> None:
    """Refuse `folder` as `refuse_links` does, and also if it contains a symbolic link at any depth.

    Raises:
      LinkError: there is a link; the message names it.
    """
    refuse_links(root, folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(parent, name)).is_symlink():
                raise LinkError(_link_message(path))


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file, or create it; refuse a link, a pipe or a device of that name.

    Args:
      path: path of the file.
      flags: flags of `os.open`, such as `os.O_RDWR`.

    Returns:
      The descriptor, which the caller closes.

    Raises:
      LinkError: `path` is a link, a pipe or a device.
      OSError: the file cannot be opened for another reason.
    """
    # 1. Refuse an existing link, pipe or device with a clear message.
    if path.is_symlink():
        raise LinkError(_link_message(path))
    if path.exists() and not path.is_file():
        raise LinkError(_special_message(path))
    # 2. Another program may have put a link or a pipe there meanwhile: O_NOFOLLOW refuses a link,
    # and with O_NONBLOCK opening a pipe does not wait for its other end.
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LinkError(_special_message(path))
    return descriptor


def _special_message(path: Path) -> str:
    """Return the message that a path is not a regular file."""
    return f"`{path}` is not a regular file; remove it, or choose another directory with --exp DIR"


def _link_message(link: Path) -> str:
    """Return the message that a path is a link, with its target."""
    return (
        f"`{link}` is a link (to `{os.readlink(link)}`). Nothing in a run directory is written, "
        "moved or deleted through a link, because the link's target may not belong to the run. "
        "Remove the link, or choose another directory with --exp DIR. To keep the target, move it "
        "to the link's place. The run directory itself may be a link"
    )


_Identity = tuple[int, int]
"""A file's device and inode numbers."""


def visible_files(folder: Path) -> list[Path]:
    """Return the files below a folder that are not hidden, at any depth, sorted.

    Links to folders are followed, except links to a folder that contains them: these would never
    end.
    """
    files: list[Path] = []
    # For each folder still to be visited: the folders that contain it
    above: dict[str, frozenset[_Identity]] = {os.fspath(folder): frozenset()}
    for parent, folders, names in os.walk(folder, followlinks=True):
        ancestors = above.pop(parent) | {_identity(parent)}
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and _identity(os.path.join(parent, name)) not in ancestors
        )
        above |= {os.path.join(parent, name): ancestors for name in folders}
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(files)


def _identity(folder: str) -> _Identity:
    """Return a folder's device and inode, the same for all its names; (-1, -1) if missing."""
    try:
        status = os.stat(folder)
    except OSError:
        return -1, -1
    return status.st_dev, status.st_ino
