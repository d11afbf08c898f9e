"""Feature shards on disk, in the layout of lhotse Shar, and access to them by utterance.

A shard consists of `cuts.NNNNNN.jsonl` and a tar for each field, such as `features.NNNNNN.tar`;
`CutSet.from_shar(in_dir=...)` reads a folder of shards without this package. Lhotse's SharWriter is
not used: it writes cuts with gzip, whose header holds the time, and moves every cut to the start of
its recording. The bytes of these files depend only on the data.

Features are stored raw at the front end's rate as float16 `.npy`. Measured on 72 s of read speech
with 64 log-mel energies on one core: 46 MB/h, largest error 0.008 (0.3 % of a standard deviation),
written at 48,000 and read at 45,000 times real time. The same numbers for lilcom, lhotse's default,
are 29 MB/h, 0.016, 4,900 and 27,000: its compression takes as much time as the front end.
"""

import heapq
import io
import json
import operator
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, reduce
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from lhotse.cut import MonoCut
from torch import Tensor

from toolkit.corpus.manifest import to_relative_paths
from toolkit.errors import ToolkitError
from toolkit.features.silence import KINDS, counted_frames, outside, spans
from toolkit.processes.bars import Bar
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.paths import PathAliases, places_of
from toolkit.storage.reading import (
    LONGEST_NPY_HEADER,
    NATURAL,
    parse_array,
    parse_shape,
    read_json,
    reading,
    validated,
)

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

MANIFEST = "features.json"
SHARDS = "shards"
CUTS = "cuts"
DIGITAL_SILENCE = "digital_silence"
"""Key of the spans (first frame, end) of digital silence, if any, in a stored cut's `custom`."""
FAILED_CUTS = "failed.jsonl"
"""Cuts whose features could not be extracted, written by `toolkit.corpus.manifest.write_cuts`."""
_encode = json.JSONEncoder(ensure_ascii=False).encode


ADVICE = "extract the features again"
Result = TypeVar("Result")
Value = TypeVar("Value")


class StoreError(ToolkitError):
    """Raised for a feature folder that is incomplete or damaged, or lacks an utterance."""


@dataclass(frozen=True)
class CmnState:
    """Number and sum of the frames in a speaker's earlier utterances, for causal means (C17).

    Frames of digital silence do not count: see `toolkit.features.silence`.
    """

    frames: int
    """Number of frames that count."""
    sum: Tensor
    """[F] float64: sum of these frames."""

    @classmethod
    def empty(cls, dimension: int) -> "CmnState":
        """Return the state before a speaker's first utterance."""
        return cls(0, torch.zeros(dimension, dtype=torch.float64))

    def after(self, features: Tensor, counted: Tensor) -> "CmnState":
        """Return the state after one more utterance.

        Args:
          features: [T, F] raw.
          counted: [T] which frames count, see `toolkit.features.silence.counted_frames`.
        """
        total = features[counted].sum(dim=0, dtype=torch.float64).cpu()
        return CmnState(self.frames + int(counted.sum()), self.sum + total)


MIN_SHARDS = 4
"""Number of shards of a small split, so that several processes can work on minutes of audio."""


def total_seconds(seconds: Iterable[float]) -> float:
    """Add durations in increasing order, with the same rounding in every Python version.

    `sum` compensates rounding errors since Python 3.12.
    """
    return reduce(operator.add, sorted(seconds))


def plan_shards(seconds: Mapping[str, float], hours: float) -> list[list[str]]:
    """Distribute speakers, given their seconds of audio, over shards of about `hours` each."""
    return partition_by_size(seconds, number_of_shards(total_seconds(seconds.values()), hours))


def number_of_shards(seconds: float, hours: float) -> int:
    """Return the number of shards of about `hours` for `seconds` of audio.

    It is at least `MIN_SHARDS`, unless a shard would have less than a minute.
    """
    return max(1, round(seconds / (3600 * hours)), min(MIN_SHARDS, int(seconds / 60)))


