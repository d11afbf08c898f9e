"""Reads and writes Kaldi tables: scp files, and archives of matrices and integer vectors.

Text archives are read here. Binary matrices are read by kaldi_native_io, but only after a check of
their location and header. So a command (`cmd |`) is run only if it is allowed, and a damaged header
cannot make the reader allocate memory.
"""

import gzip
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.storage.paths import PathMap, map_path, suggestion
from toolkit.storage.reading import quoted, reason, regular

MATRIX, INTEGERS = "text", "text int32"
"""Kinds of text objects."""
_CHUNK = 1 << 16
_RANGE = re.compile(r"(?:(\d+):(\d+)|:?)")


def scan(file: IO[bytes]) -> tuple[str, bytes]:
    """Read the text object at a file's position, and move the position after it.

    Returns:
      Its kind, and the bytes between its brackets or on its line.

    Raises:
      ValueError: a bracket is not closed, or text follows it.
    """
    # A matrix ends with its bracket, a vector of integers with its line.
    start = file.tell()
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        has_bracket = content.lstrip(b" \t").startswith(b"[")
        end = content.find(b"]" if has_bracket else b"\n")
        if end >= 0:
            break
    else:
        has_bracket, end = content.lstrip(b" \t").startswith(b"["), len(content)
        if has_bracket:
            raise ValueError("a [ without its ]")
    body = bytes(content[:end])
    next_offset = end + 1
    if has_bracket:
        body = body.lstrip(b" \t")[1:]
        # Nothing may follow `]` on its line.
        file.seek(start + next_offset)
        line_end = file.readline(_CHUNK)
        if line_end.strip():
            raise ValueError(f"text after ]: {line_end[:20]!r}")
        return MATRIX, body
    file.seek(start + min(next_offset, len(content)))
    return INTEGERS, body


def shape_of(kind: str, body: bytes) -> tuple[int, ...]:
    """Return the shape of a text object without parsing its numbers."""
    if kind == INTEGERS:
        return (len(body.split()),)
    rows = _rows(body)
    return len(rows), len(rows[0].split()) if rows else 0


def parse_matrix(body: bytes, part: str = "") -> np.ndarray:
    """Parse a text matrix to float32 [rows, columns], and select a range of it.

    Args:
      body: the bytes between the brackets.
      part: first and last row and column, such as `[0:9,0:12]`; empty: all.

    Raises:
      ValueError: a number cannot be read, rows have different lengths, or the part is not a range
        of the matrix.
    """
    rows = [row.split() for row in _rows(body)]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of different lengths")
    matrix = np.array([[float(value) for value in row] for row in rows], np.float32)
    matrix = matrix.reshape(len(rows), len(rows[0]) if rows else 0)
    ranges = part.strip("[]").split(",") if part else []
    slices = []
    for text, size in zip(ranges, matrix.shape, strict=False):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"{part} is not a range")
        first, last = (0, size - 1) if match[1] is None else (int(match[1]), int(match[2]))
        if not first <= last < size and match[1] is not None:
            shape = " x ".join(map(str, matrix.shape))
            raise ValueError(f"the range {part} goes beyond the matrix of {shape}")
        slices.append(slice(first, last + 1))
    return matrix[tuple(slices)]


def parse_integers(body: bytes) -> np.ndarray:
    """Parse a line of integers to int32 [T].

    Raises:
      ValueError: a field is not an integer, or a number does not fit into four bytes.
    """
    numbers = np.array([int(field) for field in body.split()], np.int64)
    # A value outside int32 changes when it is converted.
    if (numbers != numbers.astype(np.int32)).any():
        raise ValueError("a number does not fit into four bytes")
    return numbers.astype(np.int32)


def _rows(body: bytes) -> list[bytes]:
    """Split a text matrix into rows, which end at a line break or semicolon."""
    return [row for row in re.split(rb"[\n;]", body) if row.strip()]


