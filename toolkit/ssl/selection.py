"""Selection of unlabelled utterances: all, a random part, or the most confident (C13)."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from toolkit.ssl.shards import Example, TeacherShards
from toolkit.ssl.targets import TargetError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading

AHEAD = 8
"""Shards that are fetched ahead of their use."""


@dataclass(frozen=True)
class SelectionConfig:
    """Selection of utterances; all by default."""

    by: Literal["uniform", "confidence"] = "uniform"
    """`uniform`: sampled by a checksum of their ids, as in the paper (C16); `confidence`: those
    with the highest mean over the frames of the teacher's best posterior."""
    share: float = 1.0
    """Share of the frames that is selected, above 0; 1 selects all, without reading the data."""

    def __post_init__(self) -> None:
        if self.by not in ("uniform", "confidence"):
            raise ValueError(f"by is {self.by!r}, needs to be uniform or confidence")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, needs to be above 0 and at most 1")

    def score(self, example: Example) -> float:
        """Return the score by which utterances are ranked; the highest are selected."""
        if self.by == "confidence":
            return example.confidence
        return zlib.crc32(example.name.encode()) / 2**32


@dataclass(frozen=True)
class Selection:
    """The selected utterances: those whose score reaches the threshold."""

    config: SelectionConfig
    threshold: float
    """Lowest score that is selected."""
    frames: np.ndarray
    """[S] number of raw frames selected of every shard."""
    utterances: np.ndarray
    """[S] number of utterances selected of every shard."""
    data: str = ""
    """The digest of the shards; empty in files of earlier versions, and where all is selected."""

    def takes(self, example: Example) -> bool:
        """Whether an utterance is selected."""
        return self.config.share == 1 or self.config.score(example) >= self.threshold

    def save(self, path: Path) -> None:
        """Write JSON."""
        plain = {
            "config": asdict(self.config),
            "threshold": self.threshold,
            "data": self.data,
        }
        counts = {"frames": self.frames.tolist(), "utterances": self.utterances.tolist()}
        write_atomically(path, json.dumps(plain | counts) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Selection":
        """Read what `save` wrote.

        Raises:
          TargetError: it is damaged; names it.
        """
        with reading(path, TargetError, "remove it, and it is made again", "damaged"):
            plain = json.loads(path.read_text(encoding="utf-8"))
            counts = (np.array(plain[name], dtype=np.int64) for name in ("frames", "utterances"))
            config = SelectionConfig(**plain["config"])
            return cls(config, plain["threshold"], *counts, data=plain.get("data", ""))


def select(shards: TeacherShards, config: SelectionConfig) -> Selection:
    """Rank all utterances and determine the threshold, in one pass over the shards.

    Utterances are selected from the highest score on until they make up the share of the frames.
    """
    if config.share == 1 or not shards.utterances.any():
        return Selection(config, -np.inf, shards.frames, shards.utterances)
    rows = []
    for shard in range(len(shards.frames)):
        shards.expect(range(shard, min(shard + AHEAD, len(shards.frames))))
        rows += [(shard, config.score(e), len(e.features)) for e in shards.read(shard)]
    shard, scores, frames = (np.array(column) for column in zip(*rows, strict=True))
    threshold = score_threshold(scores, frames, config.share * frames.sum())
    taken = scores >= threshold
    counts = (
        np.bincount(shard[taken], weights, len(shards.frames)).astype(np.int64)
        for weights in (frames[taken], None)
    )
    return Selection(config, threshold, *counts, data=shards.digest)


def score_threshold(scores: Sequence[float], frames: Sequence[int], target_frames: float) -> float:
    """Return the lowest score to select, such that the utterances make up `target_frames` frames.

    Args:
      scores: [U] of the utterances.
      frames: [U] numbers of their frames.
      target_frames: number of frames; if there are fewer, all utterances are selected.
    """
    scores, frames = np.asarray(scores), np.asarray(frames)
    order = np.argsort(-scores, kind="stable")
    index = int(np.searchsorted(np.cumsum(frames[order]), target_frames))
    return float(scores[order[min(index, len(order) - 1)]])
