"""Arrays in NumPy's own format, read from files that are not trusted.

`numpy.load` allocates an array as large as its header claims before it reads, and supports formats
that run code (pickles); here the header must match the bytes that follow it.
"""

import io
import math
import re
import zipfile
from pathlib import Path

import numpy as np

LARGEST = 1 << 28
"""Maximum size of an array in an archive, in bytes after decompression."""
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|>][fiub][1248])', 'fortran_order': False, "
    rb"'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)


def parse_array(content: bytes | bytearray) -> np.ndarray:
    """Return the array of numbers in the bytes of a `.npy` file in C order; shares their memory.

    Raises:
      ValueError: the content is no such array, or its size differs from that in the header.
    """
    header = _HEADER.match(content)
    if header is None:
        raise ValueError("no array of numbers in NumPy's format")
    kind = np.dtype(header[1].decode())
    shape = tuple(int(length) for length in header[2].split(b",") if length.strip())
    if math.prod(shape) * kind.itemsize != len(content) - header.end():
        raise ValueError(f"an array of shape {shape} with {len(content) - header.end()} bytes")
    return np.frombuffer(content, kind, offset=header.end()).reshape(shape)


def read_archive(path: Path) -> dict[str, np.ndarray]:
    """Read a `.npz` file of arrays of numbers or text, by name.

    Raises:
      OSError, ValueError, BadZipFile, zlib.error, ...: to be caught by `reading`.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                content = file.read(LARGEST + 1)
            arrays[info.filename.removesuffix(".npy")] = _array(content)
    return arrays


def _array(content: bytes) -> np.ndarray:
    """Like `parse_array`, but for arrays of text too."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of a newer version of NumPy's format")
    shape, fortran_order, kind = np.lib.format.read_array_header_1_0(stream)
    size = math.prod(shape) * kind.itemsize
    if kind.kind not in "fiubU" or fortran_order or size != len(content) - stream.tell():
        raise ValueError(f"no array of {kind} and shape {shape}, as its header says")
    return np.frombuffer(content, kind, offset=stream.tell()).reshape(shape)
