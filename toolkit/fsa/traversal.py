"""Frame-by-frame traversal of a lattice, in numpy."""

import numpy as np

from toolkit.fsa.fst import FINAL, Lattice


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
