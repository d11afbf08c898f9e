"""Safely read files that may be damaged or foreign; errors name the file and the reason.

Readers check parsed data with `validated`, inside a `with reading(...)` block, which adds the name
of the file to errors.

No content can run code, and no memory is allocated for a size that a file only claims to have.
Therefore arrays in NumPy's format are not read by `numpy.load`, which unpickles objects, and
allocates an array as large as its header claims. Here the header must match the bytes after it.
"""

import errno
import io
import json
import lzma
import math
import os
import re
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import numpy as np


NATURAL = "a whole number of at least 0"
"""A schema for `validated`: an integer from 0 to 2^63 - 1."""
SHELLS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Paths of files that the shell opens for a command: `<(zcat a.gz)`, `< file`."""
FLOATS = ("F16", "BF16", "F32", "F64")
"""The floating-point types that the safetensors format stores."""
LONGEST_REASON, LONGEST_QUOTE = 200, 80  # characters
DAMAGE_ERRORS = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(AssertionError, RuntimeError),  # lhotse's, torch's, RecursionError
    *(SafetensorError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    struct.error,
)
"""Exceptions that parsers and arithmetic raise on damaged content. Not MemoryError: readers compare
a size with that of the file before they allocate memory."""


@contextmanager
def reading(
    path: Path | str, error: type[ToolkitError], advice: str, problem: str = "cannot be read"
) -> Iterator[None]:
    """Turn exceptions that damaged content causes into `<path>: <problem> (<reason>); <advice>`.

    A `ToolkitError`, whose message is written for the user already, passes unchanged.

    Args:
      path: path of the file or folder, as the message names it. A pipe or a device is refused, see
        `regular`.
      error: the class to raise, usually that of the package.
      advice: what the user can do about it.
      problem: what is wrong with the file, for the message.
    """
    try:
        regular(path)
        yield
    except DAMAGE_ERRORS as cause:
        raise error(f"{path}: {problem} ({reason(cause)}); {advice}") from cause


def regular(path: Path | str) -> Path:
    """Return `path`; refuse a pipe, a socket or a device, whose reading might never end.

    Missing files, folders, and files opened by the shell (`SHELLS`) pass: the reader handles them.

    Raises:
      OSError: it is a pipe, a socket or a device.
    """
    path = Path(path)
    if str(path).startswith(SHELLS):
        return path
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def reason(error: Exception) -> str:
    """Describe an exception in a few words, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError) and error.args:
        return f"it has no {str(error.args[0])[:LONGEST_REASON]!r}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def quoted(text: str) -> str:
    """Return text in quotation marks for a message; of long text, the beginning."""
    return repr(text) if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]!r}..."


def read_json(path: Path, schema: Any = Any) -> Any:
    """Read a JSON file and check it against a schema, see `validated`.

    Raises:
      OSError, ValueError, RecursionError: to be caught by `reading`.
    """
    return validated(json.loads(regular(path).read_bytes()), schema)


