"""Access to object stores through fsspec: local folders, `s3://`, and fsspec's other protocols.

Only PUT, GET and HEAD are used where partitions are processed (C24); LIST is for planning. Writes
are atomic. Calls with a transient failure are repeated, a bounded number of times, after a random
wait; size and digest are checked on every read. The store's library finds the credentials itself
(environment, profile, instance); they cannot be given here, and are masked in error messages.
"""

import contextlib
import errno
import json
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from errno import EINVAL
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import ToolkitError
from toolkit.pipeline.config import StoreConfig
from toolkit.storage.digests import CHUNK, digest_bytes, file_digest
from toolkit.storage.files import (
    create_atomically,
    link_atomically,
    open_atomically,
    write_atomically,
)

_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "created")


class FilesystemError(ToolkitError):
    """The kind of store is unknown, or its library is not installed."""


def is_local(path: str) -> bool:
    """Return whether a path or URL is on a local disk."""
    return "://" not in path or path.startswith(("file://", "local://"))


def local_path(path: str) -> Path:
    """Return a local path or URL as a `Path`."""
    return Path(path.split("://", 1)[-1])


def filesystem(path: str, options: Mapping[str, Any], timeout: float) -> Any:
    """Return fsspec's file system for a path.

    Raises:
      FilesystemError: its library is missing, or fsspec does not support the kind of store.
    """
    protocol = "file" if is_local(path) else path.split("://", 1)[0]
    return _filesystem(protocol, json.dumps(dict(options), sort_keys=True), timeout)


def find(path: str, files: Any) -> Iterator[tuple[str, int, str]]:
    """Find the objects below a prefix, except those that are being written.

    Args:
      path: the prefix, without a slash at its end.
      files: its file system.

    Yields:
      The path below the prefix, the size in bytes, and the object's version: its ETag, or the time
      when it was written. Sorted by path.
    """
    where = str(local_path(path)) if is_local(path) else path
    root = files._strip_protocol(where).rstrip("/") + "/"
    for name, entry in sorted(files.find(where, detail=True).items()):
        if name.startswith(root) and not name.endswith(".tmp"):
            version = next((str(entry[key]) for key in _VERSIONS if key in entry), "")
            yield name.removeprefix(root), entry["size"], version


@lru_cache(maxsize=8)
def _filesystem(protocol: str, options: str, timeout: float) -> Any:
    """Return fsspec's file system for a protocol, from a cache; `options` are JSON."""
    import fsspec

    if protocol not in fsspec.available_protocols():
        raise FilesystemError(
            f"fsspec does not support {protocol}:// URLs: use another store, such as s3://"
        )
    # Options are for the remote store; local folders of the same run need none.
    store_options = json.loads(options) if protocol not in ("file", "memory") else {}
    try:
        if protocol in ("s3", "s3a"):
            return _s3(store_options, timeout)
        return fsspec.filesystem(protocol, **{"use_listings_cache": False, **store_options})
    except ImportError as error:
        raise FilesystemError(
            f"{protocol}:// needs a library that is not installed ({error}); for s3:// install "
            "this package with the extra `s3`"
        ) from error


def _s3(options: dict[str, Any], timeout: float) -> Any:
    """Set up s3fs so that one read is one GET, and no call is repeated without being counted."""
    import fsspec

    # `ObjectStore` repeats and counts calls, so the retries of botocore and s3fs are turned off.
    config = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "max_pool_connections": 32,
    }
    files = fsspec.filesystem(
        "s3",
        use_listings_cache=False,
        max_concurrency=1,  # with more s3fs sends a HEAD before each GET
        skip_instance_cache=True,
        **{"config_kwargs": config, **options},
    )
    files.retries = 1
    return files


PERMANENT_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ImportError,
)
PERMANENT_NAMES = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "NoRegionError",
}
PERMANENT_ERRNOS = {errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}

