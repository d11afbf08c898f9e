"""Shards of features with a teacher's targets, read sequentially in little memory.

A folder of shards is written by the data pipeline's repartition: `features.json`, `targets.json`
and, in `shards/`, `cuts.NNNNNN.jsonl`, `features.NNNNNN.tar`, `targets.NNNNNN.tar`. Opening it
reads only the two manifests, so that half a million shards are opened at once. Shards in an object
store are opened by `toolkit.pipeline.stored_shards`.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from toolkit.features.cmn_state import CmnState
from toolkit.features.low_frame_rate import low_rate_length
from toolkit.features.shards import MANIFEST, SHARDS, field_file, index_arrays, read_array_of
from toolkit.ssl.target_store import ADVICE, FIELDS
from toolkit.ssl.target_store import MANIFEST as TARGETS_MANIFEST
from toolkit.ssl.targets import KBest, TargetError
from toolkit.storage.digests import digest_bytes
from toolkit.storage.reading import DAMAGE_ERRORS, reading, regular, validated


@dataclass(frozen=True)
class Example:
    """A training utterance with its targets."""

    name: str
    """Its id."""
    features: Tensor
    """[T, F] float32, raw."""
    state: CmnState
    """State of the speaker's running mean before the utterance."""
    targets: KBest
    """Targets of the low-rate frames at the shards' offset."""

    @property
    def confidence(self) -> float:
        """The mean over the frames of the teacher's highest posterior; 0 without frames."""
        best = np.exp(self.targets.logits[:, 0].astype(np.float64))
        return float(best.mean()) if len(best) else 0.0


class ShardFiles(Protocol):
    """The files of a set of shards, wherever they lie."""

    name: str
    """What messages call the set: its folder or address."""

    def manifest(self, name: str) -> bytes:
        """Read a manifest of the set: `features.json` or `targets.json`."""

    def open(self, field: str, shard: int) -> BinaryIO:
        """Open a file of a shard, of `cuts`, `features` or `targets`."""

    def expect(self, shards: Sequence[int]) -> None:
        """These shards will be opened soon."""


class FolderFiles:
    """The files of a local folder.

    Args:
      folder: as written by the repartition, see above.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = Path(folder), str(folder)

    def manifest(self, name: str) -> bytes:
        """See `ShardFiles`."""
        return regular(self._folder / name).read_bytes()

    def open(self, field: str, shard: int) -> BinaryIO:
        """See `ShardFiles`."""
        return open(self._folder / SHARDS / field_file(field, shard), "rb")

    def expect(self, shards: Sequence[int]) -> None:
        """See `ShardFiles`: they are here."""


class TeacherShards:
    """A set of shards.

    Args:
      files: the folder of the set, or its files where they lie elsewhere.

    Raises:
      TargetError: it has no features or no targets.
    """

    def __init__(self, files: Path | ShardFiles) -> None:
        self._files = FolderFiles(files) if isinstance(files, Path) else files
        self.name = self._files.name
        """The folder or address, for messages."""
        with reading(self.name, TargetError, ADVICE, "not a folder of targets"):
            of_targets = self._files.manifest(TARGETS_MANIFEST)
            targets = validated(json.loads(of_targets), FIELDS)
        self.num_senones: int = targets["senones"]
        """C, number of senones."""
        self.offset: int = targets["offset"]
        """Offset at which the teacher's targets were computed: the raw frame at which the first
        low-rate frame begins. They are valid for a student's frames at this offset only."""
        try:
            of_features = self._files.manifest(MANIFEST)
            manifest = json.loads(of_features)
            self.digest = digest_bytes(of_features + of_targets)
            """Digest of both manifests: of the front end, the shards' sizes, the teacher."""
            counts = manifest["shards"]
            self.dimension = int(manifest["dimension"])
            """F, dimension of a raw frame."""
            self.frames = np.array([shard["frames"] for shard in counts], dtype=np.int64)
            """[S] number of raw frames of every shard."""
            self.utterances = np.array([shard["utterances"] for shard in counts], dtype=np.int64)
            """[S] number of utterances of every shard."""
            self.frames_per_hour = 3600e3 / manifest["frontend"]["frame_shift_ms"]
            """Raw frames per hour."""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{self.name}: not a folder of features with targets ({error!r})"
            ) from error

    def expect(self, shards: Sequence[int]) -> None:
        """Begin to fetch shards that will be read soon, where they are not on this machine."""
        self._files.expect(shards)

    def read(self, shard: int, rank: int = 0, world_size: int = 1) -> Iterator[Example]:
        """Read the utterances of a shard that are a rank's: number rank, rank + world_size, ...

        Raises:
          TargetError: a file is missing or damaged, or features and targets do not fit.
        """
        try:
            with self._files.open("cuts", shard) as cuts:
                lines = cuts.read().splitlines()
            with (
                self._files.open("features", shard) as features,
                self._files.open("targets", shard) as targets,
            ):
                found = zip(lines, index_arrays(features), index_arrays(targets), strict=True)
                for line, (name, *where), (other, *place) in list(found)[rank::world_size]:
                    cut = json.loads(line)
                    if not cut["id"] == name == other:
                        raise ValueError(f"{name} and {other} where {cut['id']} is expected")
                    state = CmnState(
                        cut["custom"]["cmn_frames"],
                        torch.tensor(cut["custom"]["cmn_sum"], dtype=torch.float64),
                    )
                    array = read_array_of(features, *where)
                    example = Example(name, array, state, _read(targets, *place))
                    self._check(example)
                    yield example
        except (*DAMAGE_ERRORS, TargetError) as error:
            raise TargetError(
                f"shard {shard} of {self.name} cannot be read ({error}); write it again"
            ) from error

    def _check(self, example: Example) -> None:
        frames, found = len(example.features), len(example.targets)
        if found != low_rate_length(frames, self.offset):
            raise ValueError(
                f"{example.name}: targets of {found} frames for {frames} raw frames at offset "
                f"{self.offset}"
            )
        highest = int(example.targets.ids.max(initial=0))
        if highest >= self.num_senones:
            raise ValueError(f"{example.name}: senone {highest} of {self.num_senones}")


def _read(file: BinaryIO, offset: int, size: int) -> KBest:
    file.seek(offset)
    return KBest.unpack(np.load(io.BytesIO(file.read(size)), allow_pickle=False))
