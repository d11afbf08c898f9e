"""Reading of transcript files line by line, with errors that name file and line."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.storage.lines import LineCounts, decoded_lines, is_utf8
from toolkit.storage.reading import regular

Side = Literal["ref", "hyp"]
"""Which of two texts that are compared."""


class TranscriptError(ToolkitError):
    """A transcript file that cannot be read."""


class FaultyLineError(TranscriptError):
    """A line that is not UTF-8 or has a zero byte."""


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Read a file in UTF-8, gzipped where its name ends in .gz; numbers count from 1.

    Only a newline ends a line, as in Kaldi; Unicode's other line separators do not. A file that
    begins with the byte order mark of UTF-16 is decoded.

    Raises:
      FaultyLineError: a line is not UTF-8 or has a zero byte.
      TranscriptError: the file cannot be read.
    """
    counts = LineCounts()
    numbered = undecoded_lines(path, counts)
    for number, text in numbered:
        if not is_utf8(text):
            raise FaultyLineError(f"{path}:{number}: not UTF-8: {counts.describe(text)}")
        if "\0" in text:
            raise FaultyLineError(f"{path}:{number}: a zero byte: this is not a transcript file")
    return numbered


def undecoded_lines(path: Path, counts: LineCounts) -> list[tuple[int, str]]:
    """Read as `numbered_lines`, faulty lines too (see `toolkit.storage.lines`); count them.

    Raises:
      TranscriptError: the file cannot be read.
    """
    try:
        return list(decoded_lines(path, counts))
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{path}: damaged {error.encoding}; save it as UTF-8") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise TranscriptError(f"{path}: cannot read it: {why}") from error
    except (EOFError, zlib.error) as error:
        raise TranscriptError(f"{path}: damaged gzip file: {error}") from error


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
