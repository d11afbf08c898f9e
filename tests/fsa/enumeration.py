"""Enumeration of the arcs of small transducers."""

from itertools import pairwise

from toolkit.fsa.fst import Fst, Lattice


def words_of(fst: Fst) -> list[tuple[int, ...]]:
    """The words of every arc."""
    words, splits = fst.words.tolist(), fst.splits.tolist()
    return [tuple(words[a:b]) for a, b in pairwise(splits)]


def arcs(lattice: Lattice) -> dict[tuple[int, int], float]:
    """Scores of the arcs of a lattice by (frame, graph arc)."""
    places = zip(lattice.frame.tolist(), lattice.graph_arc.tolist(), strict=True)
    return dict(zip(places, lattice.scores.tolist(), strict=True))
