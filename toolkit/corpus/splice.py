"""Reads pieces of a file, and bytes that replace others, as if they were one file."""

import io
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, BinaryIO

Piece = bytes | tuple[int, int]
"""Bytes, or the first byte and the end of a part of the file."""
_BUFFER = 1 << 16  # bytes


def splice(content: BinaryIO, pieces: Sequence[Piece]) -> BinaryIO:
    """Return a file that consists of pieces of another, and can seek.

    Args:
      content: the other file; it must stay open.
      pieces: in their order.
    """
    # libsndfile's MP3 decoder reads a header of 4 bytes at a time.
    return io.BufferedReader(_SplicedFile(content, pieces), _BUFFER)


class _SplicedFile(io.RawIOBase):
    def __init__(self, content: BinaryIO, pieces: Sequence[Piece]) -> None:
        self._content = content
        self._pieces = pieces
        sizes = (len(p) if isinstance(p, bytes) else p[1] - p[0] for p in pieces)
        self._ends = list(accumulate(sizes))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is left of the piece at the position, or less; 0 at the end."""
        index = bisect_right(self._ends, self._position)
        if index == len(self._ends):
            return 0
        first = self._position - (self._ends[index - 1] if index else 0)
        size = min(len(buffer), self._ends[index] - self._position)
        piece = self._pieces[index]
        if isinstance(piece, bytes):
            part = piece[first : first + size]
        else:
            self._content.seek(piece[0] + first)
            part = self._content.read(size)
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._ends[-1]}[whence]
        if base + offset < 0:
            raise ValueError(f"a negative position: {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position
