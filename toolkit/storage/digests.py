"""Digest the contents of files and folders, and describe what changed between two digests.

A file is hashed again only if its size, times or inode differ from when it was last hashed. So
touching a file makes no result stale, an edit is noticed whatever the clock says, and a finished
recipe is checked without reading its data.
"""

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.storage.files import write_atomically
from toolkit.storage.paths import PathAliases
from toolkit.storage.reading import DAMAGE_ERRORS, read_json

CHUNK = 1 << 20  # bytes
# A file that changed this recently could change again, unnoticed, within the same tick of the file
# system's clock: its cached digest is not trusted later.
RACY_AGE = 20_000_000  # ns
AUDIO = "audio"


@dataclass(frozen=True)
class Content:
    """Size and digest of a file or folder."""

    size: int
    """Total size in bytes."""
    digest: str
    """Digest of the data that `kind` names."""
    count: int = 1
    """Number of files."""
    kind: str = "content"
    """What the digest covers: "content", of all files; "listing", their names, sizes and
    modification times only; "audio", the contents of the audio files that a manifest names."""
    files: dict[str, str] = field(default_factory=dict)
    """Digests by relative path for the "content" of a folder; else empty."""


def combined(digests: Mapping[str, str]) -> str:
    """Return one digest of several names and their digests, in the given order."""
    return digest_bytes(_encode("".join(f"{name}\0{digest}\n" for name, digest in digests.items())))


def digest_bytes(data: bytes) -> str:
    """Return the BLAKE2b digest (16 bytes, in hexadecimal) of `data`."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Digests:
    """Digests of files, cached in a JSON file by path, size, times and inode.

    Args:
      root: the folder that cached paths are relative to.
      file: the JSON file of the cache.
      folders: folders outside `root` that may move, by place (see `toolkit.storage.paths`). The
        digests of their files stay valid after a move.
    """

    def __init__(self, root: Path, file: Path, folders: Mapping[str, str] | None = None) -> None:
        self._root, self._file, self._places = root, file, PathAliases(folders or {})
        # By path: size, modification and change time (ns), inode, digest, and the time (ns) at
        # which the file got this content
        self._cache: dict[str, list] = _read_cache(file)
        self._changed = False

    def content(self, path: Path, sync: bool = False) -> Content | None:
        """Return the size and digest of `path`; None if it is missing.

        Args:
          path: a file or a folder; links are followed.
          sync: also make sure that every file is on disk (fsync); cached digests are not used.
        """
        if path.is_dir():
            statuses = list(_walk(path))
            files = {name: self._digest(path / name, status, sync) for name, status in statuses}
            size = sum(status.st_size for _, status in statuses)
            return Content(size, combined(files), len(files), files=files)
        if not path.is_file():
            return None
        status = path.stat()
        return Content(status.st_size, self._digest(path, status, sync))

    def moved(self, old: Path, new: Path) -> None:
        """Keep the cached digests of `old` for `new` after a rename, which changes the ctime."""
        for name in [name for name, _ in _walk(new)] if new.is_dir() else [""]:
            cached = self._cache.pop(self._key(old / name), None)
            status = (new / name).stat()
            now = stamp(status)
            # Everything except the change time, which the rename has set, must be as before.
            if cached and [*cached[:2], cached[3]] == [*now[:2], now[3]]:
                self._cache[self._key(new / name)] = [*now, *cached[4:]]

    def add(self, path: Path, digest: "FileDigest") -> None:
        """Cache the digest of a file that another process has read."""
        key, stamp = self._key(path), digest.stamp
        # No file has the inode -1, so a file that changed just now is read again the next time.
        recent = abs(time.time_ns() - stamp[2]) <= RACY_AGE
        entry = [*stamp[:3], -1 if recent else stamp[3]]
        self._cache[key] = [*entry, digest.digest, _since(digest, self._cache.get(key))]
        self._changed = True

    def since(self, path: Path, status: os.stat_result) -> int:
        """Return the modification time (ns) that a file had when it got its present content.

        So a file that was touched counts as unchanged in a `listing`. If the file is not in the
        cache, or its size has changed, return its current modification time without reading it.
        """
        cached = self._cache.get(self._key(path))
        if cached is None or cached[0] != status.st_size:
            return status.st_mtime_ns
        self._digest(path, status, sync=False)
        return self._cache[self._key(path)][5]

    def save(self) -> None:
        """Write the cache; if that fails, files are merely hashed again later."""
        if self._changed:
            # Keep the entries that a background stage has saved meanwhile.
            self._cache = _read_cache(self._file) | self._cache
            lines = [
                f"{json.dumps(key)}: {json.dumps(entry)}"
                for key, entry in sorted(self._cache.items())
                if os.path.lexists(self._root / self._places.path(key))
            ]
            text = "{\n" + ",\n".join(lines) + "\n}\n"
            with contextlib.suppress(OSError):
                write_atomically(self._file, text)
            self._changed = False

    def _digest(self, path: Path, status: os.stat_result, sync: bool) -> str:
        """Return a file's digest: from the cache, unless the file changed or is to be synced."""
        key = self._key(path)
        cached = self._cache.get(key)
        if cached and cached[:4] == stamp(status) and not sync:
            return cached[4]
        digest = FileDigest(stamp(status), _hash(path, sync))
        self.add(path, digest)
        return digest.digest

    def _key(self, path: Path) -> str:
        """Return the cache key of a file: its path relative to the root, or its alias."""
        root = f"{self._root}{os.sep}"
        text = str(path)
        return text.removeprefix(root) if text.startswith(root) else self._places.name(text)


@dataclass(frozen=True)
class FileDigest:
    """The digest of a file, and the file's stamp from before it was read."""

    stamp: list[int]
    """Size, modification time and change time in ns, inode."""
    digest: str


