"""Record files: compressed features and labels of a few utterances, with random access (A7).

A file is in the safetensors format, so that other tools can open it: `blocks` [bytes] uint8 holds
the utterances' blocks one after the other, `table` [N, 4] int64 a row for each (see `Column`), and
the metadata their names. A block is compressed with zlib and holds, in little-endian order: [F]
float64, the sum of the speaker's earlier frames for the running mean; [L] int32 labels; [2, F, T]
uint8, the raw float16 features, low bytes apart from high bytes, dimension by dimension.

The bytes depend on the content alone. Measured on 3 minutes of speech, 93 values per frame, one
core: 43 MB/h of 67, no loss, read and padded at 15,000 times real time. Eight bits per value
would need 34, and 30 with zlib.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import NATURAL, reading, validated

FORMAT = 1
LEVEL = 1  # zlib's; 6 saves another 4 % in more than twice the time
TABLE, BLOCKS = "table", "blocks"


ADVICE = "write the records again"
_PARTS = {
    "__metadata__": {"records": str},
    TABLE: {"data_offsets": [NATURAL]},
    BLOCKS: {"data_offsets": [NATURAL]},
}
_HEADER = {"plan": str, "names": [str], "dimension": NATURAL}


class RecordError(ToolkitError):
    """A record file is missing, damaged or of another format."""


class Column(IntEnum):
    """Columns of a file's table."""

    FRAMES = 0
    """T, number of the utterance's frames."""
    LABELS = 1
    """L, the number of its labels."""
    CMN_FRAMES = 2
    """Number of the frames of the speaker's earlier utterances."""
    END = 3
    """End of its block, in bytes from the start of the first block."""


@dataclass(frozen=True)
class Record:
    """One utterance."""

    features: np.ndarray
    """[T, F] float16, raw."""
    labels: np.ndarray
    """[L] int32."""
    cmn_frames: int
    """Number of the frames of the speaker's earlier utterances."""
    cmn_sum: np.ndarray
    """[F] float64: their sum."""


@dataclass(frozen=True)
class FileIndex:
    """The header of a record file, without the blocks."""

    path: Path
    plan: str
    """Identifier of the content, see `write_file`."""
    names: list[str]
    """[N] utterance ids."""
    dimension: int
    """F, values per frame."""
    table: np.ndarray
    """[N, 4] int64, see `Column`."""
    start: int
    """Offset of the first block in the file."""


def write_file(path: Path, plan: str, records: Iterable[tuple[str, Record]]) -> None:
    """Write a file of records atomically.

    Args:
      path: the file.
      plan: identifier of the content, by which a later run recognises what it would write.
      records: utterance ids and their records; at least one.
    """
    names, rows, blocks, end, dimension = [], [], [], 0, 0
    for name, record in records:
        block = _pack(record)
        end += len(block)
        frames, dimension = record.features.shape
        names.append(name)
        rows.append((frames, len(record.labels), record.cmn_frames, end))
        blocks.append(block)
    header = {"format": FORMAT, "plan": plan, "dimension": dimension, "names": names}
    tensors = {
        TABLE: np.array(rows, dtype=np.int64),
        BLOCKS: np.frombuffer(b"".join(blocks), dtype=np.uint8),
    }
    # One metadata entry, since the order of several would be random.
    write_atomically(path, save(tensors, {"records": json.dumps(header, ensure_ascii=False)}))


def read_index(path: Path) -> FileIndex:
    """Read the header of a file.

    Raises:
      RecordError: it is not a record file, or is truncated.
    """
    with reading(path, RecordError, ADVICE, "not a record file"), open(path, "rb") as file:
        total = file.seek(0, 2)
        file.seek(0)
        size = int.from_bytes(file.read(8), "little")
        if 8 + size > total:
            raise ValueError("not whole")
        parts = validated(json.loads(file.read(size)), _PARTS)
        header = json.loads(parts["__metadata__"]["records"])
        if validated(header, {"format": int})["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
        names, dimension = validated(header, _HEADER)["names"], header["dimension"]
        (first, last), (start, end) = (
            (8 + size + offset for offset in parts[part]["data_offsets"])
            for part in (TABLE, BLOCKS)
        )
        if not (first <= last <= total and start <= end <= total):
            raise ValueError("not whole")
        file.seek(first)
        table = np.frombuffer(file.read(last - first), dtype="<i8").reshape(-1, len(Column))
        ends = np.diff(table[:, Column.END], prepend=0)
        if len(table) != len(names) or (table < 0).any() or (ends < 0).any():
            raise ValueError("a table that does not fit its names and blocks")
        if int(table[:, Column.END].max(initial=0)) != end - start:
            raise ValueError("not whole")
    return FileIndex(path, header["plan"], names, dimension, table, start)


def read_record(index: FileIndex, row: int) -> Record:
    """Read an utterance by its row in the file.

    Raises:
      RecordError: the block cannot be read.
    """
    frames, labels, cmn_frames, end = index.table[row].tolist()
    begin = int(index.table[row - 1, Column.END]) if row else 0
    size = 8 * index.dimension + 4 * labels + 2 * index.dimension * frames
    where = f"{index.names[row]}: damaged in {index.path}"
    with reading(where, RecordError, ADVICE), open(index.path, "rb") as file:
        file.seek(index.start + begin)
        content = zlib.decompressobj().decompress(file.read(end - begin), size + 1)
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes, not {size}")
        return _unpack(content, frames, index.dimension, labels, cmn_frames)


def _pack(record: Record) -> bytes:
    by_dimension = np.ascontiguousarray(record.features.T.astype("<f2"))
    planes = by_dimension.view(np.uint8).reshape(*by_dimension.shape, 2).transpose(2, 0, 1)
    parts = (record.cmn_sum.astype("<f8"), record.labels.astype("<i4"), planes)
    return zlib.compress(b"".join(part.tobytes() for part in parts), LEVEL)


def _unpack(content: bytes, frames: int, dimension: int, labels: int, cmn_frames: int) -> Record:
    cmn_sum = np.frombuffer(content, "<f8", dimension).copy()  # writable, as torch wants it
    found = np.frombuffer(content, "<i4", labels, 8 * dimension)
    planes = np.frombuffer(content, np.uint8, offset=8 * dimension + 4 * labels)
    low, high = planes.reshape(2, dimension, frames)
    together = low | (high.astype("<u2") << 8)
    return Record(np.ascontiguousarray(together.T).view("<f2"), found, cmn_frames, cmn_sum)