def partition_by_size(sizes: Mapping[str, float], count: int) -> list[list[str]]:
    """Distribute groups over `count` parts, largest first, each to the smallest part.

    Args:
      sizes: positive size of each group by name, in any order and unit.
      count: number of parts, at least 1; there are never more parts than groups.

    Returns:
      Sorted names of each part; no part is empty.
    """
    count = min(max(count, 1), len(sizes))
    members: list[list[str]] = [[] for _ in range(count)]
    loads = [(0.0, index) for index in range(count)]  # a heap: the smallest part first
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, index = heapq.heappop(loads)
        members[index].append(name)
        heapq.heappush(loads, (load + sizes[name], index))
    return [sorted(part) for part in members]


BLOCK = tarfile.BLOCKSIZE
LONGEST_NAME = 100
# Fields of a header block, in bytes
NAME, SIZE, CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
BUFFER_BYTES = 1 << 20
_END = bytes(BLOCK)
_RECORD = re.compile(rb"(\d{1,9}) ([^=]*)=")
_TEMPLATE = tarfile.TarInfo("").tobuf(tarfile.PAX_FORMAT)
# The checksum is the sum of a header's bytes, with the checksum's own 8 bytes as spaces.
_FIXED_SUM = sum(_TEMPLATE) - sum(_TEMPLATE[SIZE]) - sum(_TEMPLATE[CHECKSUM]) + 8 * ord(" ")


class TarWriter:
    """Writes a reproducible tar: times, owners and groups are zero.

    Args:
      file: opened for writing bytes; it is not closed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0
        self._buffer: list[bytes] = []
        self._buffer_size = 0

    def add_array(
        self, id: str, array: np.ndarray, manifest: Mapping[str, Any] | None = None
    ) -> None:
        """Add an utterance's array as `<id>.npy`, and its manifest, if any, as `<id>.json`."""
        header = npy_header(array.dtype.str, array.shape)
        self._add_member(f"{id}.npy", header, array.tobytes())
        if manifest is not None:
            self._add_member(f"{id}.json", json.dumps(manifest).encode())

    def _add_member(self, name: str, *content: bytes) -> None:
        """Add a member: header, content and padding."""
        # A member is its header and its content, padded to whole blocks.
        size = sum(map(len, content))
        self.write(b"".join([member_header(name, size), *content, bytes(-size % BLOCK)]))

    def write(self, members: bytes) -> None:
        """Add the bytes of complete members, including headers and padding."""
        self._buffer.append(members)
        self._buffer_size += len(members)
        if self._buffer_size > BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the buffer and the tar's end marker."""
        end = 2 * BLOCK
        size = self._size + self._buffer_size + end
        self.write(bytes(end + -size % tarfile.RECORDSIZE))
        self._flush()

    def _flush(self) -> None:
        """Write the buffer to the file."""
        self._file.write(b"".join(self._buffer))
        self._size += self._buffer_size
        self._buffer, self._buffer_size = [], 0