RANGE = re.compile(r"(\[[\d:,]*\])?")
"""Range of rows and columns of a matrix; empty: all."""
_RXFILENAME = re.compile(r"(?P<path>.+?)(?::(?P<offset>\d+))?(?P<range>\[[\d:,]*\])?")
_VALUE_BYTES = {b"FM ": 4, b"DM ": 8, b"CM ": 1, b"CM2 ": 2, b"CM3 ": 1}
INTEGER = np.dtype([("size", "i1"), ("value", "<i4")])
"""An element of a vector: a byte with the size of the value, which is 4, and the value."""
INTEGERS_START = 2 + INTEGER.itemsize
"""Bytes before the first element: the binary marker, and the number of elements as an `INTEGER`."""
GZIP = b"\x1f\x8b"
"""The first bytes of a gzipped file."""
_LONGEST_KEY = 4096
_LONGEST_OFFSET = 18  # digits: below 2**63
_ADVICE = "write the table again, or remove the entry from the scp file"


class ArchiveError(ToolkitError):
    """Raised for a Kaldi table that cannot or must not be read."""


def kaldi_native_io() -> ModuleType:
    """Import the optional package kaldi_native_io."""
    try:
        import kaldi_native_io
    except ImportError as error:
        raise ArchiveError(
            f"the package kaldi_native_io cannot be imported ({error}). Run `pip install "
            "kaldi_native_io`"
        ) from error
    return kaldi_native_io


@dataclass(frozen=True)
class Entry:
    """The location of one object in a table."""

    key: str
    path: Path | None
    """The file; None: a command writes the object."""
    offset: int = 0
    """Offset of the object in the file, in bytes."""
    range: str = ""
    """Range of rows and columns, such as `[0:9]`; empty: all."""
    command: str = ""
    """The shell command that writes the object, `cmd |`; empty: the object is in a file."""


def entries(table: Path, allow_pipes: bool = False, path_map: PathMap = ()) -> dict[str, Entry]:
    """Return the locations of a table's objects by key.

    Args:
      table: a `.scp` file, or an archive, binary or text. A relative path in an scp file is looked
        up in the working directory, then in the folder of the file and in those above it.
      allow_pipes: allow the commands of an scp file, which run when its entries are read. They are
        the user's own and can do anything.
      path_map: mappings of the paths in an scp file, see `toolkit.storage.paths`.

    Raises:
      ArchiveError: the table cannot be read, a key occurs twice, or a command is not allowed; the
        message names file and line.
    """
    table = Path(table)
    entry_of_key: dict[str, Entry] = {}
    table_entries = _scp(table, allow_pipes, path_map) if table.suffix == ".scp" else _ark(table)
    for entry in table_entries:
        if entry.key in entry_of_key:
            raise ArchiveError(
                f"{table}: the key {quoted(entry.key)} occurs twice: remove one of the entries"
            )
        entry_of_key[entry.key] = entry
    if not entry_of_key:
        raise ArchiveError(f"{table}: has no entries")
    return entry_of_key


def _scp(table: Path, allow_pipes: bool, path_map: PathMap) -> Iterator[Entry]:
    """Yield the entries of an scp file."""
    with opened(table) as file:
        lines = file.read().split(b"\n")
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise ArchiveError(f"{table}:{number}: byte {error.start + 1} is not UTF-8") from error
        if line:
            key, *remainder = line.split(maxsplit=1)
            source = remainder[0] if remainder else ""
            yield scp_entry(key, source, table.parent, f"{table}:{number}", allow_pipes, path_map)


