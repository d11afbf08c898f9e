"""Batches of unlabelled data with a teacher's targets; their number follows from the shard sizes.

The number of batches of an epoch must be known before it is read. For labelled data it follows
from the lengths of the utterances; of a million hours only the shards' totals are known. So these
determine the number of batches of a window, among which its utterances are divided equally.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from toolkit.ssl.sub_epochs import SubEpochs, TeacherWindow, Window
from toolkit.train.batches import Batch
from toolkit.train.chunks import ChunkConfig, chunk_batch
from toolkit.train.prefetch import prefetched
from toolkit.train.whole_utterances import (
    SORTED_BATCHES,
    WholeUtteranceConfig,
    utterance_batch,
    utterance_rows,
)
from toolkit.train.windows import pieces

PADDING = 1.05
"""Estimated frames including padding per valid frame, in batches of whole utterances."""


class Batching(Protocol):
    """Division of windows into batches."""

    def count(self, window: Window, world_size: int) -> int:
        """Return the number of batches that each rank makes of a window, at least one."""

    def groups(
        self, lengths: np.ndarray, count: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Divide utterances of these lengths [U] into `count` batches, none of them empty."""

    def batch(self, window: TeacherWindow, group: np.ndarray) -> Batch:
        """Make the batch of a group."""


class ChunkBatching:
    """Shuffled chunks, as `toolkit.train.chunks.Chunks` makes them."""

    def __init__(self, config: ChunkConfig, lookahead: int) -> None:
        self._config = config
        self._lookahead = lookahead

    def count(self, window: Window, world_size: int) -> int:
        """See `Batching`; assumes that utterances' last chunks are half full on average."""
        chunks = window.frames / self._config.frames + window.utterances / 2
        return max(1, round(chunks / self._config.batch / world_size))

    def groups(
        self, lengths: np.ndarray, count: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """See `Batching`: each group is [N, 2], see `chunk_batch`."""
        chunks = rng.permutation(pieces(lengths, self._config.frames))
        return np.array_split(_at_least(chunks, count), count)

    def batch(self, window: TeacherWindow, group: np.ndarray) -> Batch:
        """See `Batching`."""
        return chunk_batch(window, group, self._config, self._lookahead)


class UtteranceBatching:
    """Shuffled whole utterances of similar lengths, as `ShuffledUtterances` makes them."""

    def __init__(self, config: WholeUtteranceConfig, lookahead: int) -> None:
        self._config = config
        self._lookahead = lookahead

    def count(self, window: Window, world_size: int) -> int:
        """See `Batching`."""
        return max(1, round(window.frames * PADDING / self._config.batch_frames / world_size))

    def groups(
        self, lengths: np.ndarray, count: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """See `Batching`: each group is [N, 3], see `utterance_batch`."""
        rows = rng.permutation(utterance_rows(lengths, self._config.max_frames))
        rows = _at_least(rows, count)
        stretches = np.array_split(np.arange(count), -(-count // SORTED_BATCHES))
        made, part = [], equal_parts(rows[:, 2], count)
        for batches in stretches:
            own = rows[(part >= batches[0]) & (part <= batches[-1])]
            own = own[np.argsort(-own[:, 2], kind="stable")]
            place = equal_parts(own[:, 2], len(batches))
            made += [own[place == number] for number in range(len(batches))]
        return [made[number] for number in rng.permutation(count)]

    def batch(self, window: TeacherWindow, group: np.ndarray) -> Batch:
        """See `Batching`."""
        return utterance_batch(window, group, self._lookahead)


class TeacherBatches:
    """The batches of sub-epochs, in an order that is a function of (seed, sub-epoch, world_size).

    See `BatchSource`, with one difference: ranks do not take turns in a common order, for which
    every rank would have to read all data. A rank reads and shuffles its share of each window's
    utterances.

    Args:
      data: the sub-epochs.
      batching: division of the windows into batches.
      seed: of the order within windows.
      first: number of earlier sub-epochs: epoch e of this source is sub-epoch first + e.
    """

    def __init__(self, data: SubEpochs, batching: Batching, seed: int, first: int = 0) -> None:
        self._data = data
        self._batching = batching
        self._seed = seed
        self._first = first

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        windows = self._data.windows(self._first + epoch)
        return sum(self._batching.count(window, world_size) for window in windows)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`; skips windows before `start`, loads one ahead and expects two."""
        number = self._first + epoch
        windows = self._data.windows(number)
        counts = [self._batching.count(window, world_size) for window in windows]
        ends = np.cumsum(counts).tolist()
        remaining = [i for i, end in enumerate(ends) if end > start]
        read = self._loaded([windows[i] for i in remaining], rank, world_size)
        for i, window in zip(remaining, prefetched(read, depth=0), strict=True):
            rng = np.random.default_rng([self._seed, number, i, rank])
            groups = self._batching.groups(window.length, counts[i], rng)
            for group in groups[max(0, start - ends[i] + counts[i]) :]:
                yield self._batching.batch(window, group)

    def _loaded(
        self, windows: Sequence[Window], rank: int, world_size: int
    ) -> Iterator[TeacherWindow]:
        """Load windows in turn; the shards of the next one are fetched meanwhile."""
        for number, window in enumerate(windows):
            for soon in windows[number : number + 2]:
                soon.source.shards.expect(soon.shards)
            yield self._data.load(window, rank, world_size)


def equal_parts(sizes: np.ndarray, count: int) -> np.ndarray:
    """Cut a sequence into `count` runs of nearly equal total, none of them empty.

    Args:
      sizes: [R] of the items, above 0; R is at least `count`.
      count: number of runs.

    Returns:
      [R] the run of each item: the one in which its middle lies, unless a run were empty then.
    """
    rows = np.arange(len(sizes))
    middles = np.cumsum(sizes) - sizes / 2
    part = np.minimum((middles * count / sizes.sum()).astype(np.int64), count - 1)
    part[0] = 0
    part = np.minimum.accumulate(part - rows) + rows  # no run is skipped
    return np.maximum(part, count - len(sizes) + rows)  # and enough items are left for the rest


def _at_least(rows: np.ndarray, count: int) -> np.ndarray:
    """Repeat rows if there are fewer than `count`, as may happen in a small share of a rank."""
    return rows if len(rows) >= count else np.resize(rows, (count, rows.shape[1]))
