"""Shuffled chunks of utterances: the data of chunked backpropagation through time (C7)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.features.lfr import LOW_RATE_FACTOR, centre, stack
from toolkit.train.batch import Batch
from toolkit.train.corpus import Corpus, Utterance
from toolkit.train.prefetch import prefetched

OFFSETS = LOW_RATE_FACTOR
"""Raw frames per low-rate frame; epoch e starts at raw frame e % 3 (C7)."""


@dataclass(frozen=True)
class ChunkConfig:
    """How utterances are cut and shuffled."""

    frames: int = 32
    """Scored low-rate frames (30 ms) per chunk; 32 (C7). The state is zero at its start."""
    left_context: int = 0
    """Low-rate frames before the chunk that are computed but not scored; none in the paper."""
    batch: int = 64
    """Chunks per batch."""
    window: int = 4_000_000
    """Raw frames (10 ms) of the shards that are loaded and shuffled together; at 64 values each
    4 million are 11 hours in 0.5 GB, and up to two windows are in memory. A corpus that fits is
    loaded once and shuffled as a whole."""

    def __post_init__(self) -> None:
        for name in ("frames", "batch", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if self.left_context < 0:
            raise ValueError(f"left_context is {self.left_context}, needs to be 0 or more")


@dataclass(frozen=True)
class _Window:
    """Utterances stacked at one offset, one after the other."""

    names: list[str]
    inputs: Tensor  # [sum of T', D] float16
    targets: Tensor  # [sum of T'] int32
    first: np.ndarray  # [U] row of each utterance's first frame
    length: np.ndarray  # [U] its number of frames T'


class Chunks:
    """Batches of chunks in an order that follows from (seed, epoch) alone.

    The order is hierarchical: a permutation of the shards is cut into windows, and the chunks of
    a window are permuted. Nothing crosses a window's end, so its last batch may be smaller.
    Within an utterance chunks follow each other without overlap or gap; the last, short one is
    filled up with frames of weight 0.
    """

    def __init__(self, corpus: Corpus, config: ChunkConfig, lookahead: int, seed: int) -> None:
        self._corpus = corpus
        self._config = config
        self._lookahead = lookahead
        self._seed = seed
        self._frames = [sum(u.frames for u in shard) for shard in corpus.shards]
        self._resident: list[tuple[Tensor, Tensor]] | None = None

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """See `DataSource`."""
        return sum(self._sizes(epoch, self._windows(epoch))) // ranks

    def batches(self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """See `DataSource`; windows before `start` are not loaded, later ones ahead of time."""
        windows = self._windows(epoch)
        ends = np.cumsum(self._sizes(epoch, windows)).tolist()
        begins = [0, *ends[:-1]]
        wanted = range(start * ranks + rank, ends[-1] // ranks * ranks, ranks)
        mine = [
            [b - begins[i] for b in range(begins[i], ends[i]) if b in wanted]
            for i in range(len(windows))
        ]
        current = [i for i, own in enumerate(mine) if own]
        loaded = (self._load(windows[i], epoch % OFFSETS) for i in current)
        for i, window in zip(current, prefetched(loaded, depth=1), strict=True):
            order = self._order(epoch, i, window)
            for b in mine[i]:
                chunks = order[b * self._config.batch : (b + 1) * self._config.batch]
                yield self._batch(window, chunks)

    def _windows(self, epoch: int) -> list[list[int]]:
        """Group the shards, in this epoch's order, into windows."""
        if sum(self._frames) <= self._config.window:
            return [list(range(len(self._frames)))]
        windows: list[list[int]] = [[]]
        room = self._config.window
        for shard in np.random.default_rng([self._seed, epoch]).permutation(len(self._frames)):
            if windows[-1] and self._frames[shard] > room:
                windows.append([])
                room = self._config.window
            windows[-1].append(int(shard))
            room -= self._frames[shard]
        return windows

    def _sizes(self, epoch: int, windows: list[list[int]]) -> list[int]:
        """Count the batches of each window."""
        counts = []
        for window in windows:
            raw = np.array([u.frames for shard in window for u in self._corpus.shards[shard]])
            length = np.maximum(0, -((epoch % OFFSETS - raw) // OFFSETS))
            chunks = int((-(-length // self._config.frames)).sum())
            counts.append(-(-chunks // self._config.batch))
        return counts

    def _load(self, shards: Sequence[int], offset: int) -> _Window:
        utterances = [u for shard in shards for u in self._corpus.shards[shard]]
        if len(shards) < len(self._frames):
            return _stacked(utterances, map(self._corpus.load, utterances), offset)
        if self._resident is None:
            self._resident = [self._corpus.load(u) for u in utterances]
        return _stacked(utterances, self._resident, offset)

    def _order(self, epoch: int, index: int, window: _Window) -> np.ndarray:
        """Permute the window's chunks: [chunks, 2] of utterance and first frame in it."""
        counts = -(-window.length // self._config.frames)
        utterance = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(utterance)) - np.repeat(np.cumsum(counts) - counts, counts)
        chunks = np.stack([utterance, number * self._config.frames], axis=1)
        return np.random.default_rng([self._seed, epoch, index]).permutation(chunks)

    def _batch(self, window: _Window, chunks: np.ndarray) -> Batch:
        config = self._config
        utterance, start = torch.from_numpy(chunks).unbind(1)
        first = torch.from_numpy(window.first)[utterance]
        length = torch.from_numpy(window.length)[utterance]
        scored = start[:, None] + torch.arange(-config.left_context, config.frames)
        needed = start[:, None] + torch.arange(
            -config.left_context, config.frames + self._lookahead
        )
        rows = first[:, None] + needed.clamp(min=0).minimum(length[:, None] - 1)
        inputs = window.inputs.index_select(0, rows.view(-1)).view(*rows.shape, -1)
        targets = window.targets[rows[:, : scored.shape[1]]]
        weights = ((scored >= start[:, None]) & (scored < length[:, None])).float()
        return Batch(
            ids=[window.names[u] for u in utterance.tolist()],
            inputs=inputs.float(),
            targets=targets.long(),
            weights=weights,
            lengths=(length - start).clamp(max=config.frames) + config.left_context,
            frames=int(weights.sum()),
        )


def _stacked(
    utterances: Sequence[Utterance], loaded: Iterable[tuple[Tensor, Tensor]], offset: int
) -> _Window:
    """Stack loaded utterances at an offset into one window."""
    length = np.array([max(0, -((offset - u.frames) // OFFSETS)) for u in utterances])
    first = np.cumsum(length) - length
    inputs = targets = torch.empty(0)
    for position, (features, raw_targets) in enumerate(loaded):
        if position == 0:
            total, dimension = int(length.sum()), OFFSETS * features.shape[1]
            inputs = torch.empty(total, dimension, dtype=features.dtype)
            targets = torch.empty(total, dtype=raw_targets.dtype)
        rows = slice(first[position], first[position] + length[position])
        inputs[rows] = stack(features, offset)
        targets[rows] = raw_targets[centre(len(features), offset)]
    return _Window([u.name for u in utterances], inputs, targets, first, length)
