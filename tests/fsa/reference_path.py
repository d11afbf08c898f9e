"""The best path of a graph that reads given pdfs, searched without a beam: an oracle."""

import numpy as np

from toolkit.fsa.fst import FINAL
from toolkit.fsa.lattice import LatticeArcs


def reference_path(pdfs, graph):
    """The best path of a graph that reads pdfs [T], as `LatticeArcs`; None if it has none."""
    first, target = graph.first, graph.target
    states, scores = np.zeros(1, np.int64), np.zeros(1)
    steps = []
    for label in [*(pdfs + 1).tolist(), FINAL]:
        degree = first[states + 1] - first[states]
        origin = np.arange(len(states)).repeat(degree)
        arc = np.arange(len(origin)) + (first[states] - degree.cumsum() + degree).repeat(degree)
        fits = graph.labels[arc] == label
        arc, origin = arc[fits], origin[fits]
        total = scores[origin] + graph.scores[arc]
        order = np.lexsort((arc, -total, target[arc]))
        best = order[np.diff(target[arc[order]], prepend=-1) > 0]
        if not len(best):
            return None
        steps.append((arc[best], origin[best]))
        states, scores = target[arc[best]], total[best]
    path, at = [], 0
    for arc, origin in reversed(steps):
        path.append(arc[at])
        at = origin[at]
    numbers = np.arange(len(steps), dtype=np.int32)
    return LatticeArcs(len(pdfs), numbers, np.array(path[::-1], np.int32))
