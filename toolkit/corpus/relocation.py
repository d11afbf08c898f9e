"""Paths in the plain data of cuts: names of places on disk, absolute paths in memory.

A run directory, or its corpus, can thus be moved; see `toolkit.storage.paths`. Cuts in memory hold
absolute paths, so that nothing but reading and writing need know of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from toolkit.storage.paths import PathAliases

_DETAILS = ("fault_detail", "note_detail")


def portable(plain: Mapping[str, Any], places: PathAliases | None) -> Mapping[str, Any]:
    """Return a cut's plain data with names instead of paths, as far as they lie in `places`.

    Args:
      plain: `Cut.to_dict()`; it is not changed.
      places: of the file that the cut is written to; None: paths stay.
    """
    return _replaced(plain, places.name, places.names_in) if places else plain


def resolved(plain: Mapping[str, Any], places: PathAliases | None) -> Mapping[str, Any]:
    """Return a cut's plain data with paths instead of the names that `portable` wrote.

    Args:
      plain: of a cut; it is not changed.
      places: of the file that the cut is read from; None: what is there stays.
    """
    return _replaced(plain, places.path, places.paths_in) if places else plain


def _replaced(
    plain: Mapping[str, Any], path: Callable[[str], str], text: Callable[[str], str]
) -> dict[str, Any]:
    new = dict(plain)
    if isinstance(recording := new.get("recording"), Mapping):
        sources = [_with_path(source, path) for source in recording.get("sources", ())]
        new["recording"] = {**recording, "sources": sources}
    if isinstance(custom := new.get("custom"), Mapping):
        changes: dict[str, Any] = {key: text(custom[key]) for key in _DETAILS if key in custom}
        if isinstance(parts := custom.get("components"), Mapping):
            changes["components"] = {key: path(value) for key, value in parts.items()}
        new["custom"] = {**custom, **changes}
    return new


def _with_path(source: Any, path: Callable[[str], str]) -> Any:
    known = isinstance(source, Mapping) and isinstance(source.get("source"), str)
    return {**source, "source": path(source["source"])} if known else source
