"""Features of a corpus of noise in memory, where training expects those of a feature store."""

import torch
from torch import Tensor

SHARD = 25
"""Utterances of a shard at most: what is read at a time does not grow with the corpus."""


class NoiseFeatures:
    """The same noise [T, F] for every utterance; also a normaliser, which leaves it as it is."""

    def __init__(self, dimension: int, utterances: int, frames: int) -> None:
        self.ids = [f"utterance-{i}" for i in range(utterances)]
        self.shards = [self.ids[i : i + SHARD] for i in range(0, utterances, SHARD)]
        self._features = torch.randn(frames, dimension)

    def num_frames(self, name: str) -> int:
        """See `FeatureStore`."""
        return len(self._features)

    def load(self, name: str) -> Tensor:
        """See `FeatureStore`."""
        return self._features

    def state(self, name: str) -> None:
        """See `FeatureStore`."""
        return None

    def apply(self, features: Tensor, state: None) -> Tensor:
        """See `Normaliser`."""
        return features
