"""Frame-by-frame traversal of a lattice, in numpy."""

import k2
import numpy as np

from toolkit.fsa.arcs import FINAL


class LatticeTraversal:
    """The arcs of a lattice as arrays, with the arcs that leave a set of states.

    Args:
      lattice: of one utterance, as dense search gives it: arcs sorted by source, and every arc
        leads from the states of one frame to those of the next.
    """

    def __init__(self, lattice: k2.Fsa) -> None:
        arcs = lattice.arcs.values()[:, :3].numpy()
        self.target = arcs[:, 1].astype(np.int64)
        self.final = arcs[:, 2] == FINAL
        states = int(self.target.max()) + 1
        self._first = np.searchsorted(arcs[:, 0], np.arange(states + 1))
        splits = lattice.aux_labels.shape.row_splits(1).numpy().astype(np.int64)
        values = lattice.aux_labels.values.numpy()
        before = np.concatenate([[0], np.cumsum(values > 0)])
        self.splits, self.words = before[splits], values[values > 0]

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
