"""Writing of Kaldi's archives, which a full disk must not cut short without a word."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.kaldi.tables import Entry, KaldiIoError, read_header, writer_path
from toolkit.kaldi.text_objects import INTEGERS


class ArchiveWriter:
    """A writer of Kaldi's archive with its scp file; where an error ends it, neither is left.

    Args:
      make: the class of `native` that writes.
      archive: the file to write; its folder is made.
      scp: the table of its objects, by absolute paths.
      text: write text.

    Raises:
      KaldiIoError: a path that tables cannot have, see `writer_path`, or cannot be written.
    """

    def __init__(
        self, make: Callable[[str], Any], archive: Path, scp: Path, text: bool = False
    ) -> None:
        self._paths = writer_path(archive), writer_path(scp)
        mode = "ark,scp,t" if text else "ark,scp"
        self._written = 0
        self._writer = self._tried(make, f"{mode}:{self._paths[0]},{self._paths[1]}")

    def write(self, key: str, *value: Any) -> None:
        """Write an object, and what else the writer of its kind takes."""
        self._tried(self._writer.write, key, *value)
        self._written += 1

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._tried(self._writer.close)
        finally:
            if kind is not None:
                self._remove()
        if kind is None:
            self._tried(self._check_end)

    def _check_end(self) -> None:
        """Check that what was in buffers is on disk, which closing does not tell."""
        archive, scp = self._paths
        *lines, end = scp.read_text("utf-8").split("\n")
        if end or len(lines) != self._written:
            raise KaldiIoError(f"{scp}: lines are missing")
        offset = int(lines[-1].rpartition(":")[2]) if lines else -1
        if offset >= archive.stat().st_size:
            raise KaldiIoError(f"{archive}: objects are missing")
        if lines and read_header(Entry("", archive, offset)).kind == INTEGERS:
            raise KaldiIoError(f"{archive}: an object is missing")  # its first byte is no text

    def _tried(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (RuntimeError, KaldiIoError) as error:
            self._remove()
            raise KaldiIoError(f"{self._paths[0]}: cannot be written: is the disk full?") from error

    def _remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
