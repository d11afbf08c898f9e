"""Batches of a corpus: shards in memory, the order of their utterances, rows, and prefetching.

From a corpus to a batch: `ShardGroups` says which shards are in memory together in an epoch. A
`BatchSampler` divides the utterances of such a group into rows (utterance, first frame, number of
frames), and the rows into batches. `collate` cuts a batch's rows out of the group. Every batch is
a function of (seed, epoch), so that a killed training resumes with the next batch.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, centre, stack
from toolkit.fsa.arrays import ragged_rows
from toolkit.parallel.strategy import BatchSource
from toolkit.storage.files import write_atomically
from toolkit.train.config import ChunkConfig, WholeUtteranceConfig
from toolkit.train.corpus import Corpus, Utterance

T = TypeVar("T")
BUCKET_BATCHES = 20
"""Number of batches whose utterances are sorted by length together, after shuffling."""
PADDING = 1.05
"""Estimated frames including padding per valid frame, in batches of whole utterances."""
VALIDATION_FRAMES = 16_384
"""Low-rate frames per validation batch, including padding: about 8 minutes."""
BATCHES_AHEAD = 4
_END = object()


BatchKind = TypeVar("BatchKind", bound="TensorBatch")


class TensorBatch:
    """Base class of batches, which can be moved to a device, pinned and saved."""

    ids: list[str]
    _computed: ClassVar[tuple[str, ...]]
    """Names of the tensors that are needed on the device."""
    _lengths: ClassVar[tuple[str, ...]]
    """Names of the tensors that stay on the CPU."""

    def to(self: BatchKind, device: torch.device) -> BatchKind:
        """Move the tensors that the device needs; from pinned memory this does not block."""
        if device.type == "cpu":
            return self
        return self._with(lambda x: x.to(device, non_blocking=True))

    def pin(self: BatchKind) -> BatchKind:
        """Copy into pinned memory, from which copies to a GPU overlap with computation."""
        return self._with(Tensor.pin_memory)

    def _with(self: BatchKind, function: Callable[[Tensor], Tensor]) -> BatchKind:
        """Apply a function to the tensors that are needed on the device."""
        tensors = {name: function(getattr(self, name)) for name in self._computed}
        return replace(self, **tensors)  # type: ignore[type-var] # subclasses are dataclasses

    def save(self, path: Path) -> None:
        """Write the batch as safetensors, with the utterance ids as metadata, for inspection.

        Every rank that calls this writes a file, so each rank needs its own path.
        """
        tensors = {
            name: getattr(self, name).cpu().contiguous()
            for name in (*self._computed, *self._lengths)
        }
        content = save(tensors, metadata={"ids": json.dumps(self.ids)})
        write_atomically(path, content, every_rank=True)


@dataclass(frozen=True)
class Batch(TensorBatch):
    """Rows of equal size: chunks, or whole utterances padded on the right."""

    ids: list[str]
    """Utterance of each row, length N."""
    inputs: Tensor
    """[N, T + lookahead, D] float32."""
    targets: Tensor
    """[N, T] int64; undefined where the weight is 0."""
    weights: Tensor
    """[N, T] float32: 0 for padding and for context that is not scored."""
    lengths: Tensor
    """[N] int64, on the CPU: number of valid frames of each row, without the look-ahead; frames
    after them are undefined."""
    frames: int
    """Number of scored frames, the sum of the weights."""

    _computed: ClassVar[tuple[str, ...]] = ("inputs", "targets", "weights")
    _lengths: ClassVar[tuple[str, ...]] = ("lengths",)


@dataclass(frozen=True)
class MicroBatches:
    """Consecutive batches whose gradients are added up for one optimizer step."""

    batches: tuple[Any, ...]

    @property
    def ids(self) -> list[str]:
        """Utterances of all rows."""
        return [name for batch in self.batches for name in batch.ids]

    @property
    def frames(self) -> int:
        """Number of scored frames."""
        return sum(batch.frames for batch in self.batches)

    def to(self, device: torch.device) -> "MicroBatches":
        """Move all batches to a device, see `Batch`."""
        return MicroBatches(tuple(batch.to(device) for batch in self.batches))

    def pin(self) -> "MicroBatches":
        """Copy all batches to pinned memory, see `Batch`."""
        return MicroBatches(tuple(batch.pin() for batch in self.batches))


def micro_batches(batch: Any) -> tuple[Any, ...]:
    """Return the batches of one optimizer step: those of `MicroBatches`, else the batch alone."""
    return batch.batches if isinstance(batch, MicroBatches) else (batch,)


class AccumulatedBatches:
    """A `BatchSource` whose steps join `accumulate` batches of `data`; the last may have fewer.

    Args:
      data: the source of the batches.
      accumulate: number of batches for one optimizer step.
    """

    def __init__(self, data: BatchSource, accumulate: int) -> None:
        self._data = data
        self._accumulate = accumulate

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        # Rounded up: the batches left over at the end of an epoch are a step of their own.
        return -(-self._data.num_steps(epoch, world_size) // self._accumulate)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[MicroBatches]:
        """Implement `BatchSource.batches`."""
        batches = self._data.batches(epoch, start * self._accumulate, rank, world_size)
        while step_batches := tuple(islice(batches, self._accumulate)):
            yield MicroBatches(step_batches)


@dataclass(frozen=True)
class ShardGroup:
    """The concatenated utterances of some shards, with frames stacked at one offset."""

    names: list[str]
    """[U] ids of the U utterances."""
    inputs: Tensor
    """[sum of T', D] float16."""
    targets: Tensor
    """[sum of T'] int32."""
    first: np.ndarray
    """[U] row of each utterance's first frame."""
    length: np.ndarray
    """[U] number of frames T' of each utterance."""
    offset: int
    """Raw frame with which every utterance begins."""

    def make_batch(self, frame_rows: Tensor, **fields: Any) -> Batch:
        """Make a batch with the targets of these rows [N, T]; `fields` are its other fields."""
        return Batch(targets=self.targets[frame_rows].long(), **fields)


def collate(
    group: ShardGroup,
    rows: np.ndarray,
    left_context: int = 0,
    right_context: int = 0,
    lookahead: int = 0,
    width: int | None = None,
) -> Batch:
    """Cut rows out of a group: chunks, whole utterances, or the chunks of LF-MMI.

    Beyond the ends of an utterance, its first or last frame is repeated.

    Args:
      group: the utterances.
      rows: [N, 3] index of the utterance, first scored frame in it, number of scored frames.
      left_context: frames before the scored ones.
      right_context: frames after the scored ones.
      lookahead: frames after the right context, which only the inputs have.
      width: scored frames of the padded rows; None: as many as in the longest row.
    """
    utterance, start, scored = torch.from_numpy(rows).unbind(1)  # [N] each
    end = (int(scored.max()) if width is None else width) + right_context
    first = torch.from_numpy(group.first)[utterance]
    length = torch.from_numpy(group.length)[utterance]
    # [T + lookahead]: frames relative to the first scored one, from -left_context on
    position = torch.arange(-left_context, end + lookahead)
    # Clamping repeats the first and the last frame of an utterance beyond its ends.
    within = (start[:, None] + position).clamp(min=0).minimum(length[:, None] - 1)
    frame_rows = first[:, None] + within  # [N, T + lookahead] rows of group.inputs
    inputs = group.inputs.index_select(0, frame_rows.view(-1)).view(*frame_rows.shape, -1)
    position = position[: left_context + end]  # [T]: targets have no look-ahead
    is_scored = (position >= 0) & (position < scored[:, None])
    return group.make_batch(
        frame_rows[:, : left_context + end],
        ids=[group.names[u] for u in utterance.tolist()],
        inputs=inputs.float(),
        weights=is_scored.float(),
        # Real frames end with the utterance, or with the right context of the row.
        lengths=left_context + torch.minimum(length - start, scored + right_context),
        frames=int(scored.sum()),
    )


def stack_utterances(
    utterances: Sequence[Utterance], loaded: Iterable[tuple[Tensor, Tensor]], offset: int
) -> ShardGroup:
    """Concatenate utterances after stacking their frames at an offset.

    Args:
      utterances: the U utterances.
      loaded: result of `Corpus.load` for each utterance; one is in memory at a time.
      offset: raw frame to begin with, 0 to 2.
    """
    # Rows of one matrix: utterance u has the rows first[u] to first[u] + length[u].
    length = low_rate_lengths(utterances, offset)
    first = np.cumsum(length) - length
    inputs = targets = torch.empty(0)
    for position, (features, raw_targets) in enumerate(loaded):
        if position == 0:
            total, dimension = int(length.sum()), LOW_RATE_FACTOR * features.shape[1]
            inputs = torch.empty(total, dimension, dtype=features.dtype)
            targets = torch.empty(total, dtype=raw_targets.dtype)
        rows = slice(first[position], first[position] + length[position])
        inputs[rows] = stack(features, offset)
        targets[rows] = raw_targets[centre(len(features), offset)]
    return ShardGroup([u.name for u in utterances], inputs, targets, first, length, offset)


def low_rate_lengths(utterances: Iterable[Utterance], offset: int) -> np.ndarray:
    """Return the numbers of low-rate frames of utterances at an offset: [U] int64."""
    raw = np.array([u.frames for u in utterances], dtype=np.int64)
    return np.maximum(0, -((offset - raw) // LOW_RATE_FACTOR))  # ceil((raw - offset) / 3)


class ShardGroups:
    """The shards of each epoch in an order that is a function of (seed, epoch), cut into groups.

    A corpus that fits into one group is loaded once and kept in memory.

    Args:
      corpus: the training corpus.
      max_frames: raw frames (10 ms) per group; a shard with more is a group of its own.
      seed: seed of the order.
    """

    def __init__(self, corpus: Corpus, max_frames: int, seed: int) -> None:
        self._corpus = corpus
        self._max_frames = max_frames
        self._seed = seed
        self._frames = [sum(u.frames for u in shard) for shard in corpus.shards]
        self._resident: list[tuple[Tensor, Tensor]] | None = None

    def utterances(self, epoch: int) -> list[list[Utterance]]:
        """Return the utterances of each group of an epoch, in stored order within a shard."""
        return [
            [utterance for shard in shards for utterance in self._corpus.shards[shard]]
            for shards in self._shards(epoch)
        ]

    def load(self, utterances: Sequence[Utterance], offset: int) -> ShardGroup:
        """Read the utterances of one group of an epoch, stacked at an offset."""
        if not self._fits:
            return stack_utterances(utterances, map(self._corpus.load, utterances), offset)
        # Only the offset differs between epochs: the raw frames stay in memory.
        if self._resident is None:
            self._resident = [self._corpus.load(u) for u in utterances]
        return stack_utterances(utterances, self._resident, offset)

    def _shards(self, epoch: int) -> list[list[int]]:
        """Return the indices of the shards of each group."""
        if self._fits:
            return [list(range(len(self._frames)))]
        # Fill one group after another with shards in random order.
        groups: list[list[int]] = [[]]
        remaining = self._max_frames
        for shard in np.random.default_rng([self._seed, epoch]).permutation(len(self._frames)):
            if groups[-1] and self._frames[shard] > remaining:
                groups.append([])
                remaining = self._max_frames
            groups[-1].append(int(shard))
            remaining -= self._frames[shard]
        return groups

    @property
    def _fits(self) -> bool:
        """Return whether the whole corpus fits into one group."""
        return sum(self._frames) <= self._max_frames


class BatchSampler(Protocol):
    """Divides utterances into rows, and these into batches."""

    def num_batches(self, lengths: np.ndarray, rng: np.random.Generator) -> int:
        """Count the batches of utterances of these lengths [U]."""

    def batches(self, lengths: np.ndarray, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return the rows [N, 3] of each batch: utterance, first frame, number of frames."""

    def collate(self, group: ShardGroup, rows: np.ndarray) -> Batch:
        """Make the batch of some rows."""


class ChunkSampler:
    """Shuffled chunks: the rows of chunked backpropagation through time (C7).

    Within an utterance chunks follow each other without overlap or gap; the last, short one is
    padded with frames of weight 0. A group's last batch may have fewer chunks.
    """

    def __init__(self, config: ChunkConfig, lookahead: int) -> None:
        self._config = config
        self._lookahead = lookahead

    def num_batches(self, lengths: np.ndarray, rng: np.random.Generator) -> int:
        """Implement `BatchSampler.num_batches`."""
        chunks = int((-(-lengths // self._config.frames)).sum())
        return -(-chunks // self._config.chunks_per_batch)

    def batches(self, lengths: np.ndarray, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Implement `BatchSampler.batches`."""
        # [chunks, 3]: chunks of all utterances of the group in random order
        chunks = rng.permutation(cut_chunks(lengths, self._config.frames))
        size = self._config.chunks_per_batch
        return [chunks[first : first + size] for first in range(0, len(chunks), size)]

    def collate(self, group: ShardGroup, rows: np.ndarray) -> Batch:
        """Implement `BatchSampler.collate`; all batches have the same width."""
        config = self._config
        return collate(
            group,
            rows,
            left_context=config.left_context,
            right_context=config.right_context,
            lookahead=self._lookahead,
            width=config.frames,
        )

    def estimate(self, frames: int, utterances: int, world_size: int) -> int:
        """Estimate each rank's number of batches, at least 1, from a group's frames and utterances.

        The last chunk of an utterance counts as half full.
        """
        chunks = frames / self._config.frames + utterances / 2
        return max(1, round(chunks / self._config.chunks_per_batch / world_size))

    def split(
        self, lengths: np.ndarray, count: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Divide utterances of these lengths [U] into exactly `count` batches, none of them empty.

        Rows are repeated if there are fewer rows than batches.
        """
        chunks = rng.permutation(cut_chunks(lengths, self._config.frames))
        return np.array_split(_at_least(chunks, count), count)


class UtteranceSampler:
    """Shuffled whole utterances of similar length: the last epochs of cross entropy (C7).

    Utterances are permuted; buckets of them are sorted by length, so that batches need little
    padding; then the batches are permuted.
    """

    def __init__(self, config: WholeUtteranceConfig, lookahead: int) -> None:
        self._config = config
        self._lookahead = lookahead

    def num_batches(self, lengths: np.ndarray, rng: np.random.Generator) -> int:
        """Count the batches of utterances of these lengths; takes as long as `batches`."""
        return len(self.batches(lengths, rng))

    def batches(self, lengths: np.ndarray, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Implement `BatchSampler.batches`."""
        max_frames = self._config.batch_frames
        rows = rng.permutation(cut_long_utterances(lengths, self._config.max_frames))  # [R, 3]
        # A bucket is a run of the shuffled rows with the frames of `BUCKET_BATCHES` batches.
        frames_before = np.cumsum(rows[:, 2]) - rows[:, 2]
        bucket = frames_before // (BUCKET_BATCHES * max_frames)
        rows = rows[np.lexsort((-rows[:, 2], bucket))]  # by bucket, then from long to short
        batches = slices_within(rows[:, 2].tolist(), max_frames)
        return [rows[batches[i]] for i in rng.permutation(len(batches))]

    def collate(self, group: ShardGroup, rows: np.ndarray) -> Batch:
        """Implement `BatchSampler.collate`."""
        return collate(group, rows, lookahead=self._lookahead)

    def estimate(self, frames: int, utterances: int, world_size: int) -> int:
        """Estimate each rank's number of batches, at least 1, from the frames of a group."""
        return max(1, round(frames * PADDING / self._config.batch_frames / world_size))

    def split(
        self, lengths: np.ndarray, count: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Divide utterances into `count` batches with about equal numbers of frames."""
        rows = rng.permutation(cut_long_utterances(lengths, self._config.max_frames))
        rows = _at_least(rows, count)
        # 1. Cut the shuffled rows into `count` runs, and group consecutive runs into buckets.
        batch_of_row = equal_parts(rows[:, 2], count)
        batches = []
        for bucket in np.array_split(np.arange(count), -(-count // BUCKET_BATCHES)):
            # 2. Sort the rows of a bucket by length, and cut it into as many batches as before.
            in_bucket = (batch_of_row >= bucket[0]) & (batch_of_row <= bucket[-1])
            bucket_rows = rows[in_bucket]
            bucket_rows = bucket_rows[np.argsort(-bucket_rows[:, 2], kind="stable")]
            part = equal_parts(bucket_rows[:, 2], len(bucket))
            batches += [bucket_rows[part == number] for number in range(len(bucket))]
        # 3. Shuffle the batches.
        return [batches[number] for number in rng.permutation(count)]


class CorpusBatches:
    """The batches of a corpus, in an order that is a function of (seed, epoch); a `BatchSource`.

    Epoch e begins with raw frame e % 3 of every utterance (C7). No batch spans two groups.

    Args:
      groups: the groups of shards in each epoch.
      sampler: divides each group into rows and batches.
      seed: seed of the order within groups.
      first_epoch: number of earlier epochs, from which offset and order continue.
    """

    def __init__(
        self, groups: ShardGroups, sampler: BatchSampler, seed: int, first_epoch: int = 0
    ) -> None:
        self._groups = groups
        self._sampler = sampler
        self._seed = seed
        self._first_epoch = first_epoch
        # Batches of each group by epoch; counting them is slow for `UtteranceSampler`.
        self._counts: dict[int, list[int]] = {}

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        return sum(self._num_batches(self._first_epoch + epoch)) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Yield a rank's batches, loading a group ahead; groups before step `start` are skipped."""
        epoch += self._first_epoch
        utterances = self._groups.utterances(epoch)
        counts = self._num_batches(epoch)
        # Batches are numbered through all groups: group i has those up to ends[i]. Step s of this
        # rank is batch s * world_size + rank.
        ends = np.cumsum(counts).tolist()
        usable = ends[-1] // world_size * world_size  # the same number of batches for every rank
        numbers_of_rank = range(start * world_size + rank, usable, world_size)
        # Numbers of this rank's batches within each group
        by_group = [
            [b - end + count for b in range(end - count, end) if b in numbers_of_rank]
            for end, count in zip(ends, counts, strict=True)
        ]
        # Groups before `start`, or without a batch of this rank, are not read.
        needed = [i for i, numbers in enumerate(by_group) if numbers]
        loaded = (self._groups.load(utterances[i], epoch % LOW_RATE_FACTOR) for i in needed)
        for i, group in zip(needed, prefetched(loaded, depth=0), strict=True):
            rows = self._sampler.batches(group.length, self._rng(epoch, i))
            for number in by_group[i]:
                yield self._sampler.collate(group, rows[number])

    def _num_batches(self, epoch: int) -> list[int]:
        """Count the batches of each group of an epoch."""
        if epoch not in self._counts:
            offset = epoch % LOW_RATE_FACTOR
            self._counts[epoch] = [
                self._sampler.num_batches(low_rate_lengths(group, offset), self._rng(epoch, i))
                for i, group in enumerate(self._groups.utterances(epoch))
            ]
        return self._counts[epoch]

    def _rng(self, epoch: int, group: int) -> np.random.Generator:
        """Return the random generator of a group in an epoch."""
        return np.random.default_rng([self._seed, epoch, group])


class ValidationBatches:
    """Whole utterances from the longest to the shortest, stacked at offset 0; re-iterable."""

    def __init__(self, corpus: Corpus, lookahead: int) -> None:
        self._corpus = corpus
        self._lookahead = lookahead
        ordered = by_length(u for u in corpus.utterances if u.frames)
        max_frames = VALIDATION_FRAMES * LOW_RATE_FACTOR  # raw, as `Utterance.frames` are
        self._batches = [
            ordered[rows] for rows in slices_within([u.frames for u in ordered], max_frames)
        ]

    def __iter__(self) -> Iterator[Batch]:
        return (whole_utterances(self._corpus, us, self._lookahead) for us in self._batches)


def whole_utterances(corpus: Corpus, utterances: Sequence[Utterance], lookahead: int) -> Batch:
    """Make a batch of whole utterances, stacked at offset 0."""
    group = stack_utterances(utterances, map(corpus.load, utterances), 0)
    starts = np.zeros_like(group.length)
    rows = np.column_stack([np.arange(len(utterances)), starts, group.length])
    return collate(group, rows, lookahead=lookahead)


def cut_chunks(lengths: np.ndarray, frames: int | np.ndarray) -> np.ndarray:
    """Cut utterances into chunks; the last one of an utterance may be shorter.

    Args:
      lengths: [U] frames of the utterances.
      frames: frames of a chunk: one number, or [U], one for each utterance.

    Returns:
      [chunks, 3] int64: index of the utterance, first frame in it, number of frames.
    """
    counts = -(-lengths // frames)
    utterance, number = ragged_rows(counts)
    size = np.broadcast_to(frames, len(counts))[utterance]
    start = number * size
    return np.stack([utterance, start, np.minimum(size, lengths[utterance] - start)], axis=1)


def cut_long_utterances(lengths: np.ndarray, max_frames: int) -> np.ndarray:
    """List whole utterances, and parts of about equal length of those that are too long.

    Args:
      lengths: [U] frames of the utterances.
      max_frames: longer utterances are cut.

    Returns:
      [rows, 3] int64, see `cut_chunks`.
    """
    parts = -(-lengths // max_frames)  # [U] pieces of each utterance, rounded up
    size = -(-lengths // np.maximum(parts, 1))  # [U] frames of a piece, the last may be shorter
    return cut_chunks(lengths, np.maximum(size, 1))


def by_length(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Sort utterances from the longest to the shortest; their given order has no effect."""
    return sorted(utterances, key=lambda u: (-u.frames, u.source, u.name))


def slices_within(lengths: Iterable[int], max_frames: int) -> list[slice]:
    """Divide rows into batches of at most `max_frames` frames including padding.

    A batch ends where it is full, or where a row follows that is longer than its first. So runs of
    rows that are sorted from long to short fill their batches within the limit. A row of more than
    `max_frames` frames is a batch of its own.

    Args:
      lengths: length of each row, above 0.
      max_frames: maximum number of frames in a batch.

    Returns:
      The slice of rows of each batch, in order.
    """
    batches: list[slice] = []
    longest = free_rows = 0
    for row, length in enumerate(lengths):
        if free_rows == 0 or length > longest:
            # This row begins a batch; its length is the width of all rows of the batch.
            batches.append(slice(row, row))
            longest, free_rows = length, max(1, max_frames // length)
        batches[-1] = slice(batches[-1].start, row + 1)
        free_rows -= 1
    return batches


def equal_parts(sizes: np.ndarray, count: int) -> np.ndarray:
    """Cut a sequence into `count` runs of nearly equal total, none of them empty.

    Args:
      sizes: [R] of the items, above 0; R is at least `count`.
      count: number of runs.

    Returns:
      [R] the run of each item: that in which its middle lies, unless a run would then be empty.
    """
    rows = np.arange(len(sizes))
    # Item r is in run floor(middle_r / total * count), with middle_r = sum_(q<r) s_q + s_r / 2.
    middles = np.cumsum(sizes) - sizes / 2
    part = np.minimum((middles * count / sizes.sum()).astype(np.int64), count - 1)
    part[0] = 0
    part = np.minimum.accumulate(part - rows) + rows  # no run is skipped
    return np.maximum(part, count - len(sizes) + rows)  # and enough items remain for later runs


def _at_least(rows: np.ndarray, count: int) -> np.ndarray:
    """Repeat rows if there are fewer than `count`, as may happen if a rank's share is small."""
    return rows if len(rows) >= count else np.resize(rows, (count, rows.shape[1]))


def load_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Load batches in a thread; for a GPU into pinned memory, which is copied without blocking."""
    if device.type == "cuda":
        batches = (batch.pin() for batch in batches)
    return prefetched(batches, BATCHES_AHEAD)


def prefetched(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield `items` in order while a thread computes the next `depth` + 1 of them.

    With a depth of 0, two items are in memory at a time: the one that the caller has, and the next.

    An exception of `items` is raised at its position. Closing the returned generator ends the
    thread after its current item. This is useful if computing an item waits for files or for torch,
    which release the interpreter lock.
    """
    ready: queue.SimpleQueue = queue.SimpleQueue()
    free_places = threading.Semaphore(depth + 1)  # for items that are not taken yet
    stopped = threading.Event()

    def compute() -> None:
        source = iter(items)
        try:
            # The caller frees a place when it takes an item, and also after setting `stopped`.
            while free_places.acquire() and not stopped.is_set():
                item = next(source, _END)
                ready.put((item, None))
                if item is _END:
                    break
                del item  # so that the caller can free it while the next one is computed
        except BaseException as error:
            ready.put((_END, error))
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            free_places.release()
            yield item
            del item
    finally:
        # The caller has finished or closed the generator: wake the thread, which then ends.
        stopped.set()
        free_places.release()
        thread.join()
