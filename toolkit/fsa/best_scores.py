"""Best scores from the start and to the end of an acyclic transducer (tropical semiring)."""

import numpy as np
from numba import njit

from toolkit.fsa.fst import Fst


def forward_scores(fst: Fst) -> np.ndarray:
    """[states] float64: the best score of a path from the start to each state.

    Args:
      fst: its states are numbered in topological order, as those of lattices are.

    Returns:
      -inf where no path leads.
    """
    best = np.full(fst.num_states, -np.inf)
    best[:1] = 0.0
    _forward(fst.source, fst.target, fst.scores, best)
    return best


def backward_scores(fst: Fst) -> np.ndarray:
    """[states] float64: the best score of a path from each state to the end.

    Args:
      fst: see `forward_scores`.

    Returns:
      -inf where no path leads to the end.
    """
    best = np.full(fst.num_states, -np.inf)
    best[-1:] = 0.0
    _backward(fst.source, fst.target, fst.scores, best)
    return best


@njit(cache=True, nogil=True)
def _forward(source: np.ndarray, target: np.ndarray, scores: np.ndarray, best: np.ndarray) -> None:
    for a in range(len(source)):
        score = best[source[a]] + np.float64(scores[a])
        best[target[a]] = max(best[target[a]], score)


@njit(cache=True, nogil=True)
def _backward(source: np.ndarray, target: np.ndarray, scores: np.ndarray, best: np.ndarray) -> None:
    for a in range(len(source) - 1, -1, -1):
        score = best[target[a]] + np.float64(scores[a])
        best[source[a]] = max(best[source[a]], score)