def file_digest(path: Path) -> FileDigest:
    """Read a file and return its digest, for `Digests.add` in another process.

    Raises:
      OSError: the file cannot be read.
    """
    return FileDigest(stamp(os.stat(path)), _hash(path))


def _hash(path: Path, sync: bool = False) -> str:
    """Return the digest of a file's content, as `digest_bytes` does; with `sync`, fsync it."""
    hasher = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
        if sync:
            os.fsync(file.fileno())
    return hasher.hexdigest()


def listing(
    path: Path, since: Callable[[Path, os.stat_result], int] | None = None
) -> Content | None:
    """Return a digest of the names, sizes and modification times of the files in a folder.

    Unlike in `Digests.content`, the files are not read. Return None when there is no such folder.

    Args:
      path: path of the folder.
      since: function that returns the modification time (ns) to use for a file, such as
        `Digests.since`; None: the present one.
    """
    if not path.is_dir():
        return None
    statuses = list(_walk(path))
    times = [since(path / name, s) if since else s.st_mtime_ns for name, s in statuses]
    lines = "".join(
        f"{name}\0{s.st_size}\0{t}\n" for (name, s), t in zip(statuses, times, strict=True)
    )
    size = sum(status.st_size for _, status in statuses)
    return Content(size, digest_bytes(_encode(lines)), len(statuses), "listing")


def difference(name: str, old: Content, new: Content | None) -> str | None:
    """Say how `new` differs from `old`; None if it does not."""
    if new is None:
        return f"`{name}` is missing"
    if old.digest == new.digest:
        return None
    if old.kind == AUDIO:
        return f"audio files listed in `{name}` changed"
    if old.kind == "listing":
        old_summary, new_summary = (f"{c.count} files, {c.size} bytes" for c in (old, new))
        detail = (
            f"{old_summary} -> {new_summary}"
            if old_summary != new_summary
            else "modification times or names"
        )
        return f"the files in `{name}` changed ({detail})"
    changes = [
        f"`{name}/{file}` {_verb(old.files.get(file), new.files.get(file))}"
        for file in sorted(old.files.keys() | new.files.keys())
        if old.files.get(file) != new.files.get(file)
    ]
    if not changes:
        return f"`{name}` changed"
    return changes[0] + (f" (and {len(changes) - 1} more files)" if len(changes) > 1 else "")


def _verb(old: str | None, new: str | None) -> str:
    """Say what happened to a file with this old and new digest; None: not there."""
    if old is None:
        return "is new"
    return "changed" if new else "is missing"


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (relative path, status) of the regular files below `folder`, sorted by path.

    Links are followed, except links to a folder that contains them: these would never end.
    """
    files = []

    def visit(path: str, prefix: str, ancestors: tuple) -> None:
        # `ancestors`: (device, inode) of the folder and of the folders above it
        with os.scandir(path) as entries:
            for entry in entries:
                # Files that vanish meanwhile and broken links count as missing.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    identity = (status.st_dev, status.st_ino)
                    if stat.S_ISREG(status.st_mode):
                        files.append((prefix + entry.name, status))
                    elif stat.S_ISDIR(status.st_mode) and identity not in ancestors:
                        visit(entry.path, f"{prefix}{entry.name}/", (*ancestors, identity))

    status = folder.stat()
    visit(str(folder), "", ((status.st_dev, status.st_ino),))
    yield from sorted(files, key=lambda item: item[0])


def stamp(status: os.stat_result) -> list[int]:
    """Return size, modification and change time in ns, and inode: an edit changes one of them."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _since(digest: FileDigest, cached: list | None) -> int:
    """Return the time (ns) at which a file got its content: from the cache, or from its stamp."""
    if cached is not None and cached[4] == digest.digest:
        return cached[5]
    # Usually the modification time. If an edit has set that back to the old content's time, use the
    # change time, which no program can set.
    set_back = cached is not None and cached[5] == digest.stamp[1]
    return digest.stamp[2] if set_back else digest.stamp[1]


def _encode(text: str) -> bytes:
    """Encode text as UTF-8; bytes of file names that are not UTF-8 stay as they are on disk."""
    return text.encode("utf-8", "surrogateescape")


def _read_cache(path: Path) -> dict[str, list]:
    """Return the cache that `save` wrote, without entries that cannot be read."""
    try:
        entries = read_json(path, {str: [Any]})
    except DAMAGE_ERRORS:
        return {}
    kinds = [int, int, int, int, str, int]
    return {name: entry for name, entry in entries.items() if [type(x) for x in entry] == kinds}


def audio_names(manifest: Path) -> list[str]:
    """Return the audio files that a manifest of cuts names, sorted, each once.

    Args:
      manifest: one cut per line, in JSON, as `toolkit.corpus.manifest.write_cuts` writes them.

    Returns:
      Absolute paths or aliases, as in the manifest (see `toolkit.storage.paths`). Sources that are
      not local files are left out, and so are lines that are not cuts: the manifest's reader
      reports them.
    """
    names: set[str] = set()
    with open(manifest, "rb") as file:
        for line in file:
            try:
                names.update(_audio_of_cut(json.loads(line)))
            except DAMAGE_ERRORS:
                continue
    return sorted(name for name in names if name.startswith(("/", "{")))


def _audio_of_cut(cut: Any) -> Iterator[str]:
    """Yield the names of a cut's audio files; raise one of `DAMAGE_ERRORS` if it is not a cut."""
    for source in cut["recording"]["sources"]:
        if source["type"] == "file":
            yield str(source["source"])
    # Simulated array recordings: the speech alone, and the echo alone
    yield from map(str, ((cut.get("custom") or {}).get("components") or {}).values())
