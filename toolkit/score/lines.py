"""Reading of transcript files line by line, with errors that name file and line."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.storage.reading import regular

Side = Literal["ref", "hyp"]
"""Which of two texts that are compared."""


class TranscriptError(ToolkitError):
    """A transcript file that cannot be read."""


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Read a file in UTF-8, gzipped where its name ends in .gz; numbers count from 1.

    Only a newline ends a line, as in Kaldi; Unicode's other line separators do not.

    Raises:
      TranscriptError: the file cannot be read, is not UTF-8 or has a zero byte.
    """
    raw = content(path)
    numbered = []
    for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else [], start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TranscriptError(
                f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8: "
                "convert the file, for instance with iconv"
            ) from error
        if "\0" in text:
            raise TranscriptError(f"{path}:{number}: a zero byte: this is not a transcript file")
        numbered.append((number, text.removesuffix("\r")))
    return numbered


def finite(text: str) -> float | None:
    """Return the finite number that a field holds; None where it holds none, or Python's `1_0`."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def content(path: Path) -> bytes:
    """Read a file's bytes, gzipped where its name ends in .gz."""
    try:
        raw = regular(path).read_bytes()
        return gzip.decompress(raw) if Path(path).suffix == ".gz" else raw
    except OSError as error:
        why = error.strerror or str(error)
        raise TranscriptError(f"{path}: cannot read it: {why}") from error
    except (EOFError, zlib.error) as error:
        raise TranscriptError(f"{path}: damaged gzip file: {error}") from error
