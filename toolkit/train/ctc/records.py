"""Records of CTC training: compressed features and labels in files with random access (A6, A7).

A file is in the safetensors format, so that other tools can open it. Its tensor `blocks` [bytes]
uint8 holds the utterances' blocks one after the other; `table` [N, 4] int64 has a row for each
utterance (see `Column`); the metadata has their names. A block is compressed with zlib and holds,
in little-endian order: [F] float64, the sum of the speaker's earlier frames for the running mean;
[L] int32 labels; [2, F, T] uint8, the raw float16 features, dimension by dimension, first all low
bytes, then all high bytes.

The bytes depend on the content alone. Measured on 3 minutes of speech, 93 values per frame, one
core: 43 MB/h instead of 67, without loss, read and padded at 15,000 times real time. Eight bits per
value would need 34 MB/h, or 30 with zlib.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.features.augment import original_id
from toolkit.features.config import FrontendConfig
from toolkit.features.shards import MANIFEST, FeatureStore
from toolkit.lang.units import Units, UnitsError
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import NATURAL, read_json, reading, validated
from toolkit.train.config import RecordConfig
from toolkit.train.corpus import write_excluded
from toolkit.train.errors import TrainingDataError

FORMAT = 1
LEVEL = 1  # zlib's; level 6 saves another 4 %, but takes more than twice the time
TABLE, BLOCKS = "table", "blocks"
ADVICE = "write the records again"
_PARTS = {
    "__metadata__": {"records": str},
    TABLE: {"data_offsets": [NATURAL]},
    BLOCKS: {"data_offsets": [NATURAL]},
}
_HEADER = {"plan": str, "names": [str], "dimension": NATURAL}
RECORDS = "records.json"
FILES = "files"
_MANIFEST = dict.fromkeys(("dimension", "files", "utterances"), NATURAL) | {"symbols": [str]}
EXCLUDED = "excluded.tsv"


class RecordError(ToolkitError):
    """A record file is missing, damaged or in another format."""


class Column(IntEnum):
    """Columns of a file's table."""

    FRAMES = 0
    """T, number of the utterance's frames."""
    LABELS = 1
    """L, the number of its labels."""
    CMN_FRAMES = 2
    """Number of frames in the speaker's earlier utterances."""
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
    """Number of frames in the speaker's earlier utterances."""
    cmn_sum: np.ndarray
    """[F] float64: the sum of these frames."""


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
      path: the file to write.
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
      RecordError: the file is not a record file, or is truncated.
    """
    with reading(path, RecordError, ADVICE, "not a record file"), open(path, "rb") as file:
        total = file.seek(0, 2)
        file.seek(0)
        # The format of safetensors: 8 bytes with the header's length, the header as JSON, then the
        # tensors, whose offsets count from the end of the header.
        size = int.from_bytes(file.read(8), "little")
        if 8 + size > total:
            raise ValueError("truncated")
        parts = validated(json.loads(file.read(size)), _PARTS)
        header = json.loads(parts["__metadata__"]["records"])
        if validated(header, {"format": int})["format"] != FORMAT:
            raise ValueError(
                f"it has format {header['format']}, but this version reads format {FORMAT}"
            )
        names, dimension = validated(header, _HEADER)["names"], header["dimension"]
        (first, last), (start, end) = (
            (8 + size + offset for offset in parts[part]["data_offsets"])
            for part in (TABLE, BLOCKS)
        )
        if not (first <= last <= total and start <= end <= total):
            raise ValueError("truncated")
        # One row per utterance; the ends of the blocks ascend to the end of the last block.
        file.seek(first)
        table = np.frombuffer(file.read(last - first), dtype="<i8").reshape(-1, len(Column))
        ends = np.diff(table[:, Column.END], prepend=0)
        if len(table) != len(names) or (table < 0).any() or (ends < 0).any():
            raise ValueError("its table of utterances does not match its names and data blocks")
        if int(table[:, Column.END].max(initial=0)) != end - start:
            raise ValueError("truncated")
    return FileIndex(path, header["plan"], names, dimension, table, start)


def read_record(index: FileIndex, row: int) -> Record:
    """Read an utterance by its row in the file.

    Raises:
      RecordError: the block cannot be read.
    """
    frames, labels, cmn_frames, end = index.table[row].tolist()
    begin = int(index.table[row - 1, Column.END]) if row else 0
    # Uncompressed: F float64 sums, L int32 labels, F T float16 features. Decompression stops one
    # byte after that, so that a damaged block cannot fill the memory.
    size = 8 * index.dimension + 4 * labels + 2 * index.dimension * frames
    where = f"{index.names[row]}: damaged in {index.path}"
    with reading(where, RecordError, ADVICE), open(index.path, "rb") as file:
        file.seek(index.start + begin)
        content = zlib.decompressobj().decompress(file.read(end - begin), size + 1)
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes, not {size}")
        return _unpack(content, frames, index.dimension, labels, cmn_frames)


def _pack(record: Record) -> bytes:
    """Compress an utterance into a block."""
    # [F, T], then low and high bytes apart, [2, F, T]: neighbours are alike, and compress better.
    by_dimension = np.ascontiguousarray(record.features.T.astype("<f2"))
    planes = by_dimension.view(np.uint8).reshape(*by_dimension.shape, 2).transpose(2, 0, 1)
    parts = (record.cmn_sum.astype("<f8"), record.labels.astype("<i4"), planes)
    return zlib.compress(b"".join(part.tobytes() for part in parts), LEVEL)


def _unpack(content: bytes, frames: int, dimension: int, labels: int, cmn_frames: int) -> Record:
    """Restore an utterance from a decompressed block."""
    cmn_sum = np.frombuffer(content, "<f8", dimension).copy()  # writable, as torch wants it
    labels_array = np.frombuffer(content, "<i4", labels, 8 * dimension)
    # The parts stand in the order of `_pack`: 8 F bytes of sums, 4 L of labels, 2 F T of features.
    planes = np.frombuffer(content, np.uint8, offset=8 * dimension + 4 * labels)
    low, high = planes.reshape(2, dimension, frames)
    bits = low | (high.astype("<u2") << 8)  # [F, T], the bits of the float16 values
    return Record(np.ascontiguousarray(bits.T).view("<f2"), labels_array, cmn_frames, cmn_sum)


def record_path(folder: Path, number: int) -> Path:
    """Return the path of a record file."""
    return folder / FILES / f"records.{number:06d}.safetensors"


class Records:
    """The record files of a split, with an index of their utterances.

    Many processes may use it at once; files are opened for each read.

    Raises:
      RecordError: the folder is incomplete or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with reading(self.path, RecordError, ADVICE, "not a folder of finished records"):
            manifest = read_json(self.path / RECORDS, _MANIFEST)
            if not manifest["files"]:
                raise ValueError("no files")
        self.symbols: list[str] = manifest["symbols"]
        """Symbols of the output units of the labels."""
        self.dimension: int = manifest["dimension"]
        """F, values per frame."""
        with reading(self.path / RECORDS, RecordError, ADVICE, "has no settings of a front end"):
            settings = validated(manifest.get("frontend", {}), {str: Any})
            self.frontend = from_plain(FrontendConfig, settings)
            """Settings of the features; the defaults for records that do not store them."""
        utterances = manifest["utterances"]
        self._files: list[FileIndex] = [
            read_index(record_path(self.path, number)) for number in range(manifest["files"])
        ]
        for file in self._files:
            if file.dimension != self.dimension and file.names:
                raise RecordError(
                    f"{file.path} contains {file.dimension} values per frame, but {RECORDS} states "
                    f"{self.dimension}; {ADVICE}"
                )
        self.names = [name for file in self._files for name in file.names]
        """[U] utterance ids."""
        table = np.concatenate([file.table for file in self._files])
        self.frames = table[:, Column.FRAMES]
        """[U] number of raw frames of each utterance."""
        self.label_lengths = table[:, Column.LABELS]
        """[U] number of labels of each utterance."""
        # Index of the first utterance of each file, for the search in `read`
        self._first = np.cumsum([0, *(len(file.names) for file in self._files)])
        if len(self) != utterances:
            raise RecordError(
                f"{self.path} contains {len(self)} utterances, but {RECORDS} states {utterances}; "
                f"{ADVICE}"
            )

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int) -> Record:
        """Read an utterance by its index, 0 to U - 1."""
        file = int(np.searchsorted(self._first, number, side="right")) - 1
        return read_record(self._files[file], number - int(self._first[file]))


