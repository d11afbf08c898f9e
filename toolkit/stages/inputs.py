"""How markers name the inputs of a stage, so that they hold after those were moved.

What lies in the run directory is named by its path there. What a setting names is called after the
setting, such as `{lm.text}`; what lies in a corpus by its path in the corpus's folder, such as
`{corpus.root}/wav`. Everything else has its absolute path.
"""

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any

from toolkit.config.settings import flatten, to_plain
from toolkit.storage.digests import AUDIO
from toolkit.storage.paths import RUN, Places, folder_of, parse_mapping

MAP = "map_paths"
"""Last part of the settings whose mappings `OLD=NEW` are places: NEW of the N-th is `{KEY.N}`."""
ROOT = "root"
"""Last part of the settings that are places: names may begin with the folder of one."""


class InputNames:
    """Names and paths of inputs under one configuration.

    Args:
      root: the run directory.
      config: of the recipe.
    """

    def __init__(self, root: Path, config: Any) -> None:
        plain = flatten(to_plain(config))
        self._root = root
        self._settings = {key: value for key, value in plain.items() if is_path(value)}
        self._mapped = {
            f"{key}.{number}": parse_mapping(mapping)[1]
            for key, mappings in plain.items()
            if key.split(".")[-1] == MAP
            for number, mapping in enumerate(mappings)
        }

    @cached_property
    def folders(self) -> dict[str, str]:
        """The folders of the settings that are places."""
        settings = self._settings.items()
        roots = {key: folder_of(value) for key, value in settings if key.split(".")[-1] == ROOT}
        return {**roots, **self._mapped}

    def names(self, path: str, sections: Iterable[str]) -> list[str]:
        """Return how a marker names an input: by each setting that it is, by a place, or as it is.

        Args:
          path: absolute, or relative to the run directory.
          sections: what the stage has read of the configuration: top-level fields, and dotted
            settings; the input is not called after others, on which the stage does not depend.
        """
        sections = tuple(sections)
        read = {
            key
            for key in (*self._settings, *self._mapped)
            if any(key == section or key.startswith(f"{section}.") for section in sections)
        }
        exact = [f"{{{key}}}" for key in sorted(read) if self._settings.get(key) == path]
        folders = {key: folder for key, folder in self.folders.items() if key in read}
        name = Places(folders).name(path)
        # A setting may be a file, whose folder is the place: that is an input of another name.
        return exact or [f"{name}/" if name.startswith("{") and name.endswith("}") else name]

    def is_gone(self, name: str) -> bool:
        """Whether an input was called after a setting that is no path any more."""
        setting, brace, _ = name.removeprefix("{").partition("}")
        known = setting in self._settings or setting in self._mapped
        return bool(brace) and name.startswith("{") and not known

    def path(self, name: str) -> Path:
        """Return the path of an input; that of a setting which is gone does not exist."""
        if name.startswith("{") and name.endswith("}") and name[1:-1] in self._settings:
            return Path(self._settings[name[1:-1]])
        return self._root / Places({RUN: str(self._root), **self.folders}).path(name)


def fixed_folder(pattern: Path) -> Path:
    """Return the folder in or below which all matches of a pattern lie."""
    return Path(*itertools.takewhile(lambda part: not has_magic(part), pattern.parts))


def audio_input(manifest: str) -> str:
    """Return how a marker names the audio files of a manifest, beside the manifest itself."""
    return f"{AUDIO}:{manifest}"


def is_path(value: Any) -> bool:
    """Whether a plain setting is an absolute path, as all paths in a configuration are."""
    return isinstance(value, str) and value.startswith("/")


def is_outside(name: str) -> bool:
    """Whether an input lies outside the run directory, by its name."""
    return name.startswith(("/", "{"))


def same_setting(key: str, old: Any, new: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether a setting is another path to what the stage has recorded as an input.

    Then the contents decide, see `Inspector.provenance_changes`.
    """
    if f"{{{key}}}" in inputs:
        return is_path(old) and is_path(new)
    if key.split(".")[-1] != MAP or not old or not isinstance(new, list) or len(old) != len(new):
        return False
    before, after = list(map(parse_mapping, old)), list(map(parse_mapping, new))
    return all(
        first[0] == second[0]
        and (first == second or any(name.startswith(f"{{{key}.{number}}}") for name in inputs))
        for number, (first, second) in enumerate(zip(before, after, strict=True))
    )
