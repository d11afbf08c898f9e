"""Paths made of names from data, aliases of folders that may move, paths of other machines, UTF-8.

An alias is `{place}` or `{place}/relative/path`. The place `run` is the run directory; the others
are called after settings, such as `{corpus.root}`: the folder that the setting has now.
`stages/places.json` says where they are, so that manifests can be read without the settings.
Absolute paths stand for themselves.

A mapping `OLD=NEW` is for paths of another machine: a path that begins with the folders OLD begins
with NEW instead. Of several mappings that fit, that with the longest OLD counts. Paths of Windows
(C:\\speech, \\\\server\\speech) may be written with \\ or /.

Python reads names that are not UTF-8 with a substitute for each byte. Most of what is done with a
file works, but neither terminals nor files of text take the substitutes.
"""

import hashlib
import json
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.storage.reading import read_json, reading

LONGEST_NAME, LONGEST_FOLDER, LONGEST_PATH = 240, 255, 3000
"""Bytes of a file's name before its suffix, of a folder's name, and of all of a path: file systems
allow 255, 255 and 4095."""
DEEPEST = 200
"""Components of a path; pathlib makes folders by recursion."""


class UnsafePathError(ToolkitError):
    """A path that leads out of its folder."""


def safe_name(name: str) -> str:
    """Turn any text into a relative path that stays in its folder; `/` separates folders.

    Roots, `.`, `..` and empty components are left out, control characters become `_`, components
    that are too long for a file system end in a digest of themselves. All other names stay as they
    are, so different names may become the same: see `first_clash`.

    Returns:
      A path of one component at least, without suffix; at most 240 bytes are its last component.
    """
    parts = [_without_controls(part) for part in name.split("/") if part not in ("", ".", "..")]
    parts = parts or ["_"]
    *folders, last = parts
    path = "/".join([*(_short(f, LONGEST_FOLDER) for f in folders), _short(last, LONGEST_NAME)])
    if _size(path) <= LONGEST_PATH and len(parts) <= DEEPEST:
        return path
    return _short("_".join(parts), LONGEST_NAME)


def first_clash(names: Iterable[str]) -> tuple[int, int] | None:
    """Return the positions of the first two names that cannot both be files; None: all can.

    On disk a name is bytes, so two texts may be the same name. A file cannot be the folder of
    another one.

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
    """Return `folder/name`, unless a link in the folder leads it elsewhere.

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
        raise UnsafePathError(f"{path}: cannot be written ({error})") from error
    if not inside:
        raise UnsafePathError(
            f"{path}: lies outside {folder}, by its name or a link; write to an empty folder"
        )
    return path


def overlap(first: str, second: str) -> bool:
    """Return whether two normalised paths are the same or one contains the other."""
    return first == second or second.startswith(f"{first}/") or first.startswith(f"{second}/")


def _without_controls(part: str) -> str:
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


PLACES = Path("stages", "places.json")
"""File of a run directory that stores its path aliases."""
RUN = "run"
_ALIAS = re.compile(r"\{([\w.]+)\}(?:/|$)")
_BEGINS = r"(?<![^\s`'\"(=:])"  # a path in a message begins after a space or a quotation mark


class PathAliasesError(ToolkitError):
    """A file of places that cannot be read."""


@dataclass(frozen=True)
class PathAliases:
    """Absolute folders by the names of their places."""

    folders: Mapping[str, str]

    def name(self, path: str) -> str:
        """Return the alias of an absolute path by the deepest place it lies in, or the path."""
        places = [place for place, folder in self.folders.items() if _inside(path, folder)]
        if not places:
            return path
        place = max(places, key=lambda place: len(self.folders[place]))
        return f"{{{place}}}{path[len(self.folders[place]) :]}"

    def path(self, name: str) -> str:
        """Return the path that a name stands for; names of unknown places stay as they are."""
        match = _ALIAS.match(name)
        if match is None or match[1] not in self.folders:
            return name
        return self.folders[match[1]] + name[len(match[1]) + 2 :]

    def relativize_in(self, text: str) -> str:
        """Replace the paths in a message by names, as far as they lie in places."""
        for place, folder in sorted(self.folders.items(), key=lambda item: -len(item[1])):
            named = f"{{{place}}}/".replace("\\", r"\\")
            text = re.sub(f"{_BEGINS}{re.escape(folder)}/", named, text)
        return text

    def resolve_in(self, text: str) -> str:
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


def places_of(path: Path) -> PathAliases | None:
    """Return the places of the run directory that a file lies in.

    Args:
      path: a file or folder, which need not exist.

    Returns:
      None outside of run directories.

    Raises:
      PathAliasesError: `stages/places.json` is damaged.
    """
    for folder in Path(path).absolute().parents:
        file = folder / PLACES
        if file.is_file():
            advice = "give the recipe's command again, which writes the file again"
            with reading(file, PathAliasesError, advice):
                return PathAliases({**read_json(file, {str: str}), RUN: str(folder)})
    return None


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


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
    """Return advice on mapping the common folder of missing files; empty if they have none."""
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


_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[^\n\t\"'`]*")
LONGEST_QUOTED = 200  # characters


class EncodingError(ToolkitError):
    """A name, or another text, that cannot be written as UTF-8."""


def printable(text: str) -> str:
    """Return text with `\\xff` for each byte that is not UTF-8."""
    return _SURROGATE.sub(lambda match: _escaped(ord(match[0])), text)


def check_utf8(text: str) -> None:
    """Check a path, or an argument, that will be written to files of text.

    Raises:
      EncodingError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise encoding_error(error) or error from error


def encoding_error(error: BaseException | None) -> EncodingError | None:
    """Return an error with advice if `error` comes from text that is not UTF-8, else None."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
            text, place = error.object, error.start
            begin = max(text.rfind(end, 0, place) for end in "\n\t\"'`") + 1
            name = printable(text[max(begin, place - LONGEST_QUOTED) : place])
            ending = _NAME.match(text, place)
            name += printable(ending[0][:LONGEST_QUOTED]) if ending else ""
            return EncodingError(
                f"`{name}` is not UTF-8 and cannot be written to a file of text; rename the file"
                " or folder (or mend the text), and give the same command again"
            )
        error = error.__cause__ or error.__context__
    return None


def _escaped(code: int) -> str:
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
