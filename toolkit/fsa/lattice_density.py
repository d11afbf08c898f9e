"""Lattice pruning to a density, the number of arcs per frame (C8: about 10)."""

import numpy as np
from torch import Tensor

from toolkit.fsa.best_scores import backward_scores, forward_scores
from toolkit.fsa.fst import FINAL, Fst, Lattice
from toolkit.fsa.lattice_codec import LatticeArcs

# Paths whose scores differ by less are kept or dropped together: float64 sums of float32 scores.
TIE = 1e-6


def prune_to_density(
    lattice: Lattice,
    frames: int,
    density: float,
    beam: float,
    reference: LatticeArcs | None = None,
) -> LatticeArcs:
    """Keep the arcs of the best paths: as many as the density allows.

    An arc is scored by the best path through it. Arcs are kept whose score is less than a
    threshold below that of the best path; it is the largest threshold up to `beam` that meets the
    density. So the best path is always kept, and with an arc the best path through it. Kaldi's
    lattice-prune does the same with a fixed threshold.

    A search's lattice is complete up to its output beam. Beyond it there may be arcs that depend on
    when the search pruned, with k2 on read speech up to two thirds of all: these are always
    dropped.

    Args:
      lattice: of one utterance, from `search_lattice`.
      frames: T.
      density: arcs per frame at most; where reference and best path alone have more, so has the
        result.
      beam: the output beam of the search.
      reference: a path that is kept like the best one, whether the search found it or not.
    """
    total, rest = forward_scores(lattice), backward_scores(lattice)
    loss = total[-1] - (total[lattice.source] + lattice.scores + rest[lattice.target])
    key = _keys(lattice.frame, lattice.graph_arc)
    if reference is not None:
        path = _keys(reference.frame, reference.arc)
        loss = np.append(loss[~np.isin(key, path)], np.zeros(len(path)))
        key = np.append(key[~np.isin(key, path)], path)
    # The arcs to the final state, one per frame at most on a path, are not counted.
    emitting = key < frames << 32
    threshold = _threshold(np.sort(loss[emitting]), int(density * frames), beam)
    kept = np.sort(key[loss < threshold])
    return LatticeArcs(frames, (kept >> 32).astype(np.int32), kept.astype(np.int32))


def _threshold(losses: np.ndarray, most: int, beam: float) -> float:
    """The largest threshold up to `beam` that keeps at most `most` of the sorted losses."""
    most = min(most, int(np.searchsorted(losses, beam)))
    if most >= len(losses):
        return np.inf
    apart = np.flatnonzero(np.diff(losses[: most + 1]) > TIE)
    last = apart[-1] if len(apart) else 0
    return float(losses[last] + TIE / 2)


def _keys(frame: np.ndarray, arc: np.ndarray) -> np.ndarray:
    return (frame.astype(np.int64) << 32) + arc


def reference_path(pdfs: Tensor, graph: Fst) -> LatticeArcs | None:
    """The graph's best path that reads the given pdfs, by its own scores, searched without a beam.

    Args:
      pdfs: [T] one for every frame.
      graph: the decoding graph.

    Returns:
      The path; None where the graph has none, for instance because it lacks a word.
    """
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
