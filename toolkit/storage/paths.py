"""Make safe paths from names, alias folders that may move, map foreign paths, and check UTF-8.

An alias is `{place}` or `{place}/relative/path`. The place `run` is the run directory; the others
are named after settings: `{corpus.root}` is the folder that this setting names now.
`stages/places.json` holds these folders, so that manifests can be read without the settings.
Absolute paths stand for themselves.

A mapping `OLD=NEW` is for paths of another machine: NEW replaces OLD at the beginning of a path,
where OLD must consist of whole folders. Of several mappings that fit, the one with the longest OLD
applies. Windows paths (C:\\speech, \\\\server\\speech) may be written with \\ or /.

In names that are not UTF-8, Python substitutes a surrogate character for each wrong byte. Such
files can be opened and renamed, but neither terminals nor text files accept surrogates.
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
"""Limits in bytes of a file's name before its suffix, of a folder's name, and of a whole path; file
systems allow 255, 255 and 4095."""
DEEPEST = 200
"""Largest number of components of a path; pathlib makes folders by recursion."""


class UnsafePathError(ToolkitError):
    """The path of a file leads out of the folder it should be in."""


def safe_name(name: str) -> str:
    """Convert any text to a relative path that stays in its folder; `/` separates folders.

    - Roots, `.`, `..` and empty components are left out.
    - Control characters become `_`.
    - Components that are too long for a file system are cut, and end in a digest of themselves.

    Different names may become the same path: see `first_clash`.

    Returns:
      A path of at least one component, the last of at most 240 bytes: a suffix can be added.
    """
    parts = [_without_controls(part) for part in name.split("/") if part not in ("", ".", "..")]
    parts = parts or ["_"]
    *folders, last = parts
    path = "/".join([*(_short(f, LONGEST_FOLDER) for f in folders), _short(last, LONGEST_NAME)])
    if _size(path) <= LONGEST_PATH and len(parts) <= DEEPEST:
        return path
    # The whole path is too long or too deep: use a single component
    return _short("_".join(parts), LONGEST_NAME)


def first_clash(names: Iterable[str]) -> tuple[int, int] | None:
    """Return the positions of the first two names that cannot both be files; None if all can.

    Two names clash if their bytes on disk are the same, or if one is a folder in the other's path.

    Args:
      names: results of `safe_name`, with the suffixes of the files.
    """
    encoded = [os.fsencode(name) for name in names]
    files: dict[bytes, int] = {}
    for position, name in enumerate(encoded):
        first = files.setdefault(name, position)
        if first != position:
            return first, position
    # The folders of each name, from the innermost on, must not be files.
    for position, name in enumerate(encoded):
        while name := name.rpartition(b"/")[0]:
            if name in files:
                return files[name], position
    return None


def path_below(folder: Path, name: str) -> Path:
    """Return `folder/name`, and refuse it if its parts or a link lead outside the folder.

    Args:
      folder: where to write; its path may contain links, and it need not exist.
      name: relative path of the file, see `safe_name`.

    Raises:
      UnsafePathError: the file would lie outside the folder.
    """
    path = Path(folder) / name
    # For links in a circle, `resolve` raises RuntimeError or leaves them unresolved; for a zero
    # byte, it raises ValueError.
    try:
        root, parent = Path(folder).resolve(), path.parent.resolve()
        if any(place.is_symlink() for place in (parent, *parent.parents)):
            raise OSError("links in a circle")
        # A file that is a link itself is replaced, not followed.
        inside = parent.is_relative_to(root) and path.name not in ("", "..") and path != folder
    except (OSError, RuntimeError, ValueError) as error:
        raise UnsafePathError(f"{path}: cannot be written ({error})") from error
    if not inside:
        raise UnsafePathError(
            f"{path}: lies outside {folder} because of its name or a link; write to an empty folder"
        )
    return path


def overlap(first: str, second: str) -> bool:
    """Return whether two normalised paths are the same or one contains the other."""
    return first == second or second.startswith(f"{first}/") or first.startswith(f"{second}/")


def _without_controls(part: str) -> str:
    """Replace control characters by `_`."""
    return "".join("_" if _is_control(character) else character for character in part)


def _is_control(character: str) -> bool:
    """Return whether a character is a control character or not possible in a file name."""
    # A byte of a file's name that is not UTF-8, decoded by surrogateescape
    if "\udc80" <= character <= "\udcff":
        return False
    return unicodedata.category(character) in ("Cc", "Cs")


def _short(part: str, longest: int) -> str:
    """Cut a component to `longest` bytes; a digest of the whole keeps it distinct."""
    if _size(part) <= longest:
        return part
    content = part.encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"{content[: longest - 17].decode('utf-8', 'ignore')}~{digest}"


def _size(part: str) -> int:
    """Return the number of bytes of a name on disk."""
    return len(part.encode("utf-8", "surrogateescape"))


PLACES = Path("stages", "places.json")
"""File of a run directory that stores its path aliases."""
RUN = "run"
_ALIAS = re.compile(r"\{([\w.]+)\}(?:/|$)")
# A path in a message begins after a space, a quotation mark, (, = or :, or where the message does.
_BEGINS = r"(?<![^\s`'\"(=:])"


class PathAliasesError(ToolkitError):
    """The file of a run's path aliases cannot be read."""


