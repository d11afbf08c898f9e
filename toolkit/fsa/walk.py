"""Walking through a lattice frame by frame, in numpy."""

import k2
import numpy as np

from toolkit.fsa.arcs import FINAL


class Walk:
    """The arcs of a lattice as arrays, and what leaves a set of states.

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
        written = np.concatenate([[0], np.cumsum(values > 0)])
        self.splits, self.words = written[splits], values[values > 0]

    def leaving(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `states` and, for each, an arc that leaves the state."""
        degrees = self._first[states + 1] - self._first[states]
        source = np.repeat(np.arange(len(states)), degrees)
        within = np.arange(len(source)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        return source, self._first[states][source] + within

    def written(self, arc: np.ndarray) -> "list[tuple[np.ndarray, np.ndarray]]":
        """What arcs write, first words first: (positions in `arc`, their word ids) each time."""
        begin, end = self.splits[arc], self.splits[arc + 1]
        steps = []
        while True:
            writing = np.flatnonzero(begin < end)
            if not len(writing):
                return steps
            steps.append((writing, self.words[begin[writing]]))
            begin = begin + 1
