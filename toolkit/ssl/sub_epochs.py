"""Sub-epochs: the schedule of passes over the shards of unlabelled data (C12)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.ssl.selection import Selection
from toolkit.ssl.shards import Example, TeacherShards
from toolkit.train.batches import ShardGroup
from toolkit.train.corpus import FeatureNormaliser
from toolkit.train.cross_entropy import KBestBatch
from toolkit.train.errors import TrainingDataError


@dataclass(frozen=True)
class Source:
    """A folder of shards, and the selection of its utterances."""

    shards: TeacherShards
    selection: Selection


@dataclass(frozen=True)
class ShardSet:
    """Shards of a sub-epoch that are shuffled together."""

    source: Source
    shards: tuple[int, ...]
    """Indices of the shards."""

    @property
    def frames(self) -> int:
        """Approximate number of selected low-rate frames."""
        return int(self.source.selection.frames[list(self.shards)].sum()) // LOW_RATE_FACTOR

    @property
    def utterances(self) -> int:
        """Number of selected utterances."""
        return int(self.source.selection.utterances[list(self.shards)].sum())


@dataclass(frozen=True)
class TeacherShardGroup(ShardGroup):
    """The concatenated utterances of some shards, stacked at the offset of their targets."""

    senones: np.ndarray
    """[sum of T', k] uint16: the k best senones."""
    logits: np.ndarray
    """[sum of T', k] float16: their log posteriors."""

    def make_batch(self, frame_rows: torch.Tensor, **fields: Any) -> KBestBatch:
        """Make a batch with the targets in rows [N, T], and with other fields as they are."""
        rows = frame_rows.numpy()
        return KBestBatch(
            targets=self.targets[frame_rows].long(),
            senones=torch.from_numpy(self.senones[rows].astype(np.int64)),
            logits=torch.from_numpy(self.logits[rows].astype(np.float32)),
            **fields,
        )


class SubEpochs:
    """An endless sequence of passes over the shards, cut into sub-epochs of equal length.

    The order of the shards in a pass is a function of (seed, number of the pass) alone. A shard
    belongs to the sub-epoch in which its middle lies. Pass p reads source p % (number of sources);
    several sources hold the same data with targets at different offsets.

    Args:
      sources: the data, with targets at one or several offsets.
      normaliser: the student's normaliser of the raw features.
      hours: audio per sub-epoch, before selection; None: one pass makes `count` sub-epochs.
      count: number of sub-epochs.
      max_frames: raw frames that are in memory together; a shard with more is alone.
      seed: of the order.

    Raises:
      TrainingDataError: the sources differ or are empty, or a sub-epoch has no shard.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        normaliser: FeatureNormaliser,
        hours: float | None,
        count: int,
        max_frames: int,
        seed: int,
    ) -> None:
        self._sources = sources
        self._normaliser = normaliser
        self._seed = seed
        first = sources[0].shards
        for source in sources[1:]:
            if not np.array_equal(source.shards.frames, first.frames):
                raise TrainingDataError(
                    f"{source.shards.name} and {first.name} do not hold the same utterances"
                )
        self.dimension = first.dimension
        """F, dimension of a raw frame."""
        self.count = count
        """Number of sub-epochs."""
        self._total = int(first.frames.sum())
        if not self._total:
            raise TrainingDataError(
                f"{first.name} has no frames: it holds no utterance, or none long enough for one"
            )
        self.length = self._total / count if hours is None else hours * first.frames_per_hour
        """Raw frames per sub-epoch, before selection."""
        self._shard_sets = [self._cut(number, max_frames) for number in range(count)]
        short = [n + 1 for n, shard_sets in enumerate(self._shard_sets) if not shard_sets]
        if short:
            longest = self.length / first.frames_per_hour
            raise TrainingDataError(
                f"{first.name} has {len(first.frames)} shards, too few for sub-epochs of "
                f"{longest:.3g} hours each (of {short} there is nothing): write shards of "
                f"less than {longest / 2:.3g} hours, or make the sub-epochs longer"
            )

    @property
    def hours(self) -> float:
        """Hours of selected audio in all sub-epochs."""
        frames = sum(shard_set.frames for sets in self._shard_sets for shard_set in sets)
        return frames * LOW_RATE_FACTOR / self._sources[0].shards.frames_per_hour

    def shard_sets(self, number: int) -> list[ShardSet]:
        """Return the sets of shards of a sub-epoch (counted from 0) that are in memory together."""
        return self._shard_sets[number]

    def shards(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (pass, shard) of a sub-epoch, in order."""
        begin, end = number * self.length, (number + 1) * self.length
        frames = self._sources[0].shards.frames
        for pass_number in range(int(begin // self._total), int(end // self._total) + 1):
            order = np.random.default_rng([self._seed, pass_number]).permutation(len(frames))
            ends = np.cumsum(frames[order]) + pass_number * self._total
            middles = ends - frames[order] / 2
            for shard in order[(begin <= middles) & (middles < end)]:
                yield pass_number, int(shard)

    def load(self, shard_set: ShardSet, rank: int, world_size: int) -> TeacherShardGroup:
        """Read a rank's share of some shards: every `world_size`-th utterance of each shard.

        Raises:
          TrainingDataError: no utterance with frames is left.
        """
        shards, taken = shard_set.source.shards, shard_set.source.selection.takes
        found = [  # without the raw features, which are twice as large as the inputs
            (example.name, example.targets, self._inputs(example, shards.offset))
            for shard in shard_set.shards
            for example in shards.read(shard, rank, world_size)
            if len(example.targets) and taken(example)
        ]
        if not found:
            raise TrainingDataError(
                f"shards {', '.join(map(str, shard_set.shards))} of {shards.name} have no"
                f" utterance for process {rank} of {world_size}: write longer shards"
            )
        names, targets, inputs = zip(*found, strict=True)
        length = np.array([len(rows) for rows in inputs])
        senones = np.concatenate([best.ids for best in targets])
        return TeacherShardGroup(
            names=list(names),
            inputs=torch.cat(inputs),
            targets=torch.from_numpy(senones[:, 0].astype(np.int32)),
            first=np.cumsum(length) - length,
            length=length,
            offset=shards.offset,
            senones=senones,
            logits=np.concatenate([best.logits for best in targets]),
        )

    def _inputs(self, example: Example, offset: int) -> torch.Tensor:
        """Return stacked frames [T', D]; float16, as in `Corpus.load`."""
        normalised = self._normaliser.apply(example.features, example.state)
        return stack(normalised.half(), offset)

    def _cut(self, number: int, max_frames: int) -> list[ShardSet]:
        """Group consecutive shards of a pass, in sets of at most `max_frames` raw frames."""
        made: list[ShardSet] = []
        left, current = 0, None
        for pass_number, shard in self.shards(number):
            source = self._sources[pass_number % len(self._sources)]
            frames = int(source.selection.frames[shard])
            if not source.selection.utterances[shard]:
                continue
            if current != pass_number or frames > left:
                made.append(ShardSet(source, ()))
                left, current = max_frames, pass_number
            made[-1] = ShardSet(source, (*made[-1].shards, shard))
            left -= frames
        return made
