"""SpecAugment for batches of whole utterances at the full frame rate."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.specaugment import SpecAugmentConfig, SpecAugmented, draw_masks

FRAME_SHIFT = 0.01  # seconds


@dataclass(frozen=True)
class UtteranceMaskConfig(SpecAugmentConfig):
    """How much is masked of frames of 10 ms; nothing by default."""

    time_width: int = 15
    """Widest time mask in frames of 10 ms; each is 0 to this wide."""
    mel_bins: int = 80
    """The first columns, which frequency masks are of; cepstra beside them (A1) stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mel_bins < 1:
            raise ValueError(f"mel_bins is {self.mel_bins}, needs to be at least 1")


class MaskedUtterances(SpecAugmented):
    """A source of `CtcBatch` whose batches are masked, see `SpecAugmented`."""

    def _masked(self, batch: CtcBatch, chance: np.random.Generator) -> CtcBatch:
        config, frames = self._config, batch.inputs.shape[1]
        bins = min(config.mel_bins, batch.inputs.shape[2])
        heard = batch.input_lengths.numpy()
        hidden, hidden_frames = draw_masks(heard, heard * FRAME_SHIFT, frames, bins, config, chance)
        others = torch.zeros(len(heard), batch.inputs.shape[2] - bins, dtype=torch.bool)
        columns = torch.cat([hidden, others], dim=1)
        mask = columns[:, None, :] | hidden_frames[:, :, None]
        return replace(batch, inputs=batch.inputs.masked_fill(mask, 0.0))
