"""The state of causal mean normalisation between the utterances of a speaker (C17)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CmnState:
    """Number and sum of the frames of a speaker's earlier utterances (C17).

    Frames of digital silence do not count: see `toolkit.features.silence`.
    """

    frames: int
    """Number of frames that count."""
    sum: Tensor
    """[F] float64: sum of these frames."""

    @classmethod
    def empty(cls, dimension: int) -> "CmnState":
        """Return the state before a speaker's first utterance."""
        return cls(0, torch.zeros(dimension, dtype=torch.float64))

    def after(self, features: Tensor, counted: Tensor) -> "CmnState":
        """Return the state after one more utterance.

        Args:
          features: [T, F] raw.
          counted: [T] which frames count, see `toolkit.features.silence.counted_frames`.
        """
        total = features[counted].sum(dim=0, dtype=torch.float64).cpu()
        return CmnState(self.frames + int(counted.sum()), self.sum + total)
