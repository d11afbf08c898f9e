"""Objects of Kaldi's text archives: matrices in brackets, and integers on a line.

`copy-feats ark:x.ark ark,t:-` writes `key  [`, a line per row, and `]` behind the last; alignments
are `key 1 2 3`.
"""

import re
from typing import IO

import numpy as np

MATRIX, INTEGERS = "text", "text int32"
"""Kinds of text objects."""
_CHUNK = 1 << 16
_RANGE = re.compile(r"(?:(\d+):(\d+)|:?)")


def scan(file: IO[bytes]) -> tuple[str, bytes]:
    """Read the object at a file's position, and leave the position behind it.

    Returns:
      Its kind, and what stands between its brackets or on its line.

    Raises:
      ValueError: a bracket is not closed.
    """
    start = file.tell()
    found = bytearray()
    while chunk := file.read(_CHUNK):
        found += chunk
        opened = found.lstrip(b" \t").startswith(b"[")
        end = found.find(b"]" if opened else b"\n")
        if end >= 0:
            break
    else:
        opened, end = found.lstrip(b" \t").startswith(b"["), len(found)
        if opened:
            raise ValueError("a [ without its ]")
    body = bytes(found[:end])
    after = end + 1
    if opened:
        body = body.lstrip(b" \t")[1:]
        file.seek(start + after)
        rest = file.readline(_CHUNK)
        if rest.strip():
            raise ValueError(f"text after ]: {rest[:20]!r}")
        return MATRIX, body
    file.seek(start + min(after, len(found)))
    return INTEGERS, body


def shape_of(kind: str, body: bytes) -> tuple[int, ...]:
    """Return the size of an object without reading its numbers."""
    if kind == INTEGERS:
        return (len(body.split()),)
    rows = _rows(body)
    return len(rows), len(rows[0].split()) if rows else 0


def parse_matrix(body: bytes, part: str = "") -> np.ndarray:
    """Parse a matrix, float32 [rows, columns], and take a part of it.

    Args:
      body: what stands between the brackets.
      part: rows and columns with both ends, such as `[0:9,0:12]`; empty for all.

    Raises:
      ValueError: a number cannot be read, rows are of different lengths, or lack the part.
    """
    rows = [row.split() for row in _rows(body)]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of different lengths")
    matrix = np.array([[float(value) for value in row] for row in rows], np.float32)
    matrix = matrix.reshape(len(rows), len(rows[0]) if rows else 0)
    sides = part.strip("[]").split(",") if part else []
    taken = []
    for text, size in zip(sides, matrix.shape, strict=False):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"no range: {part}")
        first, last = (0, size - 1) if match[1] is None else (int(match[1]), int(match[2]))
        if not first <= last < size and match[1] is not None:
            raise ValueError(f"{part} goes beyond {' x '.join(map(str, matrix.shape))}")
        taken.append(slice(first, last + 1))
    return matrix[tuple(taken)]


def parse_integers(body: bytes) -> np.ndarray:
    """Parse a line of integers, int32 [T].

    Raises:
      ValueError: something else is there, or a number does not fit.
    """
    numbers = np.array([int(field) for field in body.split()], np.int64)
    if (numbers != numbers.astype(np.int32)).any():
        raise ValueError("a number does not fit into four bytes")
    return numbers.astype(np.int32)


def _rows(body: bytes) -> list[bytes]:
    return [row for row in re.split(rb"[\n;]", body) if row.strip()]
