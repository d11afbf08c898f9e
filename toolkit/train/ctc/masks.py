"""SpecAugment and other vocal tracts, for batches of whole utterances at the full frame rate."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from toolkit.config.settings import older_runs
from toolkit.parallel.strategy import BatchSource
from toolkit.train.ctc.batch import CtcBatch
from toolkit.train.ctc.vocal_tract import KNEE, warp_mel
from toolkit.train.specaugment import SpecAugmentConfig, SpecAugmented, draw_masks

FRAME_SHIFT = 0.01  # seconds


@dataclass(frozen=True)
class UtteranceMaskConfig(SpecAugmentConfig):
    """What batches are changed by, in frames of 10 ms; by nothing by default."""

    time_width: int = 15
    """Largest width of a time mask in frames of 10 ms; widths are drawn from 0 to this."""
    mel_bins: int = 80
    """Number of first columns to which frequency masks apply; cepstra beside them (A1) are not
    masked, and tell what is under the masks."""
    cepstra: float = field(default=0.0, metadata=older_runs(0.0))
    """Probability that the columns after `mel_bins`, the cepstra, are masked in an utterance."""
    warp: float = field(default=0.0, metadata=older_runs(0.0))
    """Largest change of an utterance's frequencies (vocal tract length perturbation), drawn evenly
    from both directions; 0.1 is 10 %. Cepstra stay as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mel_bins < 1:
            raise ValueError(f"mel_bins is {self.mel_bins}, needs to be at least 1")
        if not 0 <= self.cepstra <= 1:
            raise ValueError(f"cepstra is {self.cepstra}, needs to be in [0, 1]")
        if not 0 <= self.warp < 1 / KNEE - 1:
            raise ValueError(f"warp is {self.warp}, needs to be in [0, {1 / KNEE - 1:g})")
        if self.warp and self.mel_bins < 2:
            raise ValueError("warp needs at least 2 mel_bins")

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return super().active or self.cepstra > 0 or self.warp > 0


EDGES = (20.0, 8000.0)
"""Lower edge of the first and upper edge of the last mel filter in Hz: those of the front end at
16 kHz."""


class MaskedUtterances(SpecAugmented):
    """A source of `CtcBatch` whose batches are masked and warped, see `SpecAugmented`.

    Args:
      data, config, seed, views: see there.
      edges: those of the mel filters, for `config.warp`.
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
        config, frames = self._config, batch.inputs.shape[1]
        bins = min(config.mel_bins, batch.inputs.shape[2])
        lengths = batch.input_lengths.numpy()
        masked_bins, masked_frames = draw_masks(
            lengths, lengths * FRAME_SHIFT, frames, bins, config, rng
        )
        inputs, cepstra = batch.inputs, np.zeros(len(lengths), dtype=bool)
        if config.cepstra:
            cepstra = rng.random(len(lengths)) < config.cepstra
        if config.warp:
            factors = 1 + config.warp * rng.uniform(-1, 1, len(lengths))
            inputs = warp_mel(inputs, torch.from_numpy(factors), bins, self._edges)
        masked_cepstra = torch.from_numpy(cepstra)[:, None].expand(-1, inputs.shape[2] - bins)
        columns = torch.cat([masked_bins, masked_cepstra], dim=1)
        mask = columns[:, None, :] | masked_frames[:, :, None]
        return replace(batch, inputs=inputs.masked_fill(mask, 0.0))
