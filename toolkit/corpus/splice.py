"""Reads pieces of a file, and bytes that replace others, as if they were one file."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import BinaryIO

Piece = bytes | tuple[int, int]
"""Bytes, or the first byte and the end of a part of the file."""


class SplicedFile:
    """A file that can seek and consists of pieces of another.

    Args:
      content: the other file.
      pieces: in their order.
    """

    def __init__(self, content: BinaryIO, pieces: Sequence[Piece]) -> None:
        self._content = content
        self._pieces = pieces
        sizes = (len(p) if isinstance(p, bytes) else p[1] - p[0] for p in pieces)
        self._ends = list(accumulate(sizes))
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; to the end where it is negative."""
        total = self._ends[-1]
        end = total if size < 0 else min(total, self._position + size)
        parts = []
        while self._position < end:
            index = bisect_right(self._ends, self._position)
            begin = self._ends[index - 1] if index else 0
            first, last = self._position - begin, min(end, self._ends[index]) - begin
            piece = self._pieces[index]
            if isinstance(piece, bytes):
                part = piece[first:last]
            else:
                self._content.seek(piece[0] + first)
                part = self._content.read(last - first)
            if not part:  # the file has become shorter
                break
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._ends[-1]}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position
