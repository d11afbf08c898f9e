"""Shards of features with a teacher's targets, read one after the other in little memory.

A folder of them is what the data pipeline's repartition writes: `features.json`, `targets.json`
and, in `shards/`, `cuts.NNNNNN.jsonl`, `features.NNNNNN.tar`, `targets.NNNNNN.tar`. Opening one
reads the two manifests alone, so that half a million shards are opened at once.
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

from toolkit.features.lfr import low_rate_length
from toolkit.features.mean_state import MeanState
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
    """One utterance to learn from."""

    name: str
    """Its id."""
    features: Tensor
    """[T, F] float32, raw."""
    state: MeanState
    """What the speaker's earlier utterances left for the running mean."""
    targets: KBest
    """Of the low-rate frames at the shards' offset."""

    @property
    def confidence(self) -> float:
        """The mean over the frames of the teacher's highest posterior; 0 without frames."""
        best = np.exp(self.targets.logits[:, 0].astype(np.float64))
        return float(best.mean()) if len(best) else 0.0


class TeacherShards:
    """The shards of a folder.

    Args:
      folder: see above.

    Raises:
      TargetError: it has no features or no targets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        store = TargetStore(self.folder)
        self.num_senones = store.num_senones
        """C."""
        self.offset = store.offset
        """The offset that the teacher's targets were computed at: raw frame that the first
        low-rate frame begins with. They are right for a student's frames at this offset only."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            counts = manifest["shards"]
            self.dimension = int(manifest["dimension"])
            """F, values of a raw frame."""
            self.frames = np.array([shard["frames"] for shard in counts], dtype=np.int64)
            """[S] raw frames of every shard."""
            self.utterances = np.array([shard["utterances"] for shard in counts], dtype=np.int64)
            """[S]."""
            self.frames_per_hour = 3600e3 / manifest["frontend"]["frame_shift_ms"]
            """Raw ones."""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{self.folder}: not a folder of features with targets ({error!r})"
            ) from error

    def read(self, shard: int, rank: int = 0, ranks: int = 1) -> Iterator[Example]:
        """Read the utterances of a shard that are a rank's: number rank, rank + ranks, ...

        Raises:
          TargetError: a file is missing or damaged, or features and targets do not fit.
        """
        folder = self.folder / SHARDS
        cuts, features = cuts_path(folder, shard), features_path(folder, shard)
        targets = folder / f"targets.{shard:06d}.tar"
        try:
            lines = cuts.read_bytes().splitlines()
            found = zip(lines, index_features(features), index_features(targets), strict=True)
            for line, (name, *where), (other, *place) in list(found)[rank::ranks]:
                cut = json.loads(line)
                if not cut["id"] == name == other:
                    raise ValueError(f"{name} and {other} stand where {cut['id']} should")
                state = MeanState(
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