def scp_entry(
    key: str,
    source: str,
    folder: Path,
    where: str,
    allow_pipes: bool = False,
    path_map: PathMap = (),
) -> Entry:
    """Return the location of the object that a line of an scp file names.

    Args:
      key: first word of the line.
      source: the rest of the line, such as `feats.ark:12`.
      folder: folder of the scp file.
      where: file and line, for messages.
      allow_pipes, path_map: see `entries`.

    Raises:
      ArchiveError: the file does not exist, or the line names a command that is not allowed.
    """
    if not source:
        raise ArchiveError(f"{where}: expected `key file:offset`, found {quoted(key)}")
    if source.endswith("|"):
        if not allow_pipes:
            raise ArchiveError(
                f"{where}: {key} is the output of a command ({quoted(source)}), which is not run. "
                "Copy the table to an archive, for example with copy-feats, or let `toolkit kaldi` "
                "run the command with --allow-pipes"
            )
        return Entry(key, None, command=source)
    match = _RXFILENAME.fullmatch(source)
    path = _locate(folder, map_path(match["path"], path_map)) if match else Path(source)
    if match is None or not os.path.isfile(path):
        advice = suggestion([str(path)])
        raise ArchiveError(
            f"{where}: {key}: there is no file {quoted(str(path))}"
            f"{f'; {advice}' if advice and not path_map else ''}"
        )
    digits = (match["offset"] or "0").lstrip("0")
    # Python's int() refuses very long numbers, which are not valid offsets anyway.
    if len(digits) > _LONGEST_OFFSET:
        raise ArchiveError(f"{where}: {key}: the offset {quoted(digits)} is too large for a file")
    return Entry(key, path, int(digits or 0), match["range"] or "")


def _locate(folder: Path, name: str) -> Path:
    """Resolve a path relative to the working directory, `folder` or a parent of `folder`."""
    folder = folder.absolute()
    places = [Path(name).absolute(), *(place / name for place in (folder, *folder.parents))]
    return next((path for path in places if os.path.isfile(path)), places[0])


def _ark(table: Path) -> Iterator[Entry]:
    """Yield the entries of an archive; only the headers of binary objects are read."""
    with opened(table) as file:
        if file.read(len(GZIP)) == GZIP:
            raise ArchiveError(
                f"{table}: the archive is compressed with gzip: unpack it with gunzip first"
            )
        file.seek(0)
        while True:
            key = _key(table, file)
            if not key:
                return
            offset = file.tell()
            header = _header(table, file)
            yield Entry(key, table.absolute(), offset)
            # There is no separator between objects: the next key begins here.
            file.seek(offset + header.size)


def opened(path: Path) -> IO[bytes]:
    """Open a binary file; raise an ArchiveError that names it if that fails."""
    try:
        return open(regular(path), "rb")
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read: {error.strerror}") from error


def _key(table: Path, file: IO[bytes]) -> str:
    """Read a key, up to the next space; empty at the end of the file."""
    key_bytes, letter = bytearray(), b""
    while len(key_bytes) <= _LONGEST_KEY:
        letter = file.read(1)
        if letter in (b"", b" "):
            break
        key_bytes += letter
    if not key_bytes and not letter:
        return ""
    try:
        key = key_bytes.decode()
    except UnicodeDecodeError:
        key = ""
    if letter != b" " or not key:
        raise ArchiveError(
            f"{table} is not an archive: there is no key before byte {file.tell()}; {_ADVICE}"
        )
    return key


@dataclass(frozen=True)
class Header:
    """Type and shape of an object."""

    kind: str
    """FM, DM (matrices of floats and doubles), CM, CM2, CM3 (compressed matrices), int32 (vector),
    `text` (text matrix) or `text int32`."""
    shape: tuple[int, ...]
    size: int
    """Bytes of the object."""

    @property
    def is_vector(self) -> bool:
        """Whether the object is a vector of integers."""
        return self.kind in ("int32", INTEGERS)


def read_header(entry: Entry) -> Header:
    """Read the header of an entry.

    Raises:
      ArchiveError: there is no matrix or vector of integers, or it goes beyond the end of the file.
    """
    with opened(entry.path) as file:
        if entry.offset > os.fstat(file.fileno()).st_size:
            raise ArchiveError(
                f"{entry.key}: {entry.path} ends before byte {entry.offset}, where this entry "
                f"should begin; {_ADVICE}"
            )
        file.seek(entry.offset)
        try:
            return _header(entry.path, file)
        except ArchiveError as error:
            raise ArchiveError(f"{entry.key}: {error}") from error


