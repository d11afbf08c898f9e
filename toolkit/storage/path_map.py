"""Paths of another machine, read as paths of this one.

A mapping is written `OLD=NEW`: a path that begins with the folders OLD begins with NEW instead. Of
several mappings that fit, that with the longest OLD counts. Paths of Windows (C:\\speech,
\\\\server\\speech) may be written with \\ or /.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence

PathMap = Sequence[str]
"""Mappings, each `OLD=NEW`; none: paths stay."""


_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|[A-Za-z]:$")


def is_of_windows(path: str) -> bool:
    """Whether a path begins with a drive or a server, as absolute paths of Windows do."""
    return _WINDOWS.match(path) is not None


def _with_slashes(path: str) -> str:
    return path.replace("\\", "/") if is_of_windows(path) else path


def parse_mapping(mapping: str) -> tuple[str, str]:
    """Return OLD and NEW of a mapping, without slashes at their ends.

    Raises:
      ValueError: it is not `OLD=NEW`, or NEW is relative.
    """
    old, equals, new = mapping.partition("=")
    if not (old and equals and new):
        raise ValueError(f"{mapping!r} is not OLD=NEW, such as /old/disk=/new/disk")
    if not new.startswith("/"):
        raise ValueError(f"{mapping!r}: {new!r} must be an absolute path, which begins with /")
    return _with_slashes(old).rstrip("/") or "/", new.rstrip("/") or "/"


def map_path(path: str, path_map: PathMap) -> str:
    """Return the path on this machine."""
    there = _with_slashes(path)
    fitting = [pair for pair in map(parse_mapping, path_map) if _is_below(there, pair[0])]
    if not fitting:
        return path
    old, new = max(fitting, key=lambda pair: len(pair[0]))
    return os.path.join(new, there[len(old) :].lstrip("/")) if there != old else new


def suggestion(missing: Iterable[str]) -> str:
    """Return advice on mapping the folder that all absolute paths of missing files begin with."""
    paths = [_with_slashes(path) for path in missing if path.startswith("/") or is_of_windows(path)]
    folders = {os.path.dirname(path) for path in paths}
    if len({path.startswith("/") for path in folders}) != 1:  # commonpath takes no mixture
        return ""
    common = os.path.commonpath(folders)
    if common in ("", "/", "//"):
        return ""
    mapping = shlex.quote(f"{common}=NEW")
    return f"if the files lie elsewhere, --map-path {mapping} (setting corpus.map_paths)"


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")
