"""Names of files that hold after the run directory or the corpus was moved.

A name is `{place}` or `{place}/relative/path`. The place `run` is the run directory itself; the
others are called after settings, such as `{corpus.root}`: the folder that the setting has now.
`stages/places.json` says where they are, so that manifests can be read without the settings.
Absolute paths stand for themselves.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.storage.reading import read_json, reading

PLACES = Path("stages", "places.json")
"""Where the places of a run directory are kept."""
RUN = "run"
_NAME = re.compile(r"\{([\w.]+)\}(?:/|$)")
_BEGINS = r"(?<![^\s`'\"(=:])"  # a path in a message begins after a space or a quotation mark


class PlacesError(ToolkitError):
    """A file of places that cannot be read."""


@dataclass(frozen=True)
class Places:
    """Absolute folders by the names of their places."""

    folders: Mapping[str, str]

    def name(self, path: str) -> str:
        """Return the name of an absolute path: that by the deepest place it lies in, or itself."""
        found = [place for place, folder in self.folders.items() if _inside(path, folder)]
        if not found:
            return path
        place = max(found, key=lambda place: len(self.folders[place]))
        return f"{{{place}}}{path[len(self.folders[place]) :]}"

    def path(self, name: str) -> str:
        """Return the path that a name stands for; names of unknown places stay as they are."""
        match = _NAME.match(name)
        if match is None or match[1] not in self.folders:
            return name
        return self.folders[match[1]] + name[len(match[1]) + 2 :]

    def names_in(self, text: str) -> str:
        """Replace the paths in a message by names, as far as they lie in places."""
        for place, folder in sorted(self.folders.items(), key=lambda item: -len(item[1])):
            named = f"{{{place}}}/".replace("\\", r"\\")
            text = re.sub(f"{_BEGINS}{re.escape(folder)}/", named, text)
        return text

    def paths_in(self, text: str) -> str:
        """Replace the names in a message by paths."""
        for place, folder in self.folders.items():
            text = text.replace(f"{{{place}}}/", f"{folder}/")
        return text


def folder_of(path: str) -> str:
    """Return the folder that a setting names: `path`, or the folder of the file `path`."""
    return str(Path(path).parent if Path(path).is_file() else Path(path))


def places_text(folders: Mapping[str, str]) -> str:
    """Return the content of `stages/places.json`; the run directory itself is not in it."""
    return json.dumps(dict(sorted(folders.items())), indent=1) + "\n"


def places_of(path: Path) -> Places | None:
    """Return the places of the run directory that a file lies in.

    Args:
      path: a file or folder, which need not exist.

    Returns:
      None outside of run directories.

    Raises:
      PlacesError: `stages/places.json` is damaged.
    """
    for folder in Path(path).absolute().parents:
        file = folder / PLACES
        if file.is_file():
            advice = "give the recipe's command again, which writes it anew"
            with reading(file, PlacesError, advice):
                return Places({**read_json(file, {str: str}), RUN: str(folder)})
    return None


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
