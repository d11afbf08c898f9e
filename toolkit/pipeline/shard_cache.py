"""Training shards in an object store, read through a local cache that can prefetch them (C21).

`shards.jsonl` names the objects of every shard with size and digest. An object is copied to the
cache when it is opened or prefetched. The copy is named by the object's digest, so that all
processes and training runs on a machine can share a cache. When the cache is full, the copies that
were opened longest ago are removed; open files stay readable.
"""

import fcntl
import os
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from toolkit.pipeline.config import CacheConfig
from toolkit.pipeline.markers import rebuild_damaged
from toolkit.pipeline.objects import ObjectRef, ObjectStore, is_local, local_path
from toolkit.pipeline.shards import read_shards
from toolkit.pipeline.step import StepError

COPY = re.compile("[0-9a-f]{32}")
"""The name of a copy: the digest of the object."""
LOCK = ".lock"
FORCE = "rerun the stage that made the shards, with --force: it makes only this shard again"


class CachedShards:
    """A set of shards in a store; implements `toolkit.ssl.unlabelled.ShardFiles`.

    Args:
      url: prefix of the set.
      store: reads objects, repeats calls and checks digests.
      folder: folder of the cache.
      config: size of the cache, and number of threads that fetch objects.

    Raises:
      ObjectError: the set does not exist.
      StepError: its list of shards is damaged.
    """

    def __init__(self, url: str, store: ObjectStore, folder: Path, config: CacheConfig) -> None:
        self.name = url
        """Name of the set in messages, see `ShardFiles`."""
        self._store, self._folder = store, Path(folder)
        self._most = int(config.gigabytes * 1e9)
        self._objects = {shard.index: shard.objects for shard in read_shards(store, url)}
        for index, objects in self._objects.items():
            for ref in objects.values():
                if not COPY.fullmatch(str(ref.digest)):
                    raise StepError(f"{url}: shard {index} has the invalid digest {ref.digest!r}")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._pool = ThreadPoolExecutor(config.threads, "shards")

    def manifest(self, name: str) -> bytes:
        """Implement `ShardFiles.manifest`."""
        return self._store.get(f"{self.name}/{name}")

    def open(self, field: str, shard: int) -> BinaryIO:
        """Implement `ShardFiles.open`.

        Raises:
          ObjectError: the file cannot be fetched, or is damaged.
        """
        if field not in self._objects.get(shard, {}):
            raise ValueError(f"the list of shards contains no {field} for this shard")
        return self._opened(self._objects[shard][field])

    def prefetch(self, shards: Sequence[int]) -> None:
        """Fetch shards in other threads; failures are raised when the files are opened."""
        for shard in shards:
            for ref in self._objects.get(shard, {}).values():
                if not self._copy(ref).exists():
                    self._pool.submit(self._fetch_ahead, ref)

    def close(self) -> None:
        """Wait for pending prefetches, and end the threads."""
        self._pool.shutdown()

    def _copy(self, ref: ObjectRef) -> Path:
        """Return the path of the local copy of an object."""
        return self._folder / str(ref.digest)

    def _fetch_ahead(self, ref: ObjectRef) -> None:
        """Fetch an object into the cache; runs in a thread."""
        with suppress(Exception):
            self._opened(ref).close()

    def _opened(self, ref: ObjectRef) -> BinaryIO:
        """Open the local copy of an object; fetch it first if there is none.

        Only one thread among all processes fetches an object; others that need it wait.
        """
        if is_local(ref.path):
            return open(local_path(ref.path), "rb")
        path = self._copy(ref)
        with suppress(FileNotFoundError):
            return _open_copy(path)
        # Fetch under a lock. Another process may have fetched the object while this one waited.
        with open(self._folder / f"{ref.digest}{LOCK}", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                return _open_copy(path)
            folder = tempfile.TemporaryDirectory(dir=self._folder)
            with folder as beside, rebuild_damaged(self._store, FORCE):
                fetched = self._store.local(ref, Path(beside))
                # Open before renaming: another process may remove `path` to make room.
                opened = _open_copy(fetched)
                os.replace(fetched, path)
            Path(lock.name).unlink(missing_ok=True)
        self._make_room(path)
        return opened

    def _make_room(self, new: Path) -> None:
        """Remove the copies opened longest ago until the rest fits; the copy at `new` stays."""
        entries = []
        for entry in os.scandir(self._folder):
            if COPY.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    entries.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
        # `_open_copy` sets a copy's time, so the oldest copy was opened longest ago.
        total_size = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total_size <= self._most:
                return
            if path != str(new):
                total_size -= size
                with suppress(FileNotFoundError):
                    os.unlink(path)


def _open_copy(path: Path) -> BinaryIO:
    """Open a copy and set its time to now, which `_make_room` reads."""
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    os.utime(file.fileno())
    return file
