"""Lattices of one utterance: scores taken apart and weighted anew."""

from dataclasses import dataclass

import k2
import torch
from torch import Tensor

from toolkit.fsa.decoding_graph import count_words
from toolkit.fsa.search import BestPath, best_path


@dataclass(frozen=True)
class Weights:
    """How acoustic model, language model and word count are weighed."""

    acoustic_scale: float
    """Factor on acoustic log-likelihoods (kappa, C2)."""
    word_penalty: float = 0.0
    """Added per word; negative means fewer words."""


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


def reweighted_best_path(
    lattice: k2.Fsa, scores: Tensor, search_scale: float, weights: Weights
) -> BestPath:
    """The best path under other weights than those of the search.

    Args:
      lattice: from `search_lattice`.
      scores: [T, P] the scores it was searched with.
      search_scale: the acoustic scale in `scores`.
      weights: the weights wanted.
    """
    acoustic = acoustic_scores(lattice, scores)
    # A clone, because k2 keeps scores inside the memory of the arcs.
    wanted = k2.Fsa(lattice.arcs.clone(), aux_labels=lattice.aux_labels)
    wanted.scores = (
        lattice.scores
        - acoustic
        + acoustic * (weights.acoustic_scale / search_scale)
        + count_words(lattice) * weights.word_penalty
    )
    return best_path(wanted)