def read_shape(entry: Entry) -> tuple[int, int]:
    """Return the shape of a matrix; its values are read only for a range or a command.

    Raises:
      ArchiveError: the matrix cannot be read; the message names the key and the file.
    """
    if entry.path is None or entry.range:
        rows, columns = read_matrix(entry).shape
        return rows, columns
    header = read_header(entry)
    if header.is_vector:
        raise ArchiveError(f"{entry.key}: this entry of {entry.path} is integers, not features")
    rows, columns = header.shape
    return rows, columns


def _header(path: Path, file: IO[bytes]) -> Header:
    """Read the header at a file's position, and check that the file is long enough."""
    start = file.tell()
    begin = file.read(32)
    try:
        # Kaldi marks binary objects with a zero byte and B; anything else is text.
        if begin[:2] != b"\0B":
            file.seek(start)
            kind, body = scan(file)
            return Header(kind, shape_of(kind, body), file.tell() - start)
        header = _parsed(begin)
    except (ValueError, struct.error) as error:
        raise ArchiveError(
            f"{path}: there is no matrix or integer vector at byte {start} ({error}); {_ADVICE}"
        ) from error
    if start + header.size > os.fstat(file.fileno()).st_size:
        raise ArchiveError(
            f"{path}: the object of type {header.kind} and size "
            f"{' x '.join(map(str, header.shape))} at byte {start} goes beyond the end of the file;"
            f" {_ADVICE}"
        )
    return header


def _parsed(header_bytes: bytes) -> Header:
    """Parse the header of a binary object."""
    # An integer vector has no type token: the size byte 4 precedes its length.
    if header_bytes[2:3] == b"\4":
        (length,) = struct.unpack("<i", header_bytes[3:7])
        _check_sizes(length)
        return Header("int32", (length,), INTEGERS_START + INTEGER.itemsize * length)
    kind = header_bytes[2:].split(b" ")[0] + b" "
    if kind not in _VALUE_BYTES:
        raise ValueError(f"unknown kind {header_bytes[2:8]!r}")
    body = header_bytes[2 + len(kind) :]
    name = kind.decode().strip()
    # CM stores four 16-bit percentiles for each column; CM2 and CM3 have one range for all.
    if kind[:1] == b"C":
        # Kaldi's GlobalHeader: float minimum and range, int32 rows and columns.
        _, _, rows, columns = struct.unpack("<ffii", body[:16])
        _check_sizes(rows, columns)
        per_column = 8 * columns if kind == b"CM " else 0
        data = 16 + per_column + rows * columns * _VALUE_BYTES[kind]
        return Header(name, (rows, columns), 2 + len(kind) + data)
    # Each integer of a binary file is preceded by a byte with its size.
    row_bytes, rows, column_bytes, columns = struct.unpack("<bibi", body[:10])
    if (row_bytes, column_bytes) != (4, 4):
        raise ValueError("the numbers of rows and columns are not integers of four bytes")
    _check_sizes(rows, columns)
    return Header(name, (rows, columns), 2 + len(kind) + 10 + rows * columns * _VALUE_BYTES[kind])


def _check_sizes(*sizes: int) -> None:
    """Raise a ValueError for negative sizes."""
    if min(sizes) < 0:
        raise ValueError(f"a negative size {min(sizes)}")


def read_matrix(entry: Entry) -> np.ndarray:
    """Read a matrix, compressed or not, as float32 [rows, columns].

    Raises:
      ArchiveError: the matrix cannot be read; the message names the key and the file.
    """
    if entry.path is None:
        source = entry.command
    else:
        header = read_header(entry)
        if header.is_vector:
            raise ArchiveError(f"{entry.key}: this entry of {entry.path} is integers, not features")
        if header.kind == MATRIX:
            return _text(entry, lambda body: parse_matrix(body, entry.range))
        source = f"{entry.path}:{entry.offset}{entry.range}"
    try:
        return kaldi_native_io().FloatMatrix.read(source).numpy().copy()
    except RuntimeError as error:
        raise ArchiveError(f"{entry.key}: {source} cannot be read ({reason(error)})") from error