# Users in URLs; fields of signed URLs, headers and settings; ids of AWS access keys.
SECRET = re.compile(
    r"(?P<user>(?<=://)[^/@\s'\"]+(?=@))"
    r"|(?P<field>\b(?:X-Amz-[A-Za-z-]+|AWSAccessKeyId|Signature|sig|[\w-]*(?:secret|token|password|"
    r"credential|authorization|access_?key)[\w-]*)[\"']?\s*[=:]\s*)(?P<value>[\"']?[^&\s,'\"]+)"
    r"|(?P<id>\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b)",
    re.IGNORECASE,
)


def is_transient(error: BaseException) -> bool:
    """Return whether a store's failure is transient, so that another try may succeed.

    Server errors, time-outs, resets and truncated bodies are raised as a dozen classes of several
    libraries, so every error is transient unless it is known to be permanent.
    """
    if isinstance(error, PERMANENT_ERRORS) or type(error).__name__ in PERMANENT_NAMES:
        return False
    return not (isinstance(error, OSError) and error.errno in PERMANENT_ERRNOS)


def redact(text: str) -> str:
    """Mask user names, keys, tokens and signatures in a message or URL."""
    return SECRET.sub(lambda match: (match["field"] or "") + "***", text)


Value = TypeVar("Value")


class ObjectError(ToolkitError):
    """An object cannot be read or written."""


class MissingObjectError(ObjectError):
    """An object does not exist."""


