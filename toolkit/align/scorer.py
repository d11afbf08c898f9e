"""Acoustic models as alignment and decoding see them: frame scores by utterance."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from torch import Tensor

from toolkit.features.cepstra import SpeakerNormalisedCepstra
from toolkit.features.store import FeatureStore
from toolkit.hmm.gmm import Gmm


class Scorer(Protocol):
    """An acoustic model over stored features.

    It is passed to worker processes, so it holds paths and opens them when first used.
    """

    frame_shift: float
    """Seconds between two rows of the scores."""

    @property
    def store(self) -> FeatureStore:
        """The features that are scored."""

    def log_likelihoods(self, utterance: str) -> Tensor:
        """log p(x_t | pdf) up to a constant per frame: [T, P]."""


@dataclass
class GmmScorer:
    """A GMM over speaker-normalised cepstra with deltas, 100 frames per second."""

    model: Path
    """The folder with `gmm.safetensors`."""
    features: Path
    """A feature store of cepstra."""
    frame_shift: float = 0.01
    """Seconds between frames."""

    @cached_property
    def store(self) -> FeatureStore:
        """The features that are scored."""
        return FeatureStore(self.features)

    @cached_property
    def _gmm(self) -> Gmm:
        return Gmm.load(self.model / "gmm.safetensors")

    @cached_property
    def _cepstra(self) -> SpeakerNormalisedCepstra:
        return SpeakerNormalisedCepstra(self.store)

    def log_likelihoods(self, utterance: str) -> Tensor:
        """Log-densities of every pdf: [T, P]."""
        return self._gmm.log_likelihoods(self._cepstra.load(utterance))
