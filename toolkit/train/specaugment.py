"""SpecAugment: time and frequency masks on training batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.parallel.strategy import BatchSource
from toolkit.train.batches import Batch

_SUBSTREAM = 0x5BEC
"""Separates the masks' random stream from that of the data order, which has the same seed."""


@dataclass(frozen=True)
class SpecAugmentConfig:
    """SpecAugment masks; none by default, as in the paper.

    Frequency masks are for spectra: in other features, such as those of speaker-adapted GMMs,
    neighbouring dimensions have nothing in common.
    """

    frequency_masks: int = 0
    """Number of frequency masks per row, the same for all its frames; 2 are common."""
    frequency_width: int = 12
    """Largest width of a frequency mask in mel bins; widths are drawn from 0 to this."""
    time_masks: float = 0.0
    """Mean number of time masks per second of a row; try 1 for chunks of a second."""
    time_width: int = 5
    """Largest width of a time mask in low-rate frames (30 ms); widths are drawn from 0 to this."""

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
    """A data source that masks its batches, as a function of (seed, epoch, step, rank).

    Masked values are 0, the mean after normalisation. A frequency mask covers the same mel bins in
    the three stacked frames. Time masks lie within the row's own length, without its padding.

    Args:
      data: batches of stacked frames, [N, T + lookahead, 3 F].
      config: number and width of the masks.
      seed: of the masks.
      views: how often each row is in a batch, masked differently; for several, batches need
        `of_views`.
    """

    def __init__(
        self, data: BatchSource, config: SpecAugmentConfig, seed: int, views: int = 1
    ) -> None:
        self._data = data
        self._config = config
        self._seed = seed
        self._views = views

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        return self._data.num_steps(epoch, world_size)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`."""
        source = self._data.batches(epoch, start, rank, world_size)
        for step, batch in enumerate(source, start):
            key = [self._seed, _SUBSTREAM, epoch, step * world_size + rank]
            yield self._masked(batch, np.random.default_rng(key))

    def _masked(self, batch: Any, rng: np.random.Generator) -> Any:
        views = [self._view(batch, rng) for _ in range(self._views)]
        return views[0] if len(views) == 1 else batch.of_views(views)

    def _view(self, batch: Any, rng: np.random.Generator) -> Any:
        return masked(batch, self._config, rng)


def masked(batch: Batch, config: SpecAugmentConfig, rng: np.random.Generator) -> Batch:
    """Mask a batch on the CPU."""
    _, frames, dimension = batch.inputs.shape
    bins = dimension // LOW_RATE_FACTOR
    lengths = batch.lengths.numpy() + frames - batch.targets.shape[1]
    masked_bins, masked_frames = draw_masks(
        lengths, lengths * LOW_RATE_FACTOR / 100, frames, bins, config, rng
    )
    mask = masked_bins.repeat(1, LOW_RATE_FACTOR)[:, None, :] | masked_frames[:, :, None]
    return replace(batch, inputs=batch.inputs.masked_fill(mask, 0.0))


def draw_masks(
    lengths: np.ndarray,
    seconds: np.ndarray,
    frames: int,
    bins: int,
    config: SpecAugmentConfig,
    rng: np.random.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the masks of the rows of a batch.

    Args:
      lengths: [N], number of valid frames of each row.
      seconds: [N], their duration.
      frames: T.
      bins: F, mel bins.
      config: number and width of the masks.
      rng: random number generator.

    Returns:
      Masked mel bins [N, F] and masked frames [N, T], bool.
    """
    rows = len(lengths)
    masked_bins = _bands(
        np.full((rows, config.frequency_masks), bins), config.frequency_width, bins, rng
    )
    counts = np.floor(config.time_masks * seconds + rng.random(rows)).astype(int)
    number = np.arange(counts.max(initial=0))
    room = np.where(number < counts[:, None], lengths[:, None], 0)
    return masked_bins, _bands(room, config.time_width, frames, rng)


def _bands(room: np.ndarray, widest: int, size: int, rng: np.random.Generator) -> torch.Tensor:
    """Draw bands within [0, room): [N, M] -> their union, [N, size] bool."""
    width = np.minimum(rng.integers(0, widest + 1, room.shape), room)
    start = np.floor(rng.random(room.shape) * (room - width + 1))
    position = np.arange(size)
    inside = (position >= start[..., None]) & (position < (start + width)[..., None])
    return torch.from_numpy(inside.any(axis=1))