def validated(value: Any, schema: Any, name: str = "the content") -> Any:
    """Return plain data unchanged if it fits a schema.

    Args:
      value: plain data, as from JSON or YAML.
      schema: one of
        - a type: `float` also accepts integers, but not inf or NaN; `int` does not accept booleans;
          `str` accepts only text that can be encoded in UTF-8;
        - `NATURAL`;
        - `[schema]`, a list of values that fit it;
        - `{"key": schema, ...}`, a mapping that has at least these keys;
        - `{str: schema}`, a mapping with any keys;
        - `Any`.
      name: what the message calls the value.

    Raises:
      ValueError: it does not fit.
    """
    if isinstance(schema, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {_describe(value)}, not a mapping")
        for key in value if str in schema else schema:
            if key not in value:
                raise ValueError(f"{name} has no {key!r}")
            # `{str: schema}` has one schema for all keys of the value.
            inner = schema[str if str in schema else key]
            validated(value[key], inner, repr(key)[:LONGEST_REASON])
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ValueError(f"{name} is {_describe(value)}, not a list")
        for item in value:
            validated(item, schema[0], f"an item of {name}")
    elif not _fits(value, schema):
        expected = getattr(schema, "__name__", schema)
        raise ValueError(f"{name} is {_describe(value)}, not {expected}")
    return value


def _fits(value: Any, schema: Any) -> bool:
    """Return whether a value fits a schema that is not a list or a mapping, see `validated`."""
    if schema is Any:
        return True
    # Python's booleans are integers; here they are not.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if schema is float:
        return number and abs(value) <= sys.float_info.max  # false for NaN
    if schema is NATURAL:
        return number and isinstance(value, int) and 0 <= value < 1 << 63
    if schema is str:
        return isinstance(value, str) and (value.isascii() or _is_utf8(value))
    return isinstance(value, schema) and (number or schema is not int)


def _is_utf8(text: str) -> bool:
    """Return whether text has no lone surrogate, which JSON can express but UTF-8 cannot encode."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _describe(value: Any) -> str:
    """Name a value in a message, without writing out a long one."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int) and abs(value) > sys.maxsize:
        return "a huge number"
    is_short = value is None or isinstance(value, int | float)
    return repr(value) if is_short else f"a {type(value).__name__}"


def read_tensors(
    path: Path,
    shapes: Mapping[str, tuple[str, int]],
    framework: str = "pt",
    optional: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read all tensors and the metadata of a safetensors file.

    Floating-point tensors must be finite: one infinity or NaN in a weight or score makes an empty
    lattice, or wrong words without an error. No writer of the toolkit stores infinities.

    Args:
      path: the file.
      shapes: the tensors that must be there, by name: the dtype as the format calls it ("F32",
        "I64"), and the number of dimensions. The entry "*" holds for all other tensors; without it
        they may be anything.
      framework: "pt" for tensors of torch, "np" for arrays of numpy.
      optional: the same for tensors that may be missing.

    Returns:
      All tensors by name, and the metadata.

    Raises:
      OSError, ValueError, SafetensorError, ...: to be caught by `reading`.
    """
    with safe_open(regular(path), framework=framework) as file:
        # 1. Check names and shapes, which are in the header, before any tensor is read.
        names = set(file.keys())
        for name in sorted({*shapes, *names} - {"*"}):
            if name not in names:
                raise ValueError(f"no tensor {name!r}")
            check_tensor(file, name, {**shapes, **optional}.get(name, shapes.get("*")))
        # 2. Read the tensors, and check their values.
        tensors = {name: file.get_tensor(name) for name in sorted(names)}
        for name, tensor in tensors.items():
            if file.get_slice(name).get_dtype() in FLOATS and not _is_finite(tensor):
                raise ValueError(f"the tensor {name!r} has values that are infinite or NaN")
        return tensors, file.metadata() or {}


def _is_finite(tensor: Any) -> bool:
    """Return whether all values of a tensor of numpy or torch are finite.

    Minimum and maximum suffice, as both are NaN if any value is. For 100 MB of float32 this takes
    16 ms; `torch.isfinite`, which allocates masks, takes 200 ms.
    """
    return 0 in tensor.shape or all(map(math.isfinite, (tensor.min(), tensor.max())))


def check_tensor(file: Any, name: str, shape: tuple[str, int] | None) -> None:
    """Check dtype and number of dimensions of a tensor in an open safetensors file.

    Raises:
      ValueError: they differ.
    """
    if shape is None:
        return
    tensor = file.get_slice(name)
    kind, dimensions = tensor.get_dtype(), len(tensor.get_shape())
    if (kind, dimensions) != shape:
        raise ValueError(
            f"the tensor {name!r} has the type {kind} and {dimensions} dimensions, but must have "
            f"{shape[0]} and {shape[1]}"
        )


LARGEST_ARRAY = 1 << 28
"""Maximum size of an array in an archive, in bytes after decompression."""
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|>][fiub][1248])', 'fortran_order': False, "
    rb"'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)


LONGEST_NPY_HEADER = 256
"""Maximum size of the header of an array, in bytes; a matrix's header takes 128."""


def parse_array(content: bytes | bytearray) -> "np.ndarray":
    """Return the array of numbers in the bytes of a `.npy` file, without a copy; C order only.

    Raises:
      ValueError: the content is no such array, or its size differs from that in the header.
    """
    import numpy as np

    kind, shape, begin = _parse_npy_header(content, len(content))
    return np.frombuffer(content, kind, offset=begin).reshape(shape)


def parse_shape(header: bytes, size: int) -> tuple[int, ...]:
    """Return the shape of an array from the first bytes of its `.npy` file of `size` bytes.

    Raises:
      ValueError: see `parse_array`.
    """
    return _parse_npy_header(header, size)[1]


def _parse_npy_header(
    content: bytes | bytearray, size: int
) -> tuple["np.dtype", tuple[int, ...], int]:
    """Return the type and shape of an array, and where its values begin."""
    import numpy as np

    header = _NPY_HEADER.match(content)
    if header is None:
        raise ValueError("not an array of numbers in NumPy's format")
    kind = np.dtype(header[1].decode())
    shape = tuple(int(length) for length in header[2].split(b",") if length.strip())
    if math.prod(shape) * kind.itemsize != size - header.end():
        raise ValueError(f"an array of shape {shape} cannot have {size - header.end()} bytes")
    return kind, shape, header.end()


def read_archive(path: Path) -> dict[str, "np.ndarray"]:
    """Return the arrays of numbers or text of a `.npz` file, by name.

    Raises:
      OSError, ValueError, BadZipFile, zlib.error, ...: to be caught by `reading`.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            # One byte more than allowed: a longer array then does not match its header.
            with archive.open(info) as file:
                content = file.read(LARGEST_ARRAY + 1)
            arrays[info.filename.removesuffix(".npy")] = _parse_any_array(content)
    return arrays


def _parse_any_array(content: bytes) -> "np.ndarray":
    """Return the array of numbers or texts in the bytes of a `.npy` file."""
    import numpy as np

    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of a newer version of NumPy's format")
    shape, fortran_order, kind = np.lib.format.read_array_header_1_0(stream)
    size = math.prod(shape) * kind.itemsize
    if kind.kind not in "fiubU" or fortran_order or size != len(content) - stream.tell():
        raise ValueError(f"its header ({kind}, {shape}) is not supported, or does not fit its size")
    return np.frombuffer(content, kind, offset=stream.tell()).reshape(shape)
