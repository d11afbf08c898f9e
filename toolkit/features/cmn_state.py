"""The state of causal mean normalisation between the utterances of a speaker (C17)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CmnState:
    """Number and sum of the frames of a speaker's earlier utterances (C17)."""

    frames: int
    """Number of frames."""
    sum: Tensor
    """[F] float64: sum of the frames."""

    @classmethod
    def empty(cls, dimension: int) -> "CmnState":
        """Return the state before a speaker's first utterance."""
        return cls(0, torch.zeros(dimension, dtype=torch.float64))

    def after(self, features: Tensor) -> "CmnState":
        """Return the state after one more utterance of raw features [T, F]."""
        total = features.sum(dim=0, dtype=torch.float64).cpu()
        return CmnState(self.frames + len(features), self.sum + total)
