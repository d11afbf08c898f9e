"""Scorers: the interface of acoustic models to alignment and decoding."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from torch import Tensor

from toolkit.align.gmm.system import GmmSystem
from toolkit.features.gmm_features import GmmFeaturesError, load_transforms
from toolkit.features.store import FeatureStore
from toolkit.fsa.frame_rows import FrameScores
from toolkit.hmm.demand import DemandedScores


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

    def scores_of(self, utterance: str, pdfs: Tensor) -> FrameScores:
        """The columns `pdfs` of these, [T, len(pdfs)], for a search that may read a few."""


@dataclass
class GmmScorer:
    """A GMM system over stored cepstra, 100 frames per second."""

    model: Path
    """The system's folder, see `GmmSystem.save`."""
    features: Path
    """A feature store of cepstra."""
    transforms: Path | None = None
    """The speakers' fMLLR transforms, for a system trained with them."""
    frame_shift: float = 0.01
    """Seconds between frames."""

    @cached_property
    def _system(self) -> GmmSystem:
        system = GmmSystem.load(self.model, self.features)
        wanted, found = system.cepstra, system.features.store.dimension
        if found != wanted:
            raise GmmFeaturesError(
                f"{self.features}: {found:g} values a frame, where {self.model} models"
                f" {wanted:g}: give the cepstra of its run, such as plp/dev"
            )
        if self.transforms is None:
            return system
        transforms, dimension = load_transforms(self.transforms), system.gmm.means.shape[1]
        for speaker, transform in transforms.items():
            if transform.shape != (dimension, dimension + 1):
                raise GmmFeaturesError(
                    f"{self.transforms}: the transform of {speaker} is {list(transform.shape)},"
                    f" {self.model} models {dimension} dimensions: estimate the transforms again"
                )
        return system.adapted(transforms)

    @property
    def store(self) -> FeatureStore:
        """The features that are scored."""
        return self._system.features.store

    def log_likelihoods(self, utterance: str) -> Tensor:
        """Log-densities of every pdf: [T, P]."""
        return self._system.gmm.log_likelihoods(self._system.features.load(utterance))

    def scores_of(self, utterance: str, pdfs: Tensor) -> DemandedScores:
        """Log-densities of these pdfs, computed where they are read: [T, len(pdfs)]."""
        return DemandedScores(self._system.gmm, self._system.features.load(utterance), pdfs)

    def __getstate__(self) -> dict:
        """Pickle the paths, without what was loaded from them."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}
