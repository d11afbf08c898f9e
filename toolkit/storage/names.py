"""Paths made of names that come from data: ids, speakers, names of recordings and splits."""

import hashlib
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import ToolkitError

LONGEST_NAME, LONGEST_FOLDER, LONGEST_PATH = 240, 255, 3000
"""Bytes of a file's name before its suffix, of a folder's name, and of all of a path: file systems
allow 255, 255 and 4095."""
DEEPEST = 200
"""Components of a path; pathlib makes folders by recursion."""


class UnsafePathError(ToolkitError):
    """A path that leads out of the folder that it should be in."""


def safe_name(name: str) -> str:
    """Turn any text into a relative path that stays in its folder; `/` separates folders.

    Roots, `.`, `..` and empty components are left out, control characters become `_`, components
    that are too long for a file system end in a digest of themselves. All other names stay as they
    are, so different names may become the same: see `first_clash`.

    Returns:
      A path of one component at least, without suffix; at most 240 bytes are its last component.
    """
    parts = [_printable(part) for part in name.split("/") if part not in ("", ".", "..")]
    parts = parts or ["_"]
    *folders, last = parts
    path = "/".join([*(_short(f, LONGEST_FOLDER) for f in folders), _short(last, LONGEST_NAME)])
    if _size(path) <= LONGEST_PATH and len(parts) <= DEEPEST:
        return path
    return _short("_".join(parts), LONGEST_NAME)


def first_clash(names: Iterable[str]) -> tuple[int, int] | None:
    """Return the positions of the first two names that cannot both be files; None: all can.

    On disk a name is bytes: two texts may be the same ones. Nor can a file be the folder of
    another.

    Args:
      names: results of `safe_name`, with the suffixes of the files.
    """
    encoded = [os.fsencode(name) for name in names]
    files: dict[bytes, int] = {}
    for position, name in enumerate(encoded):
        first = files.setdefault(name, position)
        if first != position:
            return first, position
    for position, name in enumerate(encoded):
        while name := name.rpartition(b"/")[0]:
            if name in files:
                return files[name], position
    return None


def path_below(folder: Path, name: str) -> Path:
    """Return `folder/name`, of which a link in the folder may have made a path to elsewhere.

    Args:
      folder: where to write; it may be reached by links, and need not exist.
      name: relative path of the file, see `safe_name`.

    Raises:
      UnsafePathError: the file would lie outside the folder.
    """
    path = Path(folder) / name
    try:
        root, parent = Path(folder).resolve(), path.parent.resolve()
        if any(place.is_symlink() for place in (parent, *parent.parents)):  # not resolved
            raise OSError("links in a circle")
        # A file that is a link itself is replaced, not followed.
        inside = parent.is_relative_to(root) and path.name not in ("", "..") and path != folder
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # links in a circle; NUL
        raise UnsafePathError(f"{path}: is no path to write to ({error})") from error
    if not inside:
        raise UnsafePathError(
            f"{path}: lies outside {folder}, by its name or a link; write to an empty folder"
        )
    return path


def _printable(part: str) -> str:
    return "".join("_" if _is_control(character) else character for character in part)


def _is_control(character: str) -> bool:
    """Whether a character is a control character or cannot be part of a file's name at all."""
    if "\udc80" <= character <= "\udcff":  # a byte of a file's name that is no UTF-8
        return False
    return unicodedata.category(character) in ("Cc", "Cs")


def _short(part: str, longest: int) -> str:
    if _size(part) <= longest:
        return part
    content = part.encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"{content[: longest - 17].decode('utf-8', 'ignore')}~{digest}"


def _size(part: str) -> int:
    return len(part.encode("utf-8", "surrogateescape"))
