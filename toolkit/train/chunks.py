"""Shuffled chunks of utterances: the data of chunked backpropagation through time (C7)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from toolkit.train.batches import Batch
from toolkit.train.corpus import Corpus, Utterance
from toolkit.train.prefetch import prefetched
from toolkit.train.windows import OFFSETS, Stacked, Windows, low_rate_lengths, pieces


@dataclass(frozen=True)
class ChunkConfig:
    """How utterances are cut and shuffled."""

    frames: int = 32
    """Scored low-rate frames (30 ms) per chunk; 32 (C7). The state is zero at its start."""
    left_context: int = 0
    """Low-rate frames before the chunk that are computed but not scored; none in the paper."""
    right_context: int = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead;
    for bidirectional models."""
    batch: int = 64
    """Chunks per batch."""
    window: int = 4_000_000
    """Raw frames (10 ms) of the shards that are loaded and shuffled together; with 64 values per
    frame 4 million are 11 hours in 0.5 GB, and up to two windows are in memory. A corpus that fits
    into a window is loaded once and shuffled as a whole."""

    def __post_init__(self) -> None:
        for name in ("frames", "batch", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        for name in ("left_context", "right_context"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")


class Chunks:
    """Batches of chunks in an order that is a function of (seed, epoch) alone.

    The order is hierarchical: a permutation of the shards is cut into windows, and the chunks of
    a window are permuted. No batch spans two windows, so a window's last batch may be smaller.
    Within an utterance chunks follow each other without overlap or gap; the last, short one is
    padded with frames of weight 0.
    """

    def __init__(self, corpus: Corpus, config: ChunkConfig, lookahead: int, seed: int) -> None:
        self.windows = Windows(corpus, config.window, seed)
        """The windows of each epoch, which may hold the corpus in memory."""
        self._config = config
        self._lookahead = lookahead
        self._seed = seed

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        return sum(self._sizes(epoch, self.windows.of(epoch))) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`; skips windows before `start`, prefetches later ones."""
        windows = self.windows.of(epoch)
        ends = np.cumsum(self._sizes(epoch, windows)).tolist()
        begins = [0, *ends[:-1]]
        wanted = range(start * world_size + rank, ends[-1] // world_size * world_size, world_size)
        mine = [
            [b - begins[i] for b in range(begins[i], ends[i]) if b in wanted]
            for i in range(len(windows))
        ]
        current = [i for i, own in enumerate(mine) if own]
        loaded = (self.windows.stacked(windows[i], epoch % OFFSETS) for i in current)
        for i, window in zip(current, prefetched(loaded, depth=0), strict=True):
            order = self._order(epoch, i, window)
            for b in mine[i]:
                chunks = order[b * self._config.batch : (b + 1) * self._config.batch]
                yield chunk_batch(window, chunks, self._config, self._lookahead)

    def _sizes(self, epoch: int, windows: list[list[Utterance]]) -> list[int]:
        """Count the batches of each window."""
        counts = []
        for window in windows:
            length = low_rate_lengths(window, epoch % OFFSETS)
            chunks = int((-(-length // self._config.frames)).sum())
            counts.append(-(-chunks // self._config.batch))
        return counts

    def _order(self, epoch: int, index: int, window: Stacked) -> np.ndarray:
        """Permute the window's chunks: [chunks, 2] of utterance index and first frame."""
        chunks = pieces(window.length, self._config.frames)
        return np.random.default_rng([self._seed, epoch, index]).permutation(chunks)


def chunk_batch(window: Stacked, chunks: np.ndarray, config: ChunkConfig, lookahead: int) -> Batch:
    """Make a batch of chunks [N, 2] of a window: utterance index and first frame."""
    utterance, start = torch.from_numpy(chunks).unbind(1)
    before, after = config.left_context, config.frames + config.right_context
    inputs, rows = window.cut(utterance, start, before, after, lookahead)
    left = torch.from_numpy(window.length)[utterance] - start  # frames to the utterance's end
    position = torch.arange(-before, after)
    scored = (position >= 0) & (position < left[:, None].clamp(max=config.frames))
    return window.batch(
        rows,
        ids=[window.names[u] for u in utterance.tolist()],
        inputs=inputs,
        weights=scored.float(),
        lengths=left.clamp(max=after) + before,
        frames=int(scored.sum()),
    )
