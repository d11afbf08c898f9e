"""Lattices with their acoustic, graph and word scores apart, to be weighted anew."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from toolkit.config.fields import read_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.best_path import BestPath, best_arcs, path_of
from toolkit.fsa.fst import Lattice


class WeightsError(ToolkitError):
    """A file of weights that cannot be read."""


@dataclass(frozen=True, order=True)
class Weights:
    """Weights of the acoustic model and the word count against the language model."""

    acoustic_scale: float
    """Factor on acoustic log-likelihoods (kappa, C2)."""
    word_penalty: float = 0.0
    """Added per word; negative means fewer words."""

    def __post_init__(self) -> None:
        if not 0 < self.acoustic_scale < math.inf:
            scale = self.acoustic_scale
            raise ValueError(f"acoustic_scale is {scale}, needs to be positive and finite")
        if not math.isfinite(self.word_penalty):
            raise ValueError(f"word_penalty is {self.word_penalty}, needs to be finite")

    @classmethod
    def load(cls, path: Path) -> "Weights":
        """Read the `tuned.json` of a decode.

        Raises:
          WeightsError: naming the file.
        """
        return read_plain(path, cls, WeightsError, "decode again")


def acoustic_scores(lattice: Lattice, scores: Tensor) -> np.ndarray:
    """[arcs] the acoustic part of each arc's score.

    Args:
      lattice: from `search_lattice` with the same `scores`.
      scores: [T, P] scaled log-likelihoods.
    """
    emitting = lattice.labels > 0
    acoustic = np.zeros_like(lattice.scores)
    rows = scores.detach().cpu().numpy()
    acoustic[emitting] = rows[lattice.frame[emitting], lattice.labels[emitting] - 1]
    return acoustic


@dataclass(frozen=True, eq=False)
class ScoredLattice:
    """A lattice whose acoustic and graph scores are apart, to be weighted in several ways."""

    lattice: Lattice
    """The paths."""
    acoustic: np.ndarray
    """[A] float32, unscaled."""
    graph: np.ndarray
    """[A] float32."""

    @classmethod
    def of(cls, lattice: Lattice, scores: Tensor, scale: float) -> "ScoredLattice":
        """Take the scores of a lattice apart.

        Args:
          lattice: from `search_lattice`, or rescored by `rescore_lattice`.
          scores: [T, P] the scores it was searched with.
          scale: the acoustic scale in `scores`.
        """
        acoustic = acoustic_scores(lattice, scores)
        return cls(lattice, acoustic / np.float32(scale), lattice.scores - acoustic)

    def weighted(self, weights: Weights) -> np.ndarray:
        """[arcs] float32, the scores that `weights` give the arcs."""
        scale, penalty = np.float32(weights.acoustic_scale), np.float32(weights.word_penalty)
        return self.graph + self.acoustic * scale + self.lattice.word_counts * penalty

    def best_path(self, weights: Weights) -> BestPath:
        """The best path under `weights`."""
        lattice, scores = self.lattice, self.weighted(weights)
        arcs = best_arcs(lattice.source, lattice.target, scores, lattice.num_states)
        return path_of(lattice, arcs, float(scores[arcs].sum(dtype=np.float64)))

    def best_words(self, weights: Weights) -> list[int]:
        """The word ids of the best path under `weights`."""
        return self.best_path(weights).words