def read_vector(entry: Entry) -> np.ndarray:
    """Read a vector of integers as int32 [T].

    Raises:
      ArchiveError: the vector cannot be read; the message names the key and the file.
    """
    header = read_header(entry)
    if not header.is_vector:
        raise ArchiveError(f"{entry.key}: this entry of {entry.path} is a matrix, not integers")
    if header.kind == INTEGERS:
        return _text(entry, parse_integers)
    with opened(entry.path) as file:
        file.seek(entry.offset + INTEGERS_START)
        try:
            return decode_integers(file.read(header.size - INTEGERS_START))
        except ValueError as error:
            raise ArchiveError(f"{entry.key}: {entry.path}: {error}; {_ADVICE}") from error


def _text(entry: Entry, parse: Callable[[bytes], np.ndarray]) -> np.ndarray:
    """Read and parse an object of a text archive."""
    with opened(entry.path) as file:
        file.seek(entry.offset)
        try:
            return parse(scan(file)[1])
        except (ValueError, OverflowError) as error:
            raise ArchiveError(f"{entry.key}: {entry.path}: {error}; {_ADVICE}") from error


def decode_integers(content: bytes) -> np.ndarray:
    """Decode a binary vector to int32 [T]; raise a ValueError for other element sizes."""
    elements = np.frombuffer(content, INTEGER)
    if (elements["size"] != 4).any():
        raise ValueError("an integer does not have four bytes")
    return elements["value"].astype(np.int32)