@dataclass(frozen=True)
class PathAliases:
    """Conversion between the absolute paths in folders that may move and their aliases."""

    folders: Mapping[str, str]
    """The absolute path of each place's folder."""

    def name(self, path: str) -> str:
        """Return the alias of an absolute path in the deepest place that holds it, or the path."""
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
        """Replace the paths in a message that lie inside places by their aliases."""
        # The longest folders first, as others may contain them
        for place, folder in sorted(self.folders.items(), key=lambda item: -len(item[1])):
            named = f"{{{place}}}/".replace("\\", r"\\")
            text = re.sub(f"{_BEGINS}{re.escape(folder)}/", named, text)
        return text

    def resolve_in(self, text: str) -> str:
        """Replace the aliases in a message by paths."""
        for place, folder in self.folders.items():
            text = text.replace(f"{{{place}}}/", f"{folder}/")
        return text


def folder_of(path: str) -> str:
    """Return the folder that a setting names: `path`, or the folder of the file `path`."""
    return str(Path(path).parent if Path(path).is_file() else Path(path))


def places_text(folders: Mapping[str, str]) -> str:
    """Return the content of `stages/places.json`: all but the run directory, which may move."""
    return json.dumps(dict(sorted(folders.items())), indent=1) + "\n"


def places_of(path: Path) -> PathAliases | None:
    """Return the places of the run directory that a file lies in.

    Args:
      path: a file or folder, which need not exist.

    Returns:
      The places; None if the file lies in no run directory.

    Raises:
      PathAliasesError: `stages/places.json` is damaged.
    """
    for folder in Path(path).absolute().parents:
        file = folder / PLACES
        if file.is_file():
            advice = "run the recipe's command again, which rewrites the file"
            with reading(file, PathAliasesError, advice):
                return PathAliases({**read_json(file, {str: str}), RUN: str(folder)})
    return None


def _inside(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies in it, both normalised."""
    return path == folder or path.startswith(f"{folder}/")


PathMap = Sequence[str]
"""Mappings of paths of other machines, each `OLD=NEW`; without any, paths stay as they are."""


_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|[A-Za-z]:$")


def is_of_windows(path: str) -> bool:
    """Return whether a path begins with a drive or a server, as absolute Windows paths do."""
    return _WINDOWS.match(path) is not None


def _with_slashes(path: str) -> str:
    """Replace backslashes by slashes in a Windows path; other paths may have them in names."""
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
        raise ValueError(f"{mapping!r}: {new!r} must be an absolute path, beginning with /")
    return _with_slashes(old).rstrip("/") or "/", new.rstrip("/") or "/"


def map_path(path: str, path_map: PathMap) -> str:
    """Map a path that may be of another machine to this one; unchanged if no mapping fits."""
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
    # Paths of Unix and of Windows have nothing in common, and `commonpath` takes no mixture.
    if len({path.startswith("/") for path in folders}) != 1:
        return ""
    common = os.path.commonpath(folders)
    if common in ("", "/", "//"):
        return ""
    mapping = shlex.quote(f"{common}=NEW")
    return f"if the files lie elsewhere, give --map-path {mapping} (setting corpus.map_paths)"


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies in it; unlike in `_inside`, it may be `/`."""
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")


_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[^\n\t\"'`]*")
LONGEST_QUOTED = 200  # characters


class EncodingError(ToolkitError):
    """A name, or another text, cannot be written as UTF-8."""


def printable(text: str) -> str:
    """Return text with `\\xff` for each byte that is not UTF-8."""
    return _SURROGATE.sub(lambda match: _escaped(ord(match[0])), text)


def check_utf8(text: str) -> None:
    """Check a path or an argument that will be written to text files.

    Raises:
      EncodingError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise encoding_error(error) or error from error


def encoding_error(error: BaseException | None) -> EncodingError | None:
    """Return an error with advice if `error` comes from text that is not UTF-8, else None."""
    # The error itself, or one that it was raised from; a chain of causes may be a circle.
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
            # The name around the faulty place, in a text that may be longer: up to the nearest
            # quotation marks or line ends
            text, place = error.object, error.start
            begin = max(text.rfind(end, 0, place) for end in "\n\t\"'`") + 1
            name = printable(text[max(begin, place - LONGEST_QUOTED) : place])
            ending = _NAME.match(text, place)
            name += printable(ending[0][:LONGEST_QUOTED]) if ending else ""
            return EncodingError(
                f"`{name}` is not UTF-8 and cannot be written to a text file; rename the file "
                "or folder (or correct the text), and run the same command again"
            )
        error = error.__cause__ or error.__context__
    return None


def _escaped(code: int) -> str:
    """Return how a surrogate is shown: as the byte that it stands for, if any, or as its code."""
    # surrogateescape decodes the byte xx as U+DCxx
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
