"""Lattices with their acoustic, graph and word scores apart, to be weighted anew."""

from dataclasses import dataclass
from pathlib import Path

import k2
import torch
from torch import Tensor

from toolkit.config.convert import read_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.decoding_graph import count_words
from toolkit.fsa.search import BestPath, best_path


class WeightsError(ToolkitError):
    """A file of weights that cannot be read."""


@dataclass(frozen=True)
class Weights:
    """Weights of the acoustic model and the word count against the language model."""

    acoustic_scale: float
    """Factor on acoustic log-likelihoods (kappa, C2)."""
    word_penalty: float = 0.0
    """Added per word; negative means fewer words."""

    @classmethod
    def load(cls, path: Path) -> "Weights":
        """Read the `tuned.json` of a decode.

        Raises:
          WeightsError: naming the file.
        """
        return read_plain(path, cls, WeightsError, "decode again")


def acoustic_scores(lattice: k2.Fsa, scores: Tensor) -> Tensor:
    """[arcs] the acoustic part of each arc's score.

    Args:
      lattice: from `search_lattice` with the same `scores`.
      scores: [T, P] scaled log-likelihoods.
    """
    emitting = lattice.labels > 0
    acoustic = torch.zeros_like(lattice.scores)
    rows = lattice.frame[emitting].long()
    acoustic[emitting] = scores[rows, lattice.labels[emitting].long() - 1]
    return acoustic


class ScoredLattice:
    """A lattice whose acoustic and graph scores are apart, to be weighted in several ways.

    Args:
      lattice: from `search_lattice`, or rescored by `rescore_lattice`.
      scores: [T, P] the scores it was searched with.
      scale: the acoustic scale in `scores`.
    """

    def __init__(self, lattice: k2.Fsa, scores: Tensor, scale: float) -> None:
        acoustic = acoustic_scores(lattice, scores)
        self.lattice = lattice
        self.acoustic = acoustic / scale
        self.graph = lattice.scores - acoustic
        self.words = count_words(lattice)

    def weighted(self, weights: Weights) -> k2.Fsa:
        """The lattice with the scores that `weights` give its arcs."""
        # A clone, because k2 keeps scores inside the memory of the arcs.
        weighted = k2.Fsa(self.lattice.arcs.clone(), aux_labels=self.lattice.aux_labels)
        weighted.scores = (
            self.graph + self.acoustic * weights.acoustic_scale + self.words * weights.word_penalty
        )
        return weighted

    def best_path(self, weights: Weights) -> BestPath:
        """The best path under `weights`."""
        return best_path(self.weighted(weights))

    def best_words(self, weights: Weights) -> list[int]:
        """The word ids of the best path under `weights`."""
        path = k2.shortest_path(self.weighted(weights), use_double_scores=True)
        return [word for word in path.aux_labels.values.tolist() if word > 0]
