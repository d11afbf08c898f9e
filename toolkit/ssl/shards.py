"""Shards of features with a teacher's targets, read sequentially in little memory.

A folder of shards is written by the data pipeline's repartition: `features.json`, `targets.json`
and, in `shards/`, `cuts.NNNNNN.jsonl`, `features.NNNNNN.tar`, `targets.NNNNNN.tar`. Opening it
reads only the two manifests, so that half a million shards are opened at once.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.features.cmn_state import CmnState
from toolkit.features.low_frame_rate import low_rate_length
from toolkit.features.shards import (
    MANIFEST,
    SHARDS,
    cuts_path,
    features_path,
    index_features,
    read_array,
)
from toolkit.ssl.target_store import TargetStore
from toolkit.ssl.targets import KBest, TargetError


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


class TeacherShards:
    """The shards of a folder.

    Args:
      folder: as written by the repartition, see above.

    Raises:
      TargetError: it has no features or no targets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        store = TargetStore(self.folder)
        self.num_senones = store.num_senones
        """C, number of senones."""
        self.offset = store.offset
        """Offset at which the teacher's targets were computed: the raw frame at which the first
        low-rate frame begins. They are valid for a student's frames at this offset only."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
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
                f"{self.folder}: not a folder of features with targets ({error!r})"
            ) from error

    def read(self, shard: int, rank: int = 0, world_size: int = 1) -> Iterator[Example]:
        """Read the utterances of a shard that are a rank's: number rank, rank + world_size, ...

        Raises:
          TargetError: a file is missing or damaged, or features and targets do not fit.
        """
        folder = self.folder / SHARDS
        cuts, features = cuts_path(folder, shard), features_path(folder, shard)
        targets = folder / f"targets.{shard:06d}.tar"
        try:
            lines = cuts.read_bytes().splitlines()
            found = zip(lines, index_features(features), index_features(targets), strict=True)
            for line, (name, *where), (other, *place) in list(found)[rank::world_size]:
                cut = json.loads(line)
                if not cut["id"] == name == other:
                    raise ValueError(f"{name} and {other} where {cut['id']} is expected")
                state = CmnState(
                    cut["custom"]["cmn_frames"],
                    torch.tensor(cut["custom"]["cmn_sum"], dtype=torch.float64),
                )
                example = Example(name, read_array(features, *where), state, _read(targets, *place))
                self._check(example)
                yield example
        except (OSError, ValueError, KeyError, EOFError, tarfile.TarError) as error:
            raise TargetError(
                f"shard {shard} of {self.folder} cannot be read ({error}); write it again"
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


def _read(path: Path, offset: int, size: int) -> KBest:
    with open(path, "rb") as file:
        file.seek(offset)
        return KBest.unpack(np.load(io.BytesIO(file.read(size)), allow_pickle=False))
