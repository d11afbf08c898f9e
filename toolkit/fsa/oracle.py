"""The path of a word lattice that is nearest to the reference: its errors are the oracle's."""

from collections.abc import Sequence

import numpy as np
from numba import njit

from toolkit.fsa.word_lattice import NO_WORD, WordLattice


def oracle_words(lattice: WordLattice, reference: Sequence[int]) -> list[int]:
    """The words of the path with the smallest edit distance from a reference, exactly.

    Work grows with arcs times reference words. Kaldi's lattice-oracle.

    Args:
      lattice: of one utterance.
      reference: word ids; an id that the lattice does not have, such as -1, is never right.
    """
    words = np.array(reference, np.int64)
    columns = np.int64(lattice.source), np.int64(lattice.target), np.int64(lattice.words)
    path = _nearest(*columns, lattice.num_states, words)
    found = lattice.words[path[::-1]]
    return found[found != NO_WORD].tolist()


@njit(nogil=True, cache=True)
def _nearest(
    source: np.ndarray, target: np.ndarray, words: np.ndarray, states: int, reference: np.ndarray
) -> np.ndarray:  # pragma: no cover (compiled)
    """The arcs of the nearest path, from the last to the first."""
    size = len(reference) + 1
    errors = np.full((states, size), len(source) + size)
    entry = np.full((states, size), -1)  # the arc into the state
    taken = np.zeros((states, size), np.int64)  # reference words before that arc
    errors[0] = np.arange(size)
    place = 0  # arcs into a state have all come before those out of it
    for state in range(states):
        for r in range(1, size):  # reference words that no arc says
            if errors[state, r - 1] + 1 < errors[state, r]:
                errors[state, r] = errors[state, r - 1] + 1
                entry[state, r], taken[state, r] = entry[state, r - 1], taken[state, r - 1]
        while place < len(source) and source[place] == state:
            to, word = target[place], words[place]
            for r in range(size):
                cost = errors[state, r] + (word != 0)
                if cost < errors[to, r]:
                    errors[to, r], entry[to, r], taken[to, r] = cost, place, r
                if word != 0 and r + 1 < size:
                    cost = errors[state, r] + (word != reference[r])
                    if cost < errors[to, r + 1]:
                        errors[to, r + 1], entry[to, r + 1], taken[to, r + 1] = cost, place, r
            place += 1
    path = np.empty(states, np.int64)
    state, r, count = states - 1, size - 1, 0
    while state > 0:
        arc = entry[state, r]
        path[count] = arc
        count += 1
        r = taken[state, r]
        state = source[arc]
    return path[:count]
