"""Paths of another machine, read as paths of this one.

A mapping is written `OLD=NEW`: a path that begins with the folders OLD begins with NEW instead. Of
several mappings that fit, that with the longest OLD counts.
"""

import os
from collections.abc import Iterable, Sequence

PathMap = Sequence[str]
"""Mappings, each `OLD=NEW`; none: paths stay."""


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
    return old.rstrip("/") or "/", new.rstrip("/") or "/"


def map_path(path: str, path_map: PathMap) -> str:
    """Return the path on this machine."""
    fitting = [pair for pair in map(parse_mapping, path_map) if _is_below(path, pair[0])]
    if not fitting:
        return path
    old, new = max(fitting, key=lambda pair: len(pair[0]))
    return os.path.join(new, path[len(old) :].lstrip("/")) if path != old else new


def suggestion(missing: Iterable[str]) -> str:
    """Return advice on mapping the folder that all absolute paths of missing files begin with."""
    folders = {os.path.dirname(path) for path in missing if path.startswith("/")}
    common = os.path.commonpath(folders) if folders else "/"
    if common == "/":
        return ""
    return f"if the files lie elsewhere, --map-path {common}=NEW (setting corpus.map_paths)"


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")
