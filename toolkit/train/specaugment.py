"""SpecAugment: bands of time and frequency of training batches replaced by the mean."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from toolkit.features.lfr import LOW_RATE_FACTOR
from toolkit.parallel.batch import Batch, DataSource

_SUBSTREAM = 0x5BEC
"""Keeps the masks' random numbers apart from those of the order, which have the same seed."""


@dataclass(frozen=True)
class SpecAugmentConfig:
    """How much is masked; nothing by default, as in the paper.

    Frequency masks are for spectra: of other features, such as those of speaker-adapted GMMs, they
    would hide neighbouring dimensions that have nothing in common.
    """

    frequency_masks: int = 0
    """Masks of each row, the same for all its frames; 2 are common."""
    frequency_width: int = 12
    """Widest frequency mask in mel bins; each is 0 to this wide."""
    time_masks: float = 0.0
    """Masks per second of a row, on average; 1 is a start for chunks of a second."""
    time_width: int = 5
    """Widest time mask in low-rate frames (30 ms); each is 0 to this wide."""

    def __post_init__(self) -> None:
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")

    @property
    def active(self) -> bool:
        """Whether anything is masked."""
        return self.frequency_masks * self.frequency_width > 0 or (
            self.time_masks * self.time_width > 0
        )


class SpecAugmented:
    """A source whose batches are masked; which parts follows from (seed, epoch, step, rank).

    Masked values are 0, the mean after normalisation. A frequency mask hides the same mel bins in
    the three stacked frames. Rows are masked up to their own end, so that padding has no part.

    Args:
      data: batches of stacked frames, [N, T + lookahead, 3 F].
      config: how much.
      seed: of the masks.
    """

    def __init__(self, data: DataSource, config: SpecAugmentConfig, seed: int) -> None:
        self._data = data
        self._config = config
        self._seed = seed

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """See `DataSource`."""
        return self._data.steps(epoch, ranks)

    def batches(self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """See `DataSource`."""
        source = self._data.batches(epoch, start, rank, ranks)
        for step, batch in enumerate(source, start):
            key = [self._seed, _SUBSTREAM, epoch, step * ranks + rank]
            yield self._masked(batch, np.random.default_rng(key))

    def _masked(self, batch: Batch, chance: np.random.Generator) -> Batch:
        return masked(batch, self._config, chance)


def masked(batch: Batch, config: SpecAugmentConfig, chance: np.random.Generator) -> Batch:
    """Mask a batch on the CPU."""
    _, frames, dimension = batch.inputs.shape
    bins = dimension // LOW_RATE_FACTOR
    heard = batch.lengths.numpy() + frames - batch.targets.shape[1]
    hidden_bins, hidden_frames = draw_masks(
        heard, heard * LOW_RATE_FACTOR / 100, frames, bins, config, chance
    )
    mask = hidden_bins.repeat(1, LOW_RATE_FACTOR)[:, None, :] | hidden_frames[:, :, None]
    return replace(batch, inputs=batch.inputs.masked_fill(mask, 0.0))


def draw_masks(
    heard: np.ndarray,
    seconds: np.ndarray,
    frames: int,
    bins: int,
    config: SpecAugmentConfig,
    chance: np.random.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw what is hidden of the rows of a batch.

    Args:
      heard: [N], real frames of each row.
      seconds: [N], how long these are.
      frames: T.
      bins: F, mel bins.
      config: how much.
      chance: random numbers.

    Returns:
      [N, F] and [N, T] bool.
    """
    rows = len(heard)
    hidden_bins = _bands(
        np.full((rows, config.frequency_masks), bins), config.frequency_width, bins, chance
    )
    counts = np.floor(config.time_masks * seconds + chance.random(rows)).astype(int)
    number = np.arange(counts.max(initial=0))
    room = np.where(number < counts[:, None], heard[:, None], 0)
    return hidden_bins, _bands(room, config.time_width, frames, chance)


def _bands(room: np.ndarray, widest: int, size: int, chance: np.random.Generator) -> torch.Tensor:
    """Draw bands, each within its room from 0 on: [N, M] -> [N, size] bool, their union."""
    width = np.minimum(chance.integers(0, widest + 1, room.shape), room)
    start = np.floor(chance.random(room.shape) * (room - width + 1))
    position = np.arange(size)
    inside = (position >= start[..., None]) & (position < (start + width)[..., None])
    return torch.from_numpy(inside.any(axis=1))
