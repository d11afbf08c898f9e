"""Keeps what is written, moved and deleted below a folder from going elsewhere through links."""

import os
import stat
from pathlib import Path

from toolkit.errors import ToolkitError


class LinkError(ToolkitError):
    """A link, or something that is no file, stands where a file or folder of ours should be."""


def refuse_links(root: Path, path: Path) -> Path:
    """Return `path` if neither it nor a folder between `root` and it is a symbolic link.

    `root` itself, and what is above it, may be links. Parts that do not exist are no links.

    Raises:
      LinkError: a part is a link, or `path` is not below `root`; the message names it.
    """
    parts = Path(path).parts[len(Path(root).parts) :]
    if not Path(path).is_relative_to(root) or ".." in parts:
        raise LinkError(f"`{path}` is outside of the run directory `{root}`")
    part = Path(root)
    for name in parts:
        part = part / name
        if part.is_symlink():
            raise LinkError(_message(part))
    return path


def refuse_links_below(root: Path, folder: Path) -> None:
    """Refuse `folder` as `refuse_links` does, and any symbolic link in it, however deep.

    Raises:
      LinkError: there is one; the message names it.
    """
    refuse_links(root, folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(parent, name)).is_symlink():
                raise LinkError(_message(path))


def open_regular(path: Path, flags: int) -> int:
    """Open a file, which is made if it is missing, unless a link or no regular file is there.

    Args:
      path: of the file.
      flags: `os.open`'s, such as `os.O_RDWR`.

    Returns:
      The descriptor, which the caller closes.

    Raises:
      LinkError: a link, a pipe or a device has its name.
      OSError: it cannot be opened for another reason.
    """
    if path.is_symlink():  # O_NOFOLLOW alone refuses as well, with an error that says less
        raise LinkError(_message(path))
    # O_NONBLOCK: to open a pipe would wait for its other end
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    if path.exists() and not path.is_file():
        raise LinkError(_special(path))
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LinkError(_special(path))
    return descriptor


def _special(path: Path) -> str:
    return f"`{path}` is not a regular file; remove it, or choose another directory with --exp DIR"


def _message(link: Path) -> str:
    return (
        f"`{link}` is a link (to `{os.readlink(link)}`), and nothing in a run directory is "
        "written, moved or deleted through a link: what it points at may not be the run's. Remove "
        "the link (and move what it points at to its place, to keep it), or choose another "
        "directory with --exp DIR; the run directory itself may be a link"
    )
