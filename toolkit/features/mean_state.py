"""The running mean of a speaker's features: what earlier utterances left behind (C17)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MeanState:
    """What a speaker's earlier utterances left behind for the running mean (C17)."""

    frames: int
    """Number of frames so far."""
    sum: Tensor
    """[F] float64: their sum."""

    @classmethod
    def empty(cls, dimension: int) -> "MeanState":
        """Make the state before a speaker's first utterance."""
        return cls(0, torch.zeros(dimension, dtype=torch.float64))

    def after(self, features: Tensor) -> "MeanState":
        """Make the state after one more utterance of raw features [T, F]."""
        total = features.sum(dim=0, dtype=torch.float64).cpu()
        return MeanState(self.frames + len(features), self.sum + total)
