"""Traversal of lattices, in numpy."""

import numpy as np

from toolkit.fsa.fst import FINAL, Lattice


def in_order(source: np.ndarray, target: np.ndarray, num_states: int) -> bool:
    """Whether arcs [A] are sorted by source, lead to later states, and pass each of S states."""
    ordered = (np.diff(source) >= 0).all() and (source >= 0).all() and (target > source).all()
    states = np.union1d(source, target)
    return bool(ordered and len(states) == num_states == states.max(initial=-1) + 1)


class LatticeTraversal:
    """The arcs of a lattice, with those that leave a set of states.

    Args:
      lattice: of one utterance, as dense search gives it: arcs sorted by source, and every arc
        leads from the states of one frame to those of the next.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.target = lattice.target.astype(np.int64)
        self.final = lattice.labels == FINAL
        self._first = lattice.first.astype(np.int64)
        self.splits, self.words = lattice.splits, lattice.words

    def out_arcs(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The arcs that leave `states`: for each the position of its state there, and its index."""
        degrees = self._first[states + 1] - self._first[states]
        source = np.repeat(np.arange(len(states)), degrees)
        within = np.arange(len(source)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        return source, self._first[states][source] + within

    def output_words(self, arc: np.ndarray) -> "list[tuple[np.ndarray, np.ndarray]]":
        """The words on arcs: (positions in `arc`, word ids) of the first, of the second, ..."""
        begin, end = self.splits[arc], self.splits[arc + 1]
        steps = []
        while True:
            writing = np.flatnonzero(begin < end)
            if not len(writing):
                return steps
            steps.append((writing, self.words[begin[writing]]))
            begin = begin + 1
