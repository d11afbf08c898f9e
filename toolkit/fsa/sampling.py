"""Paths of a lattice in proportion to their posteriors."""

import numpy as np
from numba import njit

from toolkit.fsa.fst import Lattice

Array = np.ndarray


def sampled_arcs(lattice: Lattice, scores: Array, count: int) -> Array:
    """The arcs of `count` paths, [count, T + 1] int64.

    Systematic sampling: with the paths in order of their arcs, the probability mass is divided into
    `count` equal parts, and the path in the middle of each is taken. Less variance than independent
    draws, and the same paths in every call.

    Args:
      lattice: of one utterance.
      scores: [A] of its arcs.
      count: number of paths; a path of large posterior is among them several times.
    """
    arcs = int(lattice.frame[-1]) + 1
    return _sample(lattice.first, lattice.target, scores.astype(np.float64), count, arcs)


@njit(nogil=True, cache=True)
def _sample(first: Array, target: Array, scores: Array, count: int, length: int) -> Array:
    states = len(first) - 1
    rest = np.full(states, -np.inf)  # log of the summed weights from each state to the end
    rest[states - 1] = 0.0
    for state in range(states - 2, -1, -1):
        arcs = range(first[state], first[state + 1])
        best = -np.inf
        for a in arcs:
            best = max(best, scores[a] + rest[target[a]])
        total = 0.0
        for a in arcs:
            total += np.exp(scores[a] + rest[target[a]] - best)
        rest[state] = best + np.log(total)
    paths = np.empty((count, length), np.int64)
    for n in range(count):
        left, state = (n + 0.5) / count, 0
        for step in range(length):
            chosen, share = first[state], 0.0
            for a in range(first[state], first[state + 1]):
                mine = np.exp(scores[a] + rest[target[a]] - rest[state])
                if mine > 0:
                    chosen, share = a, mine
                    if left < share:
                        break
                    left -= share
            left = min(left / share, 1.0)
            paths[n, step], state = chosen, target[chosen]
    return paths