def write_records(
    features: Path,
    texts: Mapping[str, str],
    units: Units,
    config: RecordConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Write the raw features of a split, with its transcripts as labels, into record files.

    `out` gains `files/`, `excluded.tsv` (utterance, reason: too long, no transcript, ...) and
    `records.json`, written last. When called again, files whose content would be the same are
    kept. The bytes do not depend on `jobs`.

    Args:
      features: a feature store.
      texts: transcripts by utterance; an augmented copy (see `toolkit.features.augment`) without
        a transcript gets that of its original.
      units: output units of the labels.
      config: limits and file size.
      out: output folder.
      jobs: number of processes.
      progress: called after every file with the numbers of utterances done and in total.

    Returns:
      `utterances` and `hours` written; `kept_percent`, their share of all utterances (A6);
      `too_long` and `excluded`, the numbers of utterances left out for their length and for other
      reasons; and `MB_per_hour` of the files.

    Raises:
      TrainingDataError: no utterance is left, or too many were left out.
    """
    # 1. Select the utterances, and say why the others are left out.
    store = FeatureStore(features)
    labels, too_long, faulty = _select(store, texts, units, config)
    write_excluded(out / EXCLUDED, too_long | faulty)
    _require(labels, faulty, len(store), config, out)
    # 2. Plan the files: `per_file` utterances each, identified by a digest of their content.
    names = list(labels)
    groups = [names[i : i + config.per_file] for i in range(0, len(names), config.per_file)]
    plans = [
        _plan(number, store, {name: labels[name] for name in group})
        for number, group in enumerate(groups)
    ]
    # 3. Write the missing files. Those of the same plan are kept, so that a killed run continues.
    (out / RECORDS).unlink(missing_ok=True)
    pending = [plan for plan in plans if not plan.is_done(out)]
    for path in set((out / FILES).glob("*")) - {record_path(out, plan.number) for plan in plans}:
        path.unlink()
    done = len(names) - sum(len(plan.labels) for plan in pending)
    write = partial(_write, features=features, out=out)
    for plan, _ in zip(pending, map_in_processes(write, pending, jobs), strict=True):
        done += len(plan.labels)
        if progress is not None:
            progress(done, len(names))
    # 4. The manifest comes last: it marks the records as finished.
    frames = sum(map(store.num_frames, names))
    manifest = {
        "format": FORMAT,
        "frontend": store.manifest["frontend"],
        "dimension": store.dimension,
        "symbols": units.symbols,
        "config": asdict(config),
        "files": len(plans),
        "utterances": len(names),
        "frames": frames,
        "kept": len(names) / len(store),
        "too_long": len(too_long),
        "excluded": len(faulty),
    }
    write_atomically(out / RECORDS, json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")
    hours = frames * store.manifest["frontend"]["frame_shift_ms"] / 3.6e6  # ms per hour
    size = sum(record_path(out, plan.number).stat().st_size for plan in plans)
    facts = {name: manifest[name] for name in ("utterances", "too_long", "excluded")}
    percent = 100 * manifest["kept"]
    return {"hours": hours, **facts, "kept_percent": percent, "MB_per_hour": size / 1e6 / hours}


def count_too_long(features: Path, config: RecordConfig) -> int:
    """Count the utterances of a feature store that are too long for records (A6)."""
    store = FeatureStore(features)
    return sum(_is_too_long(store, name, config) for name in store.ids)


def _is_too_long(store: FeatureStore, name: str, config: RecordConfig) -> bool:
    """Return whether an utterance is longer than `max_seconds`."""
    shift = store.manifest["frontend"]["frame_shift_ms"]
    return store.num_frames(name) * shift > 1000 * config.max_seconds


@dataclass(frozen=True)
class _Plan:
    """One record file that is to be written."""

    number: int
    digest: str
    """Identifier of the content, see `write_file`."""
    labels: dict[str, list[int]]
    """Labels by utterance id."""

    def is_done(self, out: Path) -> bool:
        """Return whether the file is there with this content."""
        try:
            return read_index(record_path(out, self.number)).plan == self.digest
        except RecordError:
            return False


def _select(
    store: FeatureStore, texts: Mapping[str, str], units: Units, config: RecordConfig
) -> tuple[dict[str, list[int]], dict[str, str], dict[str, str]]:
    """Divide the utterances into usable, too long and otherwise unusable ones.

    Returns:
      By utterance id: the labels of the usable ones, and the reasons for the two other kinds.
    """
    usable: dict[str, list[int]] = {}
    too_long: dict[str, str] = {}
    faulty: dict[str, str] = {}
    shift = store.manifest["frontend"]["frame_shift_ms"]
    for name in store.ids:
        frames = store.num_frames(name)
        if _is_too_long(store, name, config):
            too_long[name] = f"{frames * shift / 1000:.2f} s, longer than {config.max_seconds:g} s"
            continue
        try:
            labels = units.encode(
                texts[name] if name in texts else texts.get(original_id(name), "")
            )
        except UnitsError as error:
            faulty[name] = str(error)
            continue
        # CTC needs an output per label, and one for the blank between two equal labels; the model
        # has floor((T - window) / stride) + 1 outputs.
        needed = len(labels) + sum(a == b for a, b in pairwise(labels))
        outputs = (frames - config.window) // config.stride + 1
        if not labels:
            faulty[name] = "no transcript"
        elif outputs < needed:
            faulty[name] = f"{frames} frames, too few for {len(labels)} labels"
        else:
            usable[name] = labels
    return usable, too_long, faulty


def _require(
    usable: Sequence, faulty: Mapping[str, str], total: int, config: RecordConfig, out: Path
) -> None:
    """Raise an error if too many utterances are unusable, or none is left."""
    if usable and len(faulty) <= config.max_excluded * total:
        return
    example = next(iter(sorted(faulty.items())), None)
    reason = f", such as {example[0]} ({example[1]})" if example else ""
    raise TrainingDataError(
        f"{len(faulty)} of {total} utterances cannot be used for training{reason}, and "
        f"{len(usable)} usable utterances are left. At most {100 * config.max_excluded:g} % may be "
        f"unusable. {out / EXCLUDED} lists the unusable utterances"
    )


def _plan(number: int, store: FeatureStore, labels: dict[str, list[int]]) -> _Plan:
    """Plan a record file: its number, a digest of its content, and its labels."""
    content = [[name, store.num_frames(name), ids] for name, ids in labels.items()]
    description = json.dumps([FORMAT, store.manifest["frontend"], content], sort_keys=True)
    return _Plan(number, hashlib.sha256(description.encode()).hexdigest(), labels)


def _write(plan: _Plan, features: Path, out: Path) -> None:
    """Write one record file."""
    store = _opened(features, (features / MANIFEST).stat().st_mtime_ns)
    write_file(record_path(out, plan.number), plan.digest, _records(store, plan.labels))


@lru_cache(maxsize=1)
def _opened(features: Path, written: int) -> FeatureStore:
    """Open a feature store; a process opens it again only if `written`, its mtime, has changed."""
    return FeatureStore(features)


def _records(store: FeatureStore, labels: Mapping[str, list[int]]) -> Iterator[tuple[str, Record]]:
    """Yield the utterances of a file with their ids."""
    for name, ids in labels.items():
        state, raw = store.cmn_state(name), store.load(name).half().numpy()
        yield name, Record(raw, np.array(ids, dtype=np.int32), state.frames, state.sum.numpy())
