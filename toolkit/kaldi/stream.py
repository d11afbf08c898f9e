"""Kaldi's streams of tokens and numbers, in their binary and their text form."""

import struct

import numpy as np

_BINARY = b"\0B"
_SIZES = {4: "<i4", -4: "<u4", 8: "<i8", -8: "<u8"}
_FLOATS = {"FV": "<f4", "DV": "<f8"}


class Stream:
    """What a file of Kaldi's holds, read from the beginning on.

    Args:
      content: of the whole file; binary if it begins with Kaldi's mark of that.

    Raises:
      ValueError, IndexError, struct.error: of every method, where something else stands there.
    """

    def __init__(self, content: bytes) -> None:
        self.binary = content.startswith(_BINARY)
        self._content = content
        self._at = len(_BINARY) if self.binary else 0

    def token(self) -> str:
        """The next word."""
        if self.binary:
            end = self._content.index(b" ", self._at)
            found = self._content[self._at : end]
            self._at = end + 1
            return found.decode()
        begin = self._skip()
        while self._content[self._at : self._at + 1].strip():
            self._at += 1
        if begin == self._at:
            raise ValueError("it ends too early")
        return self._content[begin : self._at].decode()

    def expect(self, *words: str) -> str:
        """Read one of some words."""
        found = self.token()
        if found not in words:
            raise ValueError(f"{found[:20]!r} in the place of {' or '.join(words)}")
        return found

    def integer(self) -> int:
        """A number in four bytes."""
        if not self.binary:
            return int(self.token())
        size, value = struct.unpack_from("<bi", self._content, self._at)
        if size not in (4, -4):
            raise ValueError("a number that is not of four bytes")
        self._at += 5
        return value

    def number(self) -> float:
        """A floating point number."""
        if not self.binary:
            return float(self.token())
        size = self._content[self._at]
        (value,) = struct.unpack_from({4: "<f", 8: "<d"}[size], self._content, self._at + 1)
        self._at += 1 + size
        return value

    def integers(self) -> list[int]:
        """A vector of integers."""
        if not self.binary:
            self.expect("[")
            return list(map(int, iter(self.token, "]")))
        size, count = struct.unpack_from("<bi", self._content, self._at)
        self._at += 5
        return self._array(count, _SIZES[size]).tolist()

    def numbers(self) -> np.ndarray:
        """A vector of floating point numbers."""
        if not self.binary:
            self.expect("[")
            return np.array(list(map(float, iter(self.token, "]"))))
        kind = _FLOATS[self.token()]
        return self._array(self.integer(), kind)

    def _array(self, count: int, kind: str) -> np.ndarray:
        end = self._at + count * np.dtype(kind).itemsize
        if count < 0 or end > len(self._content):
            raise ValueError(f"a vector of {count} numbers, more than the file has")
        content, self._at = self._content[self._at : end], end
        return np.frombuffer(content, kind)

    def _skip(self) -> int:
        """Go to what is no white space."""
        content = self._content
        while content[self._at : self._at + 1].isspace():
            self._at += 1
        return self._at
