"""Walks folders whose links may lead back into them."""

import os
from pathlib import Path

_Identity = tuple[int, int]
"""Device and inode."""


def visible_files(folder: Path) -> list[Path]:
    """Return the files of a folder, at any depth, that are not hidden, sorted.

    Links to folders are followed, but those to a folder that they are in: what is there would come
    again and again.
    """
    found: list[Path] = []
    above: dict[str, frozenset[_Identity]] = {os.fspath(folder): frozenset()}
    for parent, folders, names in os.walk(folder, followlinks=True):
        here = above.pop(parent) | {_identity(parent)}
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and _identity(os.path.join(parent, name)) not in here
        )
        above |= {os.path.join(parent, name): here for name in folders}
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _identity(folder: str) -> _Identity:
    try:
        status = os.stat(folder)
    except OSError:
        return -1, -1
    return status.st_dev, status.st_ino
