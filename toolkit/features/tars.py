"""Tar files of arrays, the same as Python's `tarfile` writes, in a tenth of its time.

Utterances are short: making headers took `tarfile` and `numpy.save` a fifth of the time that the
front end takes for their features. Here headers are filled into templates.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import IO

import numpy as np

BLOCK = tarfile.BLOCKSIZE
LONGEST_NAME = 100
NAME, SIZE, CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
BUFFER_BYTES = 1 << 20
_END = bytes(BLOCK)
_RECORD = re.compile(rb"(\d{1,9}) ([^=]*)=")
_TEMPLATE = tarfile.TarInfo("").tobuf(tarfile.PAX_FORMAT)
_FIXED_SUM = sum(_TEMPLATE) - sum(_TEMPLATE[SIZE]) - sum(_TEMPLATE[CHECKSUM]) + 8 * ord(" ")


class TarWriter:
    """Writes members one after the other; time, owner and group are zero.

    Args:
      file: opened for writing bytes; stays open.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0
        self._buffer: list[bytes] = []
        self._buffer_size = 0

    def add_array(self, id: str, array: np.ndarray, manifest: Mapping) -> None:
        """Add an utterance's array, `<id>.npy`, and its lhotse manifest, `<id>.json`."""
        text = json.dumps(manifest).encode()
        shape = npy_header(array.dtype.str, array.shape)
        size = len(shape) + array.nbytes
        parts = (
            member_header(f"{id}.npy", size), shape, array.tobytes(), bytes(-size % BLOCK),
            member_header(f"{id}.json", len(text)), text, bytes(-len(text) % BLOCK),
        )  # fmt: skip
        for part in parts:
            self.write(part)

    def write(self, members: bytes) -> None:
        """Add bytes that are, together, whole members with their headers and padding."""
        self._buffer.append(members)
        self._buffer_size += len(members)
        if self._buffer_size > BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the buffer and the end of the archive."""
        end = 2 * BLOCK
        size = self._size + self._buffer_size + end
        self.write(bytes(end + -size % tarfile.RECORDSIZE))
        self._flush()

    def _flush(self) -> None:
        self._file.write(b"".join(self._buffer))
        self._size += self._buffer_size
        self._buffer, self._buffer_size = [], 0


def read_members(file: IO[bytes]) -> Iterator[tuple[str, int, int, int]]:
    """Find the members of a tar: name, start (its headers included), first byte of content, size.

    Raises:
      tarfile.TarError: the file is cut short, or not a tar file.
    """
    total = file.seek(0, 2)
    position = start = 0
    long_name = None
    while True:
        file.seek(position)
        header = file.read(BLOCK)
        if len(header) < BLOCK:
            raise tarfile.ReadError("unexpected end of a tar")
        if header == _END:
            return
        try:
            size = int(header[SIZE].rstrip(b" \0"), 8)
            name = header[NAME].split(b"\0", 1)[0].decode() if long_name is None else long_name
        except ValueError:
            raise tarfile.ReadError("not a tar file, or one with too large members") from None
        content = position + BLOCK
        if size < 0 or content + size > total:
            raise tarfile.ReadError(f"a member of {size} bytes goes beyond the end of the file")
        position = content + size + -size % BLOCK
        if header[156:157] == tarfile.XHDTYPE:
            long_name = _pax_path(file.read(size))
            continue
        yield name, start, content, size
        start, long_name = position, None


def _pax_path(records: bytes) -> str:
    """Find the name in a pax header: records of `<length> <key>=<value>` and a newline."""
    while records:
        match = _RECORD.match(records)
        length = int(match[1]) if match else 0
        if not match or not len(match[0]) < length <= len(records):
            break
        if match[2] == b"path":
            try:
                return records[len(match[0]) : length - 1].decode()
            except ValueError:
                break
        records = records[length:]
    raise tarfile.ReadError("a pax header without a name")


def member_header(name: str, size: int) -> bytes:
    """Return the header of a regular file, as `tarfile` makes it."""
    encoded = name.encode("ascii", "ignore")
    if len(encoded) != len(name) or len(name) > LONGEST_NAME or size >= 8**11:
        member = tarfile.TarInfo(name)
        member.size = size
        return member.tobuf(tarfile.PAX_FORMAT)
    header = bytearray(_TEMPLATE)
    header[: len(encoded)] = encoded
    header[SIZE] = b"%011o\0" % size
    total = _FIXED_SUM + sum(encoded) + sum(header[SIZE])
    header[CHECKSUM] = b"%06o\0 " % total
    return bytes(header)


@lru_cache(maxsize=4096)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of a `.npy` file of an array in C order."""
    stream = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()
