"""SpecAugment for batches of whole utterances at the full frame rate."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.specaugment import SpecAugmentConfig, SpecAugmented, draw_masks

FRAME_SHIFT = 0.01  # seconds


@dataclass(frozen=True)
class UtteranceMaskConfig(SpecAugmentConfig):
    """SpecAugment masks of frames of 10 ms; none by default."""

    time_width: int = 15
    """Largest width of a time mask in frames of 10 ms; widths are drawn from 0 to this."""
    mel_bins: int = 80
    """Number of first columns to which frequency masks apply; cepstra beside them (A1) are not
    masked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mel_bins < 1:
            raise ValueError(f"mel_bins is {self.mel_bins}, needs to be at least 1")


class MaskedUtterances(SpecAugmented):
    """A source of `CtcBatch` whose batches are masked, see `SpecAugmented`."""

    def _view(self, batch: CtcBatch, rng: np.random.Generator) -> CtcBatch:
        config, frames = self._config, batch.inputs.shape[1]
        bins = min(config.mel_bins, batch.inputs.shape[2])
        lengths = batch.input_lengths.numpy()
        masked_bins, masked_frames = draw_masks(
            lengths, lengths * FRAME_SHIFT, frames, bins, config, rng
        )
        unmasked = torch.zeros(len(lengths), batch.inputs.shape[2] - bins, dtype=torch.bool)
        columns = torch.cat([masked_bins, unmasked], dim=1)
        mask = columns[:, None, :] | masked_frames[:, :, None]
        return replace(batch, inputs=batch.inputs.masked_fill(mask, 0.0))
