"""SpecAugment masks, vocal tract length perturbation, and the agreement of two masked views."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.features.frontend import hertz_to_mel, mel_points, mel_to_hertz
from toolkit.parallel.strategy import BatchSource
from toolkit.processes.devices import to_device
from toolkit.train.batches import Batch
from toolkit.train.config import KNEE, SpecAugmentConfig, UtteranceMaskConfig
from toolkit.train.ctc.readers import CtcBatch

_SUBSTREAM = 0x5BEC
"""Separates the masks' random stream from that of the data order, which has the same seed."""
FRAME_SHIFT = 0.01  # seconds
EDGES = (20.0, 8000.0)
"""Lower edge of the first and upper edge of the last mel filter in Hz: those of the front end at
16 kHz."""


def masked(data: BatchSource, config: SpecAugmentConfig, seed: int, views: int = 1) -> BatchSource:
    """Return a source of masked batches, or `data` itself if the configuration masks nothing."""
    return SpecAugmented(data, config, seed, views) if config.active else data


class SpecAugmented:
    """A data source that masks its batches, as a function of (seed, epoch, step, rank).

    Masked values are 0, the mean after normalisation. A frequency mask covers the same mel bins in
    the three stacked frames. Time masks lie within the row's own length, without its padding.

    Args:
      data: batches of stacked frames, [N, T + lookahead, 3 F].
      config: number and width of the masks.
      seed: seed of the masks.
      views: number of differently masked views of each row in a batch; with more than one, batches
        need `of_views`.
    """

    def __init__(
        self, data: BatchSource, config: SpecAugmentConfig, seed: int, views: int = 1
    ) -> None:
        self._data = data
        self._config = config
        self._seed = seed
        self._views = views

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        return self._data.num_steps(epoch, world_size)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Implement `BatchSource.batches`."""
        source = self._data.batches(epoch, start, rank, world_size)
        for step, batch in enumerate(source, start):
            key = [self._seed, _SUBSTREAM, epoch, step * world_size + rank]
            yield self._masked(batch, np.random.default_rng(key))

    def _masked(self, batch: Any, rng: np.random.Generator) -> Any:
        """Return a masked batch, with all views if there are several."""
        views = [self._view(batch, rng) for _ in range(self._views)]
        return views[0] if len(views) == 1 else batch.of_views(views)

    def _view(self, batch: Any, rng: np.random.Generator) -> Any:
        """Return the batch with one draw of masks."""
        return mask_batch(batch, self._config, rng)


def mask_batch(batch: Batch, config: SpecAugmentConfig, rng: np.random.Generator) -> Batch:
    """Mask a batch on the CPU."""
    _, frames, dimension = batch.inputs.shape
    bins = dimension // LOW_RATE_FACTOR  # three raw frames of F bins are stacked
    lengths = batch.lengths.numpy() + frames - batch.targets.shape[1]  # [N] with the look-ahead
    masked_bins, masked_frames = draw_masks(
        lengths, lengths * LOW_RATE_FACTOR / 100, frames, bins, config, rng
    )
    # [N, 1, 3 F] or [N, T, 1]: the mask of every value
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
    # Random rounding: floor(x + u) with u uniform in [0, 1) has the mean x.
    counts = np.floor(config.time_masks * seconds + rng.random(rows)).astype(int)
    number = np.arange(counts.max(initial=0))
    # [N, M], M the largest number of masks of a row; a row with fewer has some of width 0.
    limits = np.where(number < counts[:, None], lengths[:, None], 0)
    return masked_bins, _bands(limits, config.time_width, frames, rng)


def _bands(limits: np.ndarray, max_width: int, size: int, rng: np.random.Generator) -> torch.Tensor:
    """Draw M bands per row, each within [0, limit): limits [N, M] -> the union [N, size] bool."""
    # As in Park et al. 2019: a width from 0 to `max_width`, then a start from 0 to limit - width.
    width = np.minimum(rng.integers(0, max_width + 1, limits.shape), limits)
    start = np.floor(rng.random(limits.shape) * (limits - width + 1))
    position = np.arange(size)
    # [N, M, size]: whether a position is inside a band of a row
    inside = (position >= start[..., None]) & (position < (start + width)[..., None])
    return torch.from_numpy(inside.any(axis=1))


def warp_mel(inputs: Tensor, factors: Tensor, bins: int, edges: tuple[float, float]) -> Tensor:
    """Move the spectrum of each row along the frequency axis, as another vocal tract would.

    The paper computes the filters again; here the log energies are interpolated. A bin gets the
    value at the new place of its centre, interpolated linearly between the two nearest centres. If
    the new place lies beyond the first or last centre, the value is that of the first or last bin.

    Args:
      inputs: [N, T, D], of which the first `bins` columns are log energies of mel filters in order,
        normalised or not: a mean and variance of each bin move with them.
      factors: [N], below 1 / `KNEE`. A bin gets the value at this multiple of its frequency: above
        1 the spectrum shifts down; 1 changes nothing.
      bins: number of filters.
      edges: lower edge of the first and upper edge of the last filter in Hz.

    Returns:
      [N, T, D]; columns after `bins` are those of the inputs.
    """
    low, high = edges
    points = mel_points(bins, low, high)
    centres = mel_to_hertz(points[1:-1])  # [F]
    factors = factors.double()[:, None]  # [N, 1]
    # Two straight lines that meet at the knee: through 0 with the factor, and on to (high, high).
    slope = (high - factors * KNEE * high) / (high - KNEE * high)
    moved = torch.where(centres < KNEE * high, factors * centres, high - slope * (high - centres))
    # [N, F] the new places in bins, since centres are equally far apart in mel
    place = (hertz_to_mel(moved) - points[1]) / (points[2] - points[1])
    place = place.clamp(0, bins - 1)
    # Linear interpolation between the bins `lower` and `lower` + 1
    lower = place.long().clamp(max=bins - 2)
    fraction = (place - lower).to(inputs.dtype)[:, None]
    lower = lower[:, None].expand(-1, inputs.shape[1], -1)
    energies = inputs[..., :bins]
    warped = torch.lerp(energies.gather(2, lower), energies.gather(2, lower + 1), fraction)
    return torch.cat([warped, inputs[..., bins:]], dim=2)


class MaskedUtterances(SpecAugmented):
    """A source of `CtcBatch` whose batches are masked and warped, see `SpecAugmented`.

    Args:
      data, config, seed, views: see `SpecAugmented`.
      edges: lower and upper edge of the mel filters, for `config.warp`.
    """

    def __init__(
        self,
        data: BatchSource,
        config: UtteranceMaskConfig,
        seed: int,
        views: int = 1,
        edges: tuple[float, float] = EDGES,
    ) -> None:
        super().__init__(data, config, seed, views)
        self._edges = edges

    def _view(self, batch: CtcBatch, rng: np.random.Generator) -> CtcBatch:
        """Return the batch with one draw of masks and frequency warping."""
        config, frames = self._config, batch.inputs.shape[1]
        bins = min(config.mel_bins, batch.inputs.shape[2])
        lengths = batch.input_lengths.numpy()
        masked_bins, masked_frames = draw_masks(
            lengths, lengths * FRAME_SHIFT, frames, bins, config, rng
        )
        inputs, cepstra = batch.inputs, np.zeros(len(lengths), dtype=bool)  # [N]: are masked
        if config.cepstra:
            cepstra = rng.random(len(lengths)) < config.cepstra
        if config.warp:
            factors = 1 + config.warp * rng.uniform(-1, 1, len(lengths))
            inputs = warp_mel(inputs, torch.from_numpy(factors), bins, self._edges)
        # [N, D]: masked columns, all cepstra of a row or none
        masked_cepstra = torch.from_numpy(cepstra)[:, None].expand(-1, inputs.shape[2] - bins)
        columns = torch.cat([masked_bins, masked_cepstra], dim=1)
        mask = columns[:, None, :] | masked_frames[:, :, None]
        return replace(batch, inputs=inputs.masked_fill(mask, 0.0))


def view_divergence(log_probs: Tensor, lengths: Tensor) -> Tensor:
    """Compute the divergence between the outputs for two views of each utterance.

    Args:
      log_probs: [2 N, T, C], rows n and n + N for the same utterance.
      lengths: [2 N] int64 on the CPU, the same for both views.

    Returns:
      The sum over rows and valid frames of KL(other view || row). Its gradient goes into the row
      alone, as if the other view's outputs were fixed targets.
    """
    # The targets of row n are the outputs of row n + N, and the other way around.
    targets = log_probs.detach().roll(len(log_probs) // 2, dims=0)
    by_frame = (targets.exp() * (targets - log_probs)).sum(dim=2)  # KL(targets || row), [2 N, T]
    frames = torch.arange(log_probs.shape[1], device=log_probs.device)
    valid = frames < to_device(lengths, log_probs.device)[:, None]
    return by_frame.masked_fill(~valid, 0).sum()