def read_members(file: IO[bytes]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name, position and size of each member of a tar.

    Yields:
      Name, offset of its first header, offset of its content, size of its content, in bytes.

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
            raise tarfile.ReadError("the tar file ends too early")
        if header == _END:
            return
        try:
            size = int(header[SIZE].rstrip(b" \0"), 8)
            name = header[NAME].split(b"\0", 1)[0].decode() if long_name is None else long_name
        except ValueError:
            raise tarfile.ReadError("not a tar file, or a member is too large") from None
        content = position + BLOCK
        if size < 0 or content + size > total:
            raise tarfile.ReadError(f"a member of {size} bytes goes beyond the end of the file")
        position = content + size + -size % BLOCK
        # A pax header before a member holds the name that does not fit into the member's header.
        if header[156:157] == tarfile.XHDTYPE:
            long_name = _pax_path(file.read(size))
            continue
        yield name, start, content, size
        start, long_name = position, None


def _pax_path(records: bytes) -> str:
    """Find the name in a pax header, which has lines `<length> <key>=<value>`."""
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
    raise tarfile.ReadError("a pax header contains no file name")


def member_header(name: str, size: int) -> bytes:
    """Return the tar header of a regular file, as `tarfile` makes it, but faster."""
    # Long names, names that are not ASCII and files of 8 GiB or more need a pax header.
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
    """Return the `.npy` header of an array in C order."""
    stream = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


class FeatureFormat(Protocol):
    """Description of stored features in a manifest; a dataclass like `FrontendConfig`."""

    @property
    def kind(self) -> str:
        """Lhotse's name of the feature type."""

    @property
    def frame_shift_ms(self) -> float:
        """Frame shift in milliseconds."""

    @property
    def sampling_rate(self) -> int:
        """Sampling rate of the audio, in Hz."""

    @property
    def dimension(self) -> int:
        """F, the number of values per frame."""


def field_file(field: str, index: int | None) -> str:
    """Return the file name of a shard's field, such as `cuts`; a glob pattern if index is None."""
    number = "*" if index is None else f"{index:06d}"
    return f"{field}.{number}.{'jsonl' if field == CUTS else 'tar'}"


def cuts_path(folder: Path, index: int) -> Path:
    """Return the path of the cuts in shard `index`."""
    return folder / field_file(CUTS, index)


def features_path(folder: Path, index: int) -> Path:
    """Return the path of the features in shard `index`."""
    return folder / field_file("features", index)


def write_shard(
    folder: Path,
    index: int,
    utterances: Iterable[tuple[MonoCut | Mapping[str, Any], str, Tensor]],
    config: FeatureFormat,
) -> tuple[int, int]:
    """Write a shard of whole speakers; each of its files is written atomically.

    Each stored cut gains two custom fields for causal mean normalisation: `cmn_frames` and
    `cmn_sum` ([F] float64), the number and sum of the stored frames of the speaker's earlier
    utterances. Frames of digital silence do not count; a third field, `digital_silence`, has their
    spans. If the features do not show digital silence, the cut's own field is kept.

    Args:
      folder: a folder that contains shards only.
      index: number of the shard.
      utterances: (cut or its `to_dict()`, speaker, raw features [T, F]); a speaker's utterances
        follow each other in time order.
      config: format of the features.

    Returns:
      The number of utterances and of frames.
    """
    num_utterances = num_frames = 0
    current, state = None, CmnState.empty(config.dimension)
    places = places_of(cuts_path(folder, index))
    # On leaving the block the features get their name first: cuts without features never exist.
    with (
        open_atomically(cuts_path(folder, index)) as lines,
        open_atomically(features_path(folder, index), "wb") as file,
    ):
        tar = TarWriter(file)
        for cut, speaker, features in utterances:
            # The running sums restart with each speaker.
            if speaker != current:
                current, state = speaker, CmnState.empty(config.dimension)
            # 1. The features as float16, with lhotse's manifest of them.
            cut_dict = to_relative_paths(cut if isinstance(cut, Mapping) else cut.to_dict(), places)
            stored = features.to(torch.float16)
            manifest = _manifest(cut_dict, len(stored), config)
            tar.add_array(cut_dict["id"], stored.numpy(), manifest)
            # 2. Spans of digital silence.
            custom = cut_dict.get("custom") or {}
            if config.kind in KINDS:
                counted = counted_frames(stored, config.kind)
                custom = {k: v for k, v in custom.items() if k != DIGITAL_SILENCE}
                if not counted.all():
                    custom[DIGITAL_SILENCE] = spans(~counted)
            else:
                counted = outside(custom.get(DIGITAL_SILENCE, ()), len(stored))
            # 3. The cut, with the sums before this utterance.
            mean = {"cmn_frames": state.frames, "cmn_sum": state.sum.tolist()}
            line = {
                **cut_dict,
                "custom": custom | mean,
                "features": manifest,
            }
            lines.write(_encode(line) + "\n")
            state = state.after(stored, counted)
            num_utterances += 1
            num_frames += len(stored)
        tar.close()
    return num_utterances, num_frames


def write_manifest(
    folder: Path,
    config: FeatureFormat,
    shards: Sequence[Mapping[str, int]],
    failed: int = 0,
    engine: str | None = None,
) -> None:
    """Write a store's manifest, after all shards: it marks them as complete.

    Args:
      folder: the store's folder.
      config: format of the features.
      shards: numbers of `utterances` and `frames` of each shard.
      failed: utterances that have no features.
      engine: what computed the features, with its version; None: left out.
    """
    write_atomically(folder / MANIFEST, manifest_text(config, shards, failed, engine))


def manifest_text(
    config: FeatureFormat,
    shards: Sequence[Mapping[str, int]],
    failed: int = 0,
    engine: str | None = None,
) -> str:
    """Return the text of a store's manifest; see `write_manifest`."""
    manifest = {
        "frontend": asdict(config),
        **({"engine": engine} if engine else {}),
        "dimension": config.dimension,
        "utterances": sum(shard["utterances"] for shard in shards),
        "frames": sum(shard["frames"] for shard in shards),
        "failed": failed,
        "shards": [{"utterances": s["utterances"], "frames": s["frames"]} for s in shards],
    }
    return json.dumps(manifest, indent=1) + "\n"


def index_arrays(file: IO[bytes]) -> Iterator[tuple[str, int, int]]:
    """Scan an open tar for arrays; yield (utterance id, offset, size) of each, in bytes."""
    for name, _, offset, size in read_members(file):
        if name.endswith(".npy"):
            yield name.removesuffix(".npy"), offset, size


def read_array(file: IO[bytes], offset: int, size: int) -> np.ndarray:
    """Read from an open tar an array that `index_arrays` found.

    Raises:
      ValueError: the file is cut short, or holds something else at the offset.
    """
    file.seek(offset)
    content = bytearray(size)  # torch wants writable memory
    if file.readinto(content) < size:
        raise ValueError("the file is cut short")
    return parse_array(content)


def to_features(array: np.ndarray) -> Tensor:
    """Convert stored features to a tensor [T, F] float32.

    Raises:
      ValueError: the array has another shape.
    """
    if array.ndim != 2:
        raise ValueError(f"its array has shape {array.shape}, not [frames, dimensions]")
    return torch.from_numpy(array).float()  # numpy's conversion takes ten times as long


def read_features(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield (utterance id, features [T, F] float32) of a shard's tar, in its order."""
    with open(path, "rb") as file:
        for name, offset, size in list(index_arrays(file)):
            yield name, to_features(read_array(file, offset, size))


@contextmanager
def shard_writer(path: Path) -> Iterator[TarWriter]:
    """Return a context that writes the tar of one shard field; see `field_file`.

    The file gets its name when the `with` block ends without error.
    """
    with open_atomically(path, "wb") as file:
        writer = TarWriter(file)
        yield writer
        writer.close()


class ShardStore(Generic[Value]):
    """Values of one field by utterance, stored in a folder's files `<field>.NNNNNN.tar`.

    A file is scanned at the first access. Files are opened for each read, so that a store may be
    used from many processes and pickled.

    Args:
      folder: folder of the files.
      field: first part of the files' names, such as `features`, `targets` or `ali`.
      decode: converts a stored array to a value; raises a ValueError if that is impossible.
      error: class of the errors about damaged files.
      advice: what to do about damaged files.
    """

    def __init__(
        self,
        folder: Path,
        field: str,
        decode: Callable[[np.ndarray], Value],
        error: type[ToolkitError] = StoreError,
        advice: str = ADVICE,
    ) -> None:
        self._folder = Path(folder)
        self._field = field
        self._decode = decode
        self._error = error
        self._advice = advice
        self._indices: dict[Path, dict[str, tuple[int, int]]] = {}

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """The file that holds each utterance."""
        paths: dict[str, Path] = {}
        for path in sorted(self._folder.glob(field_file(self._field, None))):
            with reading(path, self._error, self._advice):
                paths |= dict.fromkeys(self._index(path), path)
        return paths

    def _index(self, path: Path) -> dict[str, tuple[int, int]]:
        """Return offset and size in bytes of each utterance's array in a file."""
        if path not in self._indices:
            with open(path, "rb") as file:
                arrays = index_arrays(file)
                self._indices[path] = {name: (offset, size) for name, offset, size in arrays}
        return self._indices[path]

    @property
    def ids(self) -> list[str]:
        """All utterance ids, in stored order."""
        return list(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self._paths

    def _path(self, utterance: str) -> Path:
        """Return the file that holds an utterance, or raise the store's error."""
        if utterance not in self._paths:
            raise self._error(f"{utterance}: not among the {self._field} in {self._folder}")
        return self._paths[utterance]

    def load(self, utterance: str) -> Value:
        """Read the value of an utterance."""
        with self._opened(utterance) as (file, offset, size):
            return self._decode(read_array(file, offset, size))

    def num_frames(self, utterance: str) -> int:
        """Return the first dimension of an utterance's array, read from its header."""
        with self._opened(utterance) as (file, offset, size):
            file.seek(offset)
            return parse_shape(file.read(min(size, LONGEST_NPY_HEADER)), size)[0]

    @contextmanager
    def _opened(self, utterance: str) -> Iterator[tuple[IO[bytes], int, int]]:
        """Open an utterance's file; yield it with offset and size of the array in bytes."""
        path = self._path(utterance)
        damage = f"{utterance} cannot be read"
        with reading(path, self._error, self._advice, damage), open(path, "rb") as file:
            place = self._index(path).get(utterance)
            if place is None:
                raise ValueError("the file contains no such utterance")
            yield file, *place

    def iter(self) -> Iterator[tuple[str, Value]]:
        """Yield (utterance, value) of every utterance in stored order."""
        for utterance in self.ids:
            yield utterance, self.load(utterance)


def _manifest(cut: Mapping[str, Any], num_frames: int, config: FeatureFormat) -> dict[str, Any]:
    """Return what `lhotse.Features.to_dict` would, which is itself as slow as reading audio."""
    manifest = {
        "type": config.kind,
        "num_frames": num_frames,
        "num_features": config.dimension,
        "frame_shift": config.frame_shift_ms / 1000,
        "sampling_rate": config.sampling_rate,
        "start": cut["start"],
        "duration": cut["duration"],
        "storage_type": "shar",  # a placeholder: the tar member before this manifest has the data
        "storage_path": "",
        "storage_key": "",
        "recording_id": cut["recording"]["id"] if "recording" in cut else None,
        "channels": cut["channel"],
    }
    return {key: value for key, value in manifest.items() if value is not None}


_MANIFEST_FORM = {
    "frontend": {"kind": str},
    "dimension": NATURAL,
    "utterances": NATURAL,
    "shards": [{str: Any}],
}
_SILENCE_FORM = {DIGITAL_SILENCE: [[NATURAL]]}
_CUT_FORM = {
    "id": str,
    "supervisions": [{"speaker": str}],
    "features": {"num_frames": NATURAL},
    "custom": {"cmn_sum": list, "cmn_frames": NATURAL},
}


@dataclass(frozen=True)
class _Entry:
    """Data about an utterance that the store keeps in memory."""

    shard: int
    row: int
    num_frames: int
    speaker: str
    line: int  # byte offset of the cut in the shard's file of cuts
    digital_silence: list[list[int]]  # first frame and end of each span


class FeatureStore(ShardStore[Tensor]):
    """The features of one split, as written by `extract`.

    Opening reads the shards' cuts; a shard's tar is scanned at the first `load` from it. Files
    are opened for each read, so that a store may be used from many processes and pickled.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        super().__init__(self.path / SHARDS, "features", to_features)
        with reading(self.path, StoreError, ADVICE, "not a folder of finished features"):
            self.manifest = read_json(self.path / MANIFEST, _MANIFEST_FORM)
        self.dimension: int = self.manifest["dimension"]
        """F, the number of values per frame."""
        self.kind: str = self.manifest["frontend"]["kind"]
        """Kind of the features: that of the front end, or of the GMM system that computed them."""
        self._entries: dict[str, _Entry] = {}
        self._sums: list[Tensor] = []  # per shard [N, F] float64
        self._frames: list[list[int]] = []  # per shard [N], the number of frames in these sums
        self.shards: list[list[str]] = [
            self._read_cuts(i) for i in range(len(self.manifest["shards"]))
        ]
        """Utterance ids by shard, in stored order."""
        if len(self._entries) != self.manifest["utterances"]:
            counts = Counter(chain.from_iterable(self.shards))
            repeated = next((name for name, count in counts.items() if count > 1), None)
            if repeated is not None:
                raise StoreError(
                    f"{self.path}: {repeated!r} is the id of several utterances. Ids must be unique"
                    " in the whole corpus or data lake; change them there and extract the features"
                    " again"
                )
            raise StoreError(
                f"{self.path} contains {len(self._entries)} utterances, but {MANIFEST} lists "
                f"{self.manifest['utterances']}; extract the features again"
            )

    def _read_cuts(self, shard: int) -> list[str]:
        """Read and check a shard's cuts; return their ids."""
        names, sums, frames, line_start = [], [], [], 0
        path = cuts_path(self._folder, shard)
        with reading(path, StoreError, ADVICE, "damaged"), open(path, "rb") as file:
            for line in file:
                cut = validated(json.loads(line), _CUT_FORM, f"line {len(names) + 1}")
                custom = cut["custom"]
                if DIGITAL_SILENCE in custom:
                    validated(custom, _SILENCE_FORM, f"line {len(names) + 1}")
                    if any(len(span) != 2 for span in custom[DIGITAL_SILENCE]):
                        raise ValueError(f"`{DIGITAL_SILENCE}` must contain pairs of frame numbers")
                self._entries[cut["id"]] = _Entry(
                    shard=shard,
                    row=len(names),
                    num_frames=cut["features"]["num_frames"],
                    speaker=cut["supervisions"][0]["speaker"],
                    line=line_start,
                    digital_silence=custom.get(DIGITAL_SILENCE, []),
                )
                names.append(cut["id"])
                sums.append(custom["cmn_sum"])
                frames.append(custom["cmn_frames"])
                line_start += len(line)
            table = torch.tensor(sums, dtype=torch.float64)
            if names and (
                table.shape != (len(names), self.dimension) or not table.isfinite().all()
            ):
                raise ValueError(f"`cmn_sum` must contain {self.dimension} numbers in every line")
        self._sums.append(table)
        self._frames.append(frames)
        return names

    @cached_property
    def _places(self) -> PathAliases | None:
        """Path aliases of the store's folder."""
        return places_of(self.path / MANIFEST)

    @cached_property
    def failed_cuts(self) -> "list[MonoCut]":
        """Cuts whose extraction failed; empty if the store does not list them."""
        from toolkit.corpus.manifest import read_cuts

        path = self.path / FAILED_CUTS
        return read_cuts(path) if path.exists() else []

    @cached_property
    def ids(self) -> list[str]:
        """All utterance ids, in shard order."""
        return [name for shard in self.shards for name in shard]

    @cached_property
    def speakers(self) -> list[str]:
        """All speakers, in shard order."""
        return list(self._last_of_speaker)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def num_frames(self, utterance: str) -> int:
        """Return T, the number of raw frames of an utterance."""
        return self._entry(utterance).num_frames

    def speaker(self, name: str) -> str:
        """Return the speaker of an utterance."""
        return self._entry(name).speaker

    def cut(self, name: str) -> "MonoCut":
        """Read the stored cut of an utterance.

        Raises:
          StoreError: the cut is damaged.
          UnsafeCutError: the cut names more than local files, see `toolkit.corpus.manifest`.
        """
        from toolkit.corpus.manifest import parse_cut

        entry = self._entry(name)
        path = cuts_path(self._folder, entry.shard)
        with reading(path, StoreError, ADVICE, f"{name} is damaged"), open(path, "rb") as file:
            file.seek(entry.line)
            return parse_cut(json.loads(file.readline()), str(path), self._places)

    def load(self, utterance: str) -> Tensor:
        """Read the raw features of an utterance: [T, F] float32."""
        features = super().load(utterance)
        shape, expected = list(features.shape), [self.num_frames(utterance), self.dimension]
        with reading(self._path(utterance), StoreError, ADVICE, f"{utterance} cannot be read"):
            if shape != expected:
                raise ValueError(f"its shape is {shape}, not {expected}")
        return features

    def _path(self, utterance: str) -> Path:
        """Return the tar that holds an utterance."""
        return features_path(self._folder, self._entry(utterance).shard)

    def cmn_state(self, name: str) -> CmnState:
        """Return the speaker's mean normalisation state before an utterance."""
        entry = self._entry(name)
        return CmnState(self._frames[entry.shard][entry.row], self._sums[entry.shard][entry.row])

    def counted(self, name: str) -> Tensor:
        """Return which frames of an utterance are not digital silence: [T] bool."""
        entry = self._entry(name)
        return outside(entry.digital_silence, entry.num_frames)

    def speaker_total(self, speaker: str) -> CmnState:
        """Return the number and sum of a speaker's raw frames, without digital silence."""
        if speaker not in self._last_of_speaker:
            raise StoreError(f"{speaker}: no such speaker in {self.path}")
        last = self._last_of_speaker[speaker]
        return self.cmn_state(last).after(self.load(last), self.counted(last))

    def speaker_mean(self, speaker: str) -> Tensor:
        """Return a speaker's mean raw frame [F] float64, as for Kaldi's apply-cmvn.

        Digital silence does not count; the mean is zero if there is nothing else.
        """
        total = self.speaker_total(speaker)
        return total.sum / max(1, total.frames)

    @cached_property
    def _last_of_speaker(self) -> dict[str, str]:
        """The last utterance of each speaker."""
        # A speaker's last utterance is the one with the most frames counted up to its end.
        last: dict[str, tuple[int, str]] = {}
        for name, entry in self._entries.items():  # in any order: a store may be shuffled
            silent = sum(end - begin for begin, end in entry.digital_silence)
            end = self._frames[entry.shard][entry.row] + entry.num_frames - silent
            if end >= last.get(entry.speaker, (0, ""))[0]:
                last[entry.speaker] = (end, name)
        return {speaker: name for speaker, (_, name) in last.items()}

    def _entry(self, name: str) -> _Entry:
        """Return the entry of an utterance, or raise a StoreError."""
        try:
            return self._entries[name]
        except KeyError:
            raise StoreError(
                f"{name}: no such utterance in {self.path} (the file failed.tsv there lists the "
                "utterances whose features could not be extracted)"
            ) from None


def map_shards(
    function: Callable[[tuple[int, Sequence[str]]], Result],
    store: FeatureStore,
    jobs: int,
    title: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Result]:
    """Apply a function to all shards of a store in parallel; yield the results in order.

    Args:
      function: picklable; takes a shard's number and its utterance ids.
      store: the store of the shards.
      jobs: worker processes.
      title: title of the progress bar, which counts utterances and names the split.
      progress: called with the number of shards done and of all shards.
    """
    shards = list(enumerate(store.shards))
    results = map_in_processes(function, shards, jobs)
    total = sum(len(ids) for _, ids in shards)
    name = f"{title} {store.path.name}"
    with Bar(total=total, desc=name, unit="utt") as bar:
        for done, (result, (_, ids)) in enumerate(zip(results, shards, strict=True), 1):
            bar.update(len(ids))
            yield result
            progress(done, len(shards))