class DamagedObjectError(ObjectError):
    """An object does not match its reference, however often it is read.

    Args:
      message: what is wrong.
      path: path of the object.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.path)


class _DamagedError(Exception):
    """The data read differs from the data written; another read may succeed."""


@dataclass(frozen=True)
class ObjectRef:
    """An object's path, with the size and digest that it must have."""

    path: str
    """Local path or URL such as `s3://bucket/name`."""
    size: int
    """Size in bytes; negative: unknown and not checked."""
    digest: str | None = None
    """Digest by `toolkit.storage.digests.digest_bytes`; None: unknown and not checked."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Metadata, plain data for JSON: hours, utterances, ..."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "path": self.path,
            "size": self.size,
            "digest": self.digest,
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ObjectRef":
        """Restore a reference from the result of `to_dict`."""
        return cls(values["path"], values["size"], values["digest"], values["about"])


@dataclass
class Counts:
    """Numbers of calls and bytes of a store, repeated tries included."""

    put: int = 0
    get: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0
    repeated: int = 0
    """Calls made again after a failure; counted above as well."""
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    """Time spent in calls, waits between tries included."""

    @property
    def calls(self) -> int:
        """Number of calls of all kinds."""
        return self.put + self.get + self.head + self.list + self.delete

    def __add__(self, counts: "Counts") -> "Counts":
        sums = {f.name: getattr(self, f.name) + getattr(counts, f.name) for f in fields(self)}
        return Counts(**sums)

    def to_dict(self) -> dict[str, float]:
        """Return plain data for JSON."""
        return asdict(self)


class ObjectStore:
    """Reads and writes objects; threads may share a store."""

    def __init__(self, config: StoreConfig | None = None) -> None:
        self.config = config or StoreConfig()
        self.counts = Counts()
        self._random = random.Random()  # for the waits only
        self._lock = threading.Lock()

    def put(self, path: str, data: bytes, about: Mapping[str, Any] | None = None) -> ObjectRef:
        """Write an object atomically, replacing any object of that name."""
        digest = digest_bytes(data)
        path = self._name(path, digest)

        def write() -> None:
            if is_local(path):
                write_atomically(local_path(path), data)
            else:
                self._remote(path).pipe_file(path, data, **self._parts(path))

        self._call("put", path, write, calls=self._put_calls(path, len(data)))
        self._count(bytes_written=len(data))
        return ObjectRef(path, len(data), digest, about or {})

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless its name exists already; of concurrent calls, one succeeds.

        Returns:
          Whether this call wrote the object. After a repeated try it may be False although an
          earlier try of this call wrote the object and only the answer was lost.
        """

        def write() -> bool:
            if is_local(path):
                return create_atomically(local_path(path), data)
            try:
                self._remote(path).pipe_file(path, data, mode="create", **self._parts(path))
            except OSError as error:
                # s3fs recognises a refusal by the server's message. Ceph sends no message, and s3fs
                # raises EINVAL.
                refused = error.errno == EINVAL and self.size(path) is not None
                if not refused and not isinstance(error, FileExistsError):
                    raise
                return False
            return True

        self._count(bytes_written=len(data))
        return self._call("put", path, write)

    def put_file(
        self, local: Path, path: str, about: Mapping[str, Any] | None = None, link: bool = False
    ) -> ObjectRef:
        """Write a local file as an object without reading it into memory, in parts if it is large.

        Args:
          local: the file.
          path: path of the object.
          about: metadata.
          link: store a hard link to the file if both are on one disk; the file must never change
            again.
        """
        size, digest = local.stat().st_size, file_digest(local).digest
        path = self._name(path, digest)

        def write() -> None:
            if not is_local(path):
                self._remote(path).put_file(str(local), path, **self._parts(path))
            elif link:
                link_atomically(local, local_path(path))
            elif local_path(path) != local:
                with open(local, "rb") as source, open_atomically(local_path(path), "wb") as file:
                    shutil.copyfileobj(source, file, CHUNK)

        self._call("put", path, write, calls=self._put_calls(path, size))
        self._count(bytes_written=size)
        return ObjectRef(path, size, digest, about or {})

    def get(self, source: ObjectRef | str) -> bytes:
        """Read an object into memory; size and digest of an `ObjectRef` are checked.

        Raises:
          MissingObjectError: no object has that name.
          DamagedObjectError: the object does not match the reference.
          ObjectError: the object cannot be read.
        """
        ref = source if isinstance(source, ObjectRef) else ObjectRef(source, -1)

        def read() -> bytes:
            if is_local(ref.path):
                data = local_path(ref.path).read_bytes()
            else:
                data = self._remote(ref.path).cat_file(ref.path)
            self._count(bytes_read=len(data))
            _check(ref, len(data), partial(digest_bytes, data))
            return data

        return self._call("get", ref.path, read)

    def get_range(self, path: str, start: int, size: int) -> bytes:
        """Read exactly `size` bytes from byte `start` on."""

        def read() -> bytes:
            if is_local(path):
                with open(local_path(path), "rb") as file:
                    file.seek(start)
                    data = file.read(size)
            else:
                data = self._remote(path).cat_file(path, start=start, end=start + size)
            self._count(bytes_read=len(data))
            if len(data) != size:
                raise _DamagedError(
                    f"the object has only {len(data)} bytes instead of {size} from byte {start} on"
                )
            return data

        return self._call("get", path, read)

    def local(self, source: ObjectRef | str, folder: Path) -> Path:
        """Return a local file with an object's content: the object itself if local, else a copy.

        Size and digest are checked as in `get`, without reading the object into memory.

        Args:
          source: the object.
          folder: where a copy is put, under the object's name.
        """
        ref = source if isinstance(source, ObjectRef) else ObjectRef(source, -1)
        in_place = is_local(ref.path)
        path = local_path(ref.path) if in_place else folder / ref.path.rsplit("/", 1)[-1]

        def fetch() -> Path:
            if not in_place:
                folder.mkdir(parents=True, exist_ok=True)
                self._remote(ref.path).get_file(ref.path, str(path))
            size = path.stat().st_size
            self._count(bytes_read=size)
            _check(ref, size, lambda: file_digest(path).digest)
            return path

        return self._call("get", ref.path, fetch)

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes by a HEAD call; None if it does not exist."""

        def request() -> int:
            if is_local(path):
                return local_path(path).stat().st_size
            return self._remote(path).info(path)["size"]

        try:
            return self._call("head", path, request)
        except MissingObjectError:
            return None

    def remove(self, path: str) -> None:
        """Remove an object, if there is one."""

        def request() -> None:
            if is_local(path):
                local_path(path).unlink()
            else:
                self._remote(path).rm_file(path)

        with contextlib.suppress(MissingObjectError):
            self._call("delete", path, request)

    def list(self, prefix: str, versions: bool = False) -> list[ObjectRef]:
        """List the objects below a prefix (a folder), sorted by name, without digests.

        Args:
          prefix: the folder.
          versions: put the object's version, its ETag or the time when it was written, into
            `about`.
        """
        prefix = prefix.rstrip("/")

        def request() -> list[ObjectRef]:
            return [
                ObjectRef(f"{prefix}/{name}", size, about={"version": version} if versions else {})
                for name, size, version in find(prefix, self._remote(prefix))
            ]

        refs = self._call("list", prefix, request)
        if not is_local(prefix):
            self._count(list=len(refs) // 1000)  # S3 answers with 1000 names at a time
        return refs

    def _name(self, path: str, digest: str) -> str:
        """Return the path at which an object with this content digest is written."""
        return path

    def _remote(self, path: str) -> Any:
        """Return fsspec's file system for a path, with the store's options."""
        return filesystem(path, self.config.options, self.config.timeout)

    def _parts(self, path: str) -> dict[str, int]:
        """Return fsspec's argument for the part size of an upload to S3."""
        return {"chunksize": self.config.part_bytes} if path.startswith("s3") else {}

    def _put_calls(self, path: str, size: int) -> int:
        """Return the number of calls that an upload of `size` bytes takes."""
        if not path.startswith("s3") or size < 2 * self.config.part_bytes:
            return 1
        # A call per part, rounded up; one begins the upload and one completes it.
        return -(-size // self.config.part_bytes) + 2

    def _call(self, kind: str, path: str, action: Callable[[], Value], calls: int = 1) -> Value:
        """Run `action`, repeat it after transient failures, and count the calls."""
        start = time.perf_counter()
        tries = 0
        try:
            while True:
                tries += 1
                self._count(**{kind: calls})
                try:
                    return action()
                except FileNotFoundError as error:
                    raise MissingObjectError(f"{redact(path)}: no such object") from error
                except ToolkitError:  # a fault of the set-up, such as a missing library
                    raise
                except Exception as error:
                    if tries >= self._tries(path, error):
                        last = redact(repr(error))
                        failed = f"{kind.upper()} failed {tries} times, the last time with {last}"
                        message = f"{redact(path)}: {failed}"
                        # `from None`: the cause may contain a signed URL.
                        if isinstance(error, _DamagedError):
                            raise DamagedObjectError(message, path) from None
                        raise ObjectError(message) from None
                self._count(repeated=calls)
                time.sleep(self._wait(tries))
        finally:
            self._count(seconds=time.perf_counter() - start)

    def _count(self, **increments: float) -> None:
        """Add increments, given by name, to the store's counts; thread-safe."""
        with self._lock:
            for name, value in increments.items():
                setattr(self.counts, name, getattr(self.counts, name) + value)

    def _tries(self, path: str, error: Exception) -> int:
        """Return how many times a call that failed with this error is tried in all."""
        # A second read of a local file helps if it was being replaced during the first.
        if isinstance(error, _DamagedError):
            return 2 if is_local(path) else self.config.tries
        return self.config.tries if not is_local(path) and is_transient(error) else 1

    def _wait(self, tries: int) -> float:
        """Draw the wait in seconds after `tries` failed tries."""
        # Exponential backoff with full jitter.
        wait = self.config.first_wait * 2 ** (tries - 1)
        return self._random.uniform(0, min(self.config.longest_wait, wait))


def _check(ref: ObjectRef, size: int, digest: Callable[[], str]) -> None:
    """Raise a `_DamagedError` if size or digest differ from those of the reference."""
    if ref.size >= 0 and size != ref.size:
        raise _DamagedError(f"{size} bytes instead of {ref.size}")
    if ref.digest is not None and digest() != ref.digest:
        raise _DamagedError("the digest of the object differs from the digest that was recorded")
