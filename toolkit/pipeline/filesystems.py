"""fsspec's file systems, set up so that only `ObjectStore` counts and repeats calls."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "created")


class FilesystemError(ToolkitError):
    """There is no such kind of store, or its library is not installed."""


def is_local(path: str) -> bool:
    """Tell whether a path or URL is on a local disk."""
    return "://" not in path or path.startswith(("file://", "local://"))


def local_path(path: str) -> Path:
    """Return the path of a local path or URL."""
    return Path(path.split("://", 1)[-1])


def filesystem(path: str, options: Mapping[str, Any], timeout: float) -> Any:
    """Return fsspec's file system for a path.

    Raises:
      FilesystemError: its library is missing, or fsspec knows no such store.
    """
    protocol = "file" if is_local(path) else path.split("://", 1)[0]
    return _filesystem(protocol, json.dumps(dict(options), sort_keys=True), timeout)


def find(path: str, files: Any) -> Iterator[tuple[str, int, str]]:
    """Find the objects below a prefix, but for those that are being written.

    Args:
      path: the prefix, without a slash at its end.
      files: its file system.

    Yields:
      The path below the prefix, the size in bytes, and what tells the object from others written
      there: its ETag, or the time when it was written. Sorted by path.
    """
    where = str(local_path(path)) if is_local(path) else path
    root = files._strip_protocol(where).rstrip("/") + "/"
    for name, entry in sorted(files.find(where, detail=True).items()):
        if name.startswith(root) and not name.endswith(".tmp"):
            version = next((str(entry[key]) for key in _VERSIONS if key in entry), "")
            yield name.removeprefix(root), entry["size"], version


@lru_cache(maxsize=8)
def _filesystem(protocol: str, options: str, timeout: float) -> Any:
    import fsspec

    if protocol not in fsspec.available_protocols():
        raise FilesystemError(f"{protocol}:// is no kind of store that fsspec knows, as s3:// is")
    chosen = json.loads(options) if protocol not in ("file", "memory") else {}
    try:
        if protocol in ("s3", "s3a"):
            return _s3(chosen, timeout)
        return fsspec.filesystem(protocol, **{"use_listings_cache": False, **chosen})
    except ImportError as error:
        raise FilesystemError(
            f"{protocol}:// needs a library that is not installed ({error}); for s3:// install "
            "this package with the extra `s3`"
        ) from error


def _s3(options: dict[str, Any], timeout: float) -> Any:
    """Set up s3fs so that one read is one GET, and no call is repeated without being counted."""
    import fsspec

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
