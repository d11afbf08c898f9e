"""Shuffled whole utterances: the data of the last epochs of cross-entropy training (C7)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from toolkit.train.batches import Batch
from toolkit.train.config import TrainerConfig
from toolkit.train.corpus import Utterance
from toolkit.train.prefetch import prefetched
from toolkit.train.utterances import grouped
from toolkit.train.windows import OFFSETS, Stacked, Windows, low_rate_lengths, pieces

SORTED_BATCHES = 20
"""Number of batches whose utterances are sorted by length together, after shuffling."""


@dataclass(frozen=True)
class WholeUtteranceConfig:
    """The epochs on whole utterances, after those on chunks."""

    epochs: int = 0
    """Passes over the data; 2 in the paper (C7)."""
    initial_rate: float = 1e-4
    """Learning rate of the first step; it decays exponentially."""
    final_rate: float = 5e-5
    """Learning rate of the last step."""
    batch_frames: int = 4096
    """Low-rate frames (30 ms) per batch, padding included: two minutes, twice those of 64 chunks.
    A longer utterance is a batch of its own."""
    max_frames: int = 1000
    """Low-rate frames above which an utterance is cut into pieces of about equal length, each of
    which starts with a zero state like an utterance: 30 s."""

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError(f"epochs is {self.epochs}, needs to be 0 or more")
        for name in ("batch_frames", "max_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        for name in ("initial_rate", "final_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be above 0")

    def trainer(self, config: TrainerConfig) -> TrainerConfig:
        """Return the trainer's settings of these epochs, given those of the epochs on chunks."""
        return replace(
            config,
            epochs=self.epochs,
            average_epochs=min(config.average_epochs, self.epochs),
            initial_rate=self.initial_rate,
            final_rate=self.final_rate,
            warmup_steps=0,
        )


class ShuffledUtterances:
    """Batches of whole utterances in an order that is a function of (seed, epoch).

    See `BatchSource`. As in `Chunks`, no batch spans two windows. A window's utterances are
    permuted, buckets of them sorted by length so that batches need little padding, and the batches
    permuted.
    Padding repeats valid frames with weight 0.

    Args:
      windows: of the corpus.
      config: batches and limit.
      lookahead: frames of input beyond the last output.
      seed: of the order.
      first_epoch: number of earlier epochs on chunks; the offset continues from there.
    """

    def __init__(
        self,
        windows: Windows,
        config: WholeUtteranceConfig,
        lookahead: int,
        seed: int,
        first_epoch: int = 0,
    ) -> None:
        self._windows = windows
        self._config = config
        self._lookahead = lookahead
        self._seed = seed
        self._first_epoch = first_epoch

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        epoch += self._first_epoch
        windows = enumerate(self._windows.of(epoch))
        return sum(len(self._groups(epoch, i, window)) for i, window in windows) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`; skips windows before `start`, prefetches later ones."""
        epoch += self._first_epoch
        windows = self._windows.of(epoch)
        groups = [self._groups(epoch, i, window) for i, window in enumerate(windows)]
        order = [(i, group) for i, own in enumerate(groups) for group in own]
        mine = order[start * world_size + rank : len(order) // world_size * world_size : world_size]
        needed = sorted({i for i, _ in mine})
        loaded = (self._windows.stacked(windows[i], epoch % OFFSETS) for i in needed)
        for i, window in zip(needed, prefetched(loaded, depth=0), strict=True):
            yield from (
                self._batch(window, group, epoch % OFFSETS) for other, group in mine if other == i
            )

    def _batch(self, window: Stacked, group: np.ndarray, offset: int) -> Batch:
        """Make a batch of some `utterance_rows` [N, 3] of a window stacked at an offset."""
        return utterance_batch(window, group, self._lookahead)

    def _groups(self, epoch: int, index: int, window: list[Utterance]) -> list[np.ndarray]:
        """Divide a window's utterances into batches of rows [N, 3], see `utterance_rows`."""
        rng = np.random.default_rng([self._seed, epoch, index])
        lengths = low_rate_lengths(window, epoch % OFFSETS)
        rows = rng.permutation(utterance_rows(lengths, self._config.max_frames))
        before = np.cumsum(rows[:, 2]) - rows[:, 2]
        stretch = before // (SORTED_BATCHES * self._config.batch_frames)
        rows = rows[np.lexsort((-rows[:, 2], stretch))]
        groups = grouped(rows[:, 2].tolist(), self._config.batch_frames)
        return [rows[groups[i]] for i in rng.permutation(len(groups))]


def utterance_rows(lengths: np.ndarray, max_frames: int) -> np.ndarray:
    """List whole utterances, and pieces of those that are too long: [rows, 3].

    Args:
      lengths: [U] low-rate frames.
      max_frames: longer utterances are cut.

    Returns:
      Index of the utterance, first frame in it, number of frames.
    """
    parts = -(-lengths // max_frames)
    size = -(-lengths // np.maximum(parts, 1))
    found = pieces(lengths, np.maximum(size, 1))
    left = lengths[found[:, 0]] - found[:, 1]
    return np.column_stack([found, np.minimum(left, size[found[:, 0]])])


def utterance_batch(window: Stacked, group: np.ndarray, lookahead: int) -> Batch:
    """Make a batch of some `utterance_rows` of a window: [N, 3]."""
    utterance, start, length = torch.from_numpy(group).unbind(1)
    longest = int(length.max())
    inputs, rows = window.cut(utterance, start, 0, longest, lookahead)
    return window.batch(
        rows,
        ids=[window.names[u] for u in utterance.tolist()],
        inputs=inputs,
        weights=(torch.arange(longest) < length[:, None]).float(),
        lengths=length.clone(),
        frames=int(length.sum()),
    )
