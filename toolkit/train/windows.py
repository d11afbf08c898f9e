"""Shards of a corpus in windows that fit into memory: the upper level of the shuffle."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, centre, stack
from toolkit.train.batches import Batch
from toolkit.train.corpus import Corpus, Utterance

OFFSETS = LOW_RATE_FACTOR
"""Raw frames per low-rate frame; epoch e starts at raw frame e % 3 (C7)."""


@dataclass(frozen=True)
class Stacked:
    """The concatenated utterances of a window, with frames stacked at one offset."""

    names: list[str]
    """[U] utterance ids."""
    inputs: Tensor
    """[sum of T', D] float16."""
    targets: Tensor
    """[sum of T'] int32."""
    first: np.ndarray
    """[U] row of each utterance's first frame."""
    length: np.ndarray
    """[U] number of frames T' of each utterance."""

    def cut(
        self, utterance: Tensor, start: Tensor, before: int, after: int, lookahead: int
    ) -> tuple[Tensor, Tensor]:
        """Cut pieces out of utterances; beyond an end the frame there is repeated.

        Args:
          utterance: [N] index of the utterance.
          start: [N] frame in the utterance.
          before: number of frames before `start`.
          after: number of frames from `start` on.
          lookahead: number of further frames, of the input only.

        Returns:
          inputs: [N, before + after + lookahead, D] float32.
          rows: [N, before + after] int64, indices of the frames, for their targets.
        """
        first = torch.from_numpy(self.first)[utterance]
        last = torch.from_numpy(self.length)[utterance] - 1
        positions = start[:, None] + torch.arange(-before, after + lookahead)
        rows = first[:, None] + positions.clamp(min=0).minimum(last[:, None])
        inputs = self.inputs.index_select(0, rows.view(-1)).view(*rows.shape, -1)
        return inputs.float(), rows[:, : before + after]

    def batch(self, rows: Tensor, **given: Any) -> Batch:
        """Make a batch with the targets of `rows` [N, T]; its other fields are given."""
        return Batch(targets=self.targets[rows].long(), **given)


class Windows:
    """The shards of each epoch, in an order that is a function of (seed, epoch), cut into windows.

    A corpus that fits into one window is loaded once and kept in memory.

    Args:
      corpus: the training corpus.
      frames: raw frames (10 ms) per window; a shard with more is a window of its own.
      seed: of the order.
    """

    def __init__(self, corpus: Corpus, frames: int, seed: int) -> None:
        self._corpus = corpus
        self._room = frames
        self._seed = seed
        self._frames = [sum(u.frames for u in shard) for shard in corpus.shards]
        self._resident: list[tuple[Tensor, Tensor]] | None = None

    def of(self, epoch: int) -> list[list[Utterance]]:
        """Return the utterances of each window of an epoch, in stored order within a shard."""
        return [
            [utterance for shard in shards for utterance in self._corpus.shards[shard]]
            for shards in self._shards(epoch)
        ]

    def stacked(self, utterances: Sequence[Utterance], offset: int) -> Stacked:
        """Read a window that `of` returned, stacked at an offset."""
        if not self._fits:
            return _stacked(utterances, map(self._corpus.load, utterances), offset)
        if self._resident is None:
            self._resident = [self._corpus.load(u) for u in utterances]
        return _stacked(utterances, self._resident, offset)

    def _shards(self, epoch: int) -> list[list[int]]:
        if self._fits:
            return [list(range(len(self._frames)))]
        windows: list[list[int]] = [[]]
        room = self._room
        for shard in np.random.default_rng([self._seed, epoch]).permutation(len(self._frames)):
            if windows[-1] and self._frames[shard] > room:
                windows.append([])
                room = self._room
            windows[-1].append(int(shard))
            room -= self._frames[shard]
        return windows

    @property
    def _fits(self) -> bool:
        return sum(self._frames) <= self._room


def low_rate_lengths(utterances: Iterable[Utterance], offset: int) -> np.ndarray:
    """Return the numbers of low-rate frames of utterances at an offset: [U] int64."""
    raw = np.array([u.frames for u in utterances], dtype=np.int64)
    return np.maximum(0, -((offset - raw) // OFFSETS))


def pieces(lengths: np.ndarray, frames: int | np.ndarray) -> np.ndarray:
    """Cut utterances into pieces of `frames` frames (a number, or [U]); the last may be shorter.

    Returns:
      [pieces, 2] int64: index of the utterance, first frame in it.
    """
    counts = -(-lengths // frames)
    utterance = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(utterance)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([utterance, number * np.broadcast_to(frames, len(counts))[utterance]], axis=1)


def _stacked(
    utterances: Sequence[Utterance], loaded: Iterable[tuple[Tensor, Tensor]], offset: int
) -> Stacked:
    length = low_rate_lengths(utterances, offset)
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
    return Stacked([u.name for u in utterances], inputs, targets, first, length)
