"""Files that others wrote or damaged: read as what they should be, or an error that says why not.

Readers check what they take with `checked`, and read within `reading`, which names the file for
them. Nothing here can run code, and nothing is made as large as a file merely says it is.
"""

import json
import lzma
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from toolkit.errors import ToolkitError

NATURAL = "a whole number from 0 on"
"""A form for `checked`; below 2^63."""
LONGEST_REASON, LONGEST_QUOTE = 200, 80  # characters
DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(AssertionError, RuntimeError),  # lhotse's, torch's, RecursionError
    *(SafetensorError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    struct.error,
)
"""What parsers and arithmetic raise over content that is not what it should be. Not MemoryError,
which must not happen: a size is compared with what the file has before anything is made of it."""


@contextmanager
def reading(
    path: Path | str, error: type[ToolkitError], advice: str, what: str = "cannot be read"
) -> Iterator[None]:
    """Turn what damaged content makes a reader raise into `<path>: <what> (<why>); <advice>`.

    Errors that are the user's already pass as they are.

    Args:
      path: of the file or folder, as the message names it.
      error: the class of the room's errors.
      advice: what to do about it.
      what: says more than that it cannot be read.
    """
    try:
        yield
    except DAMAGE as cause:
        raise error(f"{path}: {what} ({reason(cause)}); {advice}") from cause


def reason(error: Exception) -> str:
    """Say in a few words, on one line, what an exception means."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError) and error.args:
        return f"it has no {str(error.args[0])[:LONGEST_REASON]!r}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def shown(text: str) -> str:
    """Quote text in a message, its beginning if it is long."""
    return repr(text) if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]!r}..."


def read_json(path: Path, form: Any = Any) -> Any:
    """Read a file of JSON and check its form, see `checked`.

    Raises:
      OSError, ValueError, RecursionError: to be explained by `reading`.
    """
    return checked(json.loads(Path(path).read_bytes()), form)


def checked(value: Any, form: Any, place: str = "the content") -> Any:
    """Give plain data back if it has a form.

    Args:
      value: of JSON, YAML or the like.
      form: a type; `float` takes whole numbers too but none that is not finite, `int` no booleans,
        `str` no text that cannot be written as UTF-8;
        `NATURAL`; `[form]`, a list of such; `{"key": form}`, a mapping that has at least these
        keys; `{str: form}`, a mapping with any; `Any`.
      place: what the message calls the value.

    Raises:
      ValueError: it has not.
    """
    if isinstance(form, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{place} is {_kind(value)}, not a mapping")
        for key in value if str in form else form:
            if key not in value:
                raise ValueError(f"{place} has no {key!r}")
            checked(value[key], form[str if str in form else key], repr(key)[:LONGEST_REASON])
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise ValueError(f"{place} is {_kind(value)}, not a list")
        for item in value:
            checked(item, form[0], f"an item of {place}")
    elif not _fits(value, form):
        wanted = getattr(form, "__name__", form)
        raise ValueError(f"{place} is {_kind(value)}, not {wanted}")
    return value


def _fits(value: Any, form: Any) -> bool:
    if form is Any:
        return True
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if form is float:
        return number and abs(value) <= sys.float_info.max  # which no NaN is
    if form is NATURAL:
        return number and isinstance(value, int) and 0 <= value < 1 << 63
    if form is str:
        return isinstance(value, str) and (value.isascii() or _can_be_written(value))
    return isinstance(value, form) and (number or form is not int)


def _can_be_written(text: str) -> bool:
    """Whether text has no half of a surrogate pair, which JSON can name but UTF-8 cannot hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _kind(value: Any) -> str:
    """Name a value without writing out one that is long."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int) and abs(value) > sys.maxsize:
        return "a huge number"
    plain = value is None or isinstance(value, int | float)
    return repr(value) if plain else f"a {type(value).__name__}"


def read_tensors(
    path: Path, shapes: Mapping[str, tuple[str, int]], framework: str = "pt"
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file whole.

    Args:
      path: the file.
      shapes: type as the format calls it ("F32", "I64") and number of dimensions of tensors that
        must be there; under the name "*", of all others, which else may be anything.
      framework: "pt" or "np".

    Returns:
      All tensors by name, and the metadata.

    Raises:
      OSError, ValueError, SafetensorError, ...: to be explained by `reading`.
    """
    with safe_open(path, framework=framework) as file:
        names = set(file.keys())
        for name in sorted({*shapes, *names} - {"*"}):
            if name not in names:
                raise ValueError(f"no tensor {name!r}")
            check_tensor(file, name, shapes.get(name, shapes.get("*")))
        return {name: file.get_tensor(name) for name in sorted(names)}, file.metadata() or {}


def check_tensor(file: Any, name: str, shape: tuple[str, int] | None) -> None:
    """Check type and number of dimensions of a tensor in an open safetensors file.

    Raises:
      ValueError: it has others.
    """
    if shape is None:
        return
    found = file.get_slice(name)
    kind, dimensions = found.get_dtype(), len(found.get_shape())
    if (kind, dimensions) != shape:
        raise ValueError(
            f"the tensor {name!r} is {kind} of {dimensions} dimensions, "
            f"not {shape[0]} of {shape[1]}"
        )