def writer_path(path: Path) -> Path:
    """Make a file's folder, and check that a Kaldi table specifier can contain its path.

    Raises:
      ArchiveError: the path has a comma, white space or a bar.
    """
    path = Path(path).absolute()
    if set(str(path)) & set(", \t\n|"):
        raise ArchiveError(
            f"{path}: Kaldi's tables cannot be written to a path with a comma, white space or a "
            "bar: choose another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class ArchiveWriter:
    """Writes a Kaldi archive with its scp file; an error removes both.

    Args:
      make: the writer class of `kaldi_native_io`.
      archive: the archive; its folder is made.
      scp: the table of its objects, with absolute paths.
      text: write a text archive.

    Raises:
      ArchiveError: a path is not valid, see `writer_path`, or cannot be written.
    """

    def __init__(
        self, make: Callable[[str], Any], archive: Path, scp: Path, text: bool = False
    ) -> None:
        self._paths = writer_path(archive), writer_path(scp)
        mode = "ark,scp,t" if text else "ark,scp"
        self._written = 0
        self._writer = self._tried(make, f"{mode}:{self._paths[0]},{self._paths[1]}")

    def write(self, key: str, *value: Any) -> None:
        """Write one object; `value` holds the arguments for the writer class."""
        self._tried(self._writer.write, key, *value)
        self._written += 1

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._tried(self._writer.close)
        finally:
            if kind is not None:
                self._remove()
        if kind is None:
            self._tried(self._check_end)

    def _check_end(self) -> None:
        """Check that all objects are on disk, because closing the writer reports no error."""
        archive, scp = self._paths
        *lines, end = scp.read_text("utf-8").split("\n")
        if end or len(lines) != self._written:
            raise ArchiveError(f"{scp}: lines are missing")
        offset = int(lines[-1].rpartition(":")[2]) if lines else -1
        if offset >= archive.stat().st_size:
            raise ArchiveError(f"{archive}: objects are missing")
        # Zeros in place of the last object look like a text vector.
        if lines and read_header(Entry("", archive, offset)).kind == INTEGERS:
            raise ArchiveError(f"{archive}: an object is missing")

    def _tried(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the writer, and remove the files after an error."""
        try:
            return call(*arguments)
        except (RuntimeError, ArchiveError) as error:
            self._remove()
            raise ArchiveError(f"{self._paths[0]} cannot be written. Is the disk full?") from error

    def _remove(self) -> None:
        """Remove the archive and the scp file."""
        for path in self._paths:
            path.unlink(missing_ok=True)


def read_int_vectors(table: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, int32 [T]) from an scp file or an archive (binary or text, gzipped or not).

    Raises:
      ArchiveError: a vector cannot be read; the message names the file.
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
        raise ArchiveError(f"{table}: cannot be read ({reason(error)})") from error
    yield from _int_vectors(table, content)


def _int_vectors(table: Path, content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, integers) from an archive: a key, then a binary vector or the line's numbers."""
    offset = 0
    while offset < len(content):
        space = content.find(b" ", offset)
        try:
            # Binary marker, then the size byte of the vector's length.
            if space >= 0 and content[space + 1 : space + 4] == b"\0B\4":
                key, offset, integers = content[offset:space], *_binary(content, space + 1)
            else:
                end = content.find(b"\n", offset)
                line, offset = (
                    (content[offset:end], end + 1) if end >= 0 else (content[offset:], len(content))
                )
                key, *numbers = line.split() or [b""]
                integers = _checked(np.array([int(number) for number in numbers], dtype=np.int64))
            if key:
                yield key.decode(), integers
        except (ValueError, OverflowError) as error:
            raise ArchiveError(
                f"{table}: there is no integer vector near byte {offset} ({reason(error)}). Write "
                "the archive again"
            ) from error


def _binary(content: bytes, start: int) -> tuple[int, np.ndarray]:
    """Read the binary vector at `start`; return its end and its integers."""
    first = start + INTEGERS_START
    length = int.from_bytes(content[start + 3 : first], "little", signed=True)
    end = first + length * INTEGER.itemsize
    if length < 0 or end > len(content):
        raise ValueError("a vector goes beyond the end of the file")
    return end, decode_integers(content[first:end])


def _checked(numbers: np.ndarray) -> np.ndarray:
    """Convert int64 [T] to int32; raise a ValueError for numbers out of range."""
    limits = np.iinfo(np.int32)
    if len(numbers) and (numbers.min() < limits.min or numbers.max() > limits.max):
        raise ValueError("a number does not fit into four bytes")
    return numbers.astype(np.int32)


def describe_entries(table: Path, key: str | None = None, count: int = 10) -> Iterator[str]:
    """Yield a line for each of a table's first entries, or all values of one entry.

    Args:
      table: an scp file or archive of matrices or integer vectors.
      key: key of the entry whose values are shown; None: list entries.
      count: number of entries to list.

    Raises:
      ArchiveError: the table cannot be read, or has no such key.
    """
    table_entries = _entries(table, key)
    if key is not None:
        values = _values(table_entries[key])
        yield np.array2string(values, precision=4, suppress_small=True, threshold=200)
        return
    for entry in islice(table_entries.values(), count):
        header = read_header(entry)
        shape = " x ".join(map(str, header.shape))
        yield f"{entry.key}  {header.kind} {shape}  {entry.path}:{entry.offset}{entry.range}"
    if len(table_entries) > count:
        yield f"... {len(table_entries)} entries"


def plain_entries(table: Path, key: str | None = None, count: int = 10) -> dict[str, Any]:
    """Return the data of `describe_entries` for JSON, with all values of one entry.

    Args:
      table, key, count: see `describe_entries`.

    Raises:
      ArchiveError: the table cannot be read, or has no such key.
    """
    table_entries = _entries(table, key)
    listed = []
    for entry in islice(table_entries.values(), count) if key is None else (table_entries[key],):
        header = read_header(entry)
        location = {"file": str(entry.path), "offset": entry.offset, "range": entry.range}
        description: dict[str, Any] = {"key": entry.key, "kind": header.kind, "shape": header.shape}
        if key is not None:
            values = _values(entry)
            description |= {"shape": values.shape, "values": values.tolist()}
        listed.append(description | location)
    return {"number": len(table_entries), "entries": listed}


def _entries(table: Path, key: str | None) -> dict[str, Entry]:
    """Return the entries of a table; raise an error if it lacks the key."""
    table_entries = entries(table, allow_pipes=False)
    if key is not None and key not in table_entries:
        raise ArchiveError(
            f"{table} has no entry {key!r}; the first entry is {next(iter(table_entries))!r}"
        )
    return table_entries


def _values(entry: Entry) -> np.ndarray:
    """Read a matrix or a vector."""
    return read_vector(entry) if read_header(entry).is_vector else read_matrix(entry)
