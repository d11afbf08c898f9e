"""Batches of unlabelled data with a teacher's targets; their number follows from the shard sizes.

The number of batches of an epoch must be known before it is read. For labelled data it follows
from the lengths of the utterances; of a million hours only the shards' totals are known. So these
determine the number of batches of some shards, among which their utterances are divided equally.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from toolkit.ssl.sub_epochs import ShardSet, SubEpochs, TeacherShardGroup
from toolkit.train.batches import Batch, ChunkSampler, UtteranceSampler, prefetched


class TeacherBatches:
    """The batches of sub-epochs, in an order that is a function of (seed, sub-epoch, world_size).

    See `BatchSource`, with one difference: ranks do not take turns in a common order, for which
    every rank would have to read all data. A rank reads and shuffles its share of the utterances.

    Args:
      data: the sub-epochs.
      sampler: divides the utterances that are in memory together into batches.
      seed: of the order.
      first: number of earlier sub-epochs: epoch e of this source is sub-epoch first + e.
    """

    def __init__(
        self, data: SubEpochs, sampler: ChunkSampler | UtteranceSampler, seed: int, first: int = 0
    ) -> None:
        self._data = data
        self._sampler = sampler
        self._seed = seed
        self._first = first

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        return sum(self._counts(self._data.shard_sets(self._first + epoch), world_size))

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`; skips shards before `start`, loads the next ones ahead."""
        number = self._first + epoch
        shard_sets = self._data.shard_sets(number)
        counts = self._counts(shard_sets, world_size)
        ends = np.cumsum(counts).tolist()
        remaining = [i for i, end in enumerate(ends) if end > start]
        loaded = self._load([shard_sets[i] for i in remaining], rank, world_size)
        for i, group in zip(remaining, prefetched(loaded, depth=0), strict=True):
            rng = np.random.default_rng([self._seed, number, i, rank])
            batches = self._sampler.split(group.length, counts[i], rng)
            for rows in batches[max(0, start - ends[i] + counts[i]) :]:
                yield self._sampler.collate(group, rows)

    def _counts(self, shard_sets: Sequence[ShardSet], world_size: int) -> list[int]:
        """Return the number of batches that each rank makes of each set of shards."""
        return [self._sampler.estimate(s.frames, s.utterances, world_size) for s in shard_sets]

    def _load(
        self, shard_sets: Sequence[ShardSet], rank: int, world_size: int
    ) -> Iterator[TeacherShardGroup]:
        """Load sets of shards in turn; the shards of the next one are fetched meanwhile."""
        for number, shard_set in enumerate(shard_sets):
            for expected in shard_sets[number : number + 2]:
                expected.source.shards.expect(expected.shards)
            yield self._data.load(shard_set, rank, world_size)
