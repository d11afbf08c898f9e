"""Kaldi's archives of integer vectors."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from toolkit.kaldi.tables import (
    GZIP,
    INTEGER,
    INTEGERS_START,
    KaldiIoError,
    decode_integers,
    entries,
    opened,
    read_vector,
)
from toolkit.storage.reading import reason


def read_int_vectors(table: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, int32 [T]) of an archive or scp file, or of a gzipped or text archive.

    Raises:
      KaldiIoError: names the file and key.
    """
    table = Path(table)
    if table.suffix == ".scp":
        for entry in entries(table).values():
            yield entry.key, read_vector(entry)
        return
    with opened(table) as file:
        compressed = file.read(len(GZIP)) == GZIP
    try:
        with gzip.open(table, "rb") if compressed else open(table, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise KaldiIoError(f"{table}: cannot be read ({reason(error)})") from error
    yield from _int_vectors(table, content)


def _int_vectors(table: Path, content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Parse an archive: `key `, then a binary vector, or numbers up to the line's end."""
    at = 0
    while at < len(content):
        space = content.find(b" ", at)
        try:
            if space >= 0 and content[space + 1 : space + 4] == b"\0B\4":
                key, at, found = content[at:space], *_binary(content, space + 1)
            else:
                end = content.find(b"\n", at)
                line, at = (content[at:end], end + 1) if end >= 0 else (content[at:], len(content))
                key, *numbers = line.split() or [b""]
                found = _checked(np.array([int(number) for number in numbers], dtype=np.int64))
            if key:
                yield key.decode(), found
        except (ValueError, OverflowError) as error:
            raise KaldiIoError(
                f"{table}: no archive of integer vectors up to byte {at} ({reason(error)}): write "
                "it again"
            ) from error


def _binary(content: bytes, start: int) -> tuple[int, np.ndarray]:
    """Read a vector from `start` on; return where it ends, and its integers."""
    first = start + INTEGERS_START
    length = int.from_bytes(content[start + 3 : first], "little", signed=True)
    end = first + length * INTEGER.itemsize
    if length < 0 or end > len(content):
        raise ValueError("a vector goes on behind the end of the file")
    return end, decode_integers(content[first:end])


def _checked(numbers: np.ndarray) -> np.ndarray:
    """Turn int64 [T] to int32."""
    limits = np.iinfo(np.int32)
    if len(numbers) and (numbers.min() < limits.min or numbers.max() > limits.max):
        raise ValueError("a number does not fit into four bytes")
    return numbers.astype(np.int32)
