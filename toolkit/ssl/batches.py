"""Batches of unlabelled data with a teacher's targets, as many as the shards' sizes promise.

How many batches an epoch has must be known before it is read. That of labelled data follows from
every utterance's length; of a million hours only the shards' totals are known. So these say how
many batches a window has, and what is found in the window is shared out among so many, equally.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from toolkit.parallel.batch import Batch
from toolkit.ssl.sub_epochs import SubEpochs, TeacherWindow, Window
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
"""Batches of whole utterances have about so many frames with padding for each without."""


class Cutting(Protocol):
    """How windows become batches."""

    def count(self, window: Window, ranks: int) -> int:
        """Say how many batches each of `ranks` processes makes of a window, at least one."""

    def groups(
        self, lengths: np.ndarray, count: int, chance: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Share utterances of these lengths [U] out among `count` batches, none of them empty."""

    def batch(self, window: TeacherWindow, group: np.ndarray) -> Batch:
        """Make the batch of a group."""


class InChunks:
    """Shuffled chunks, as `toolkit.train.chunks.Chunks` makes them."""

    def __init__(self, config: ChunkConfig, lookahead: int) -> None:
        self._config = config
        self._lookahead = lookahead

    def count(self, window: Window, ranks: int) -> int:
        """See `Cutting`: an utterance's last chunk is half full on average."""
        chunks = window.frames / self._config.frames + window.utterances / 2
        return max(1, round(chunks / self._config.batch / ranks))

    def groups(
        self, lengths: np.ndarray, count: int, chance: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """See `Cutting`: each group is [N, 2], see `chunk_batch`."""
        chunks = chance.permutation(pieces(lengths, self._config.frames))
        return np.array_split(_at_least(chunks, count), count)

    def batch(self, window: TeacherWindow, group: np.ndarray) -> Batch:
        """See `Cutting`."""
        return chunk_batch(window, group, self._config, self._lookahead)


class InUtterances:
    """Shuffled whole utterances of similar lengths, as `ShuffledUtterances` makes them."""

    def __init__(self, config: WholeUtteranceConfig, lookahead: int) -> None:
        self._config = config
        self._lookahead = lookahead

    def count(self, window: Window, ranks: int) -> int:
        """See `Cutting`."""
        return max(1, round(window.frames * PADDING / self._config.batch_frames / ranks))

    def groups(
        self, lengths: np.ndarray, count: int, chance: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """See `Cutting`: each group is [N, 3], see `utterance_batch`."""
        rows = chance.permutation(utterance_rows(lengths, self._config.max_frames))
        rows = _at_least(rows, count)
        stretches = np.array_split(np.arange(count), -(-count // SORTED_BATCHES))
        made, part = [], equal_parts(rows[:, 2], count)
        for batches in stretches:
            own = rows[(part >= batches[0]) & (part <= batches[-1])]
            own = own[np.argsort(-own[:, 2], kind="stable")]
            place = equal_parts(own[:, 2], len(batches))
            made += [own[place == number] for number in range(len(batches))]
        return [made[number] for number in chance.permutation(count)]

    def batch(self, window: TeacherWindow, group: np.ndarray) -> Batch:
        """See `Cutting`."""
        return utterance_batch(window, group, self._lookahead)


class TeacherBatches:
    """The batches of sub-epochs in an order that follows from (seed, sub-epoch, ranks).

    See `DataSource`, with one difference: ranks do not take turns in one order, as every rank would
    then have to read all data. A rank reads and shuffles its share of each window's utterances.

    Args:
      data: the sub-epochs.
      cutting: how their windows become batches.
      seed: of the order within windows.
      first: sub-epochs that came before: epoch e of this source is sub-epoch first + e.
    """

    def __init__(self, data: SubEpochs, cutting: Cutting, seed: int, first: int = 0) -> None:
        self._data = data
        self._cutting = cutting
        self._seed = seed
        self._first = first

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """See `DataSource`."""
        windows = self._data.windows(self._first + epoch)
        return sum(self._cutting.count(window, ranks) for window in windows)

    def batches(self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """See `DataSource`; windows before `start` are not read, the next one ahead of time."""
        number = self._first + epoch
        windows = self._data.windows(number)
        counts = [self._cutting.count(window, ranks) for window in windows]
        ends = np.cumsum(counts).tolist()
        wanted = [i for i, end in enumerate(ends) if end > start]
        read = (self._data.load(windows[i], rank, ranks) for i in wanted)
        for i, window in zip(wanted, prefetched(read, depth=1), strict=True):
            chance = np.random.default_rng([self._seed, number, i, rank])
            groups = self._cutting.groups(window.length, counts[i], chance)
            for group in groups[max(0, start - ends[i] + counts[i]) :]:
                yield self._cutting.batch(window, group)


def equal_parts(sizes: np.ndarray, count: int) -> np.ndarray:
    """Cut a sequence into `count` runs of near-equal total, none of them empty.

    Args:
      sizes: [R] above 0; R is at least `count`.
      count: number of runs.

    Returns:
      [R] the run of each item: that in which its middle lies, as far as none stays empty.
    """
    rows = np.arange(len(sizes))
    middles = np.cumsum(sizes) - sizes / 2
    part = np.minimum((middles * count / sizes.sum()).astype(np.int64), count - 1)
    part[0] = 0
    part = np.minimum.accumulate(part - rows) + rows  # no run is skipped
    return np.maximum(part, count - len(sizes) + rows)  # and what is left suffices for the rest


def _at_least(rows: np.ndarray, count: int) -> np.ndarray:
    """Repeat rows where there are fewer than batches, as may happen to a process's small share."""
    return rows if len(rows) >= count else np.resize(rows, (count, rows.shape[1]))
