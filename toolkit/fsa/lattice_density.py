"""Lattice pruning to a density, the number of arcs per frame (C8: about 10)."""

import k2
import numpy as np
import torch
from torch import Tensor

from toolkit.fsa.arcs import FINAL
from toolkit.fsa.lattice_codec import LatticeArcs

# Paths whose scores differ by less are kept or dropped together: float64 sums of float32 scores.
TIE = 1e-6


def number_arcs(graph: k2.Fsa) -> k2.Fsa:
    """Give a graph the attribute `graph_arc`, its arcs' indices, which its lattices inherit."""
    graph.graph_arc = torch.arange(graph.num_arcs, dtype=torch.int32)
    return graph


def prune_to_density(
    lattice: k2.Fsa,
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

    k2's lattice is complete up to its output beam. Beyond it there are arcs that depend on when k2
    pruned, on read speech up to two thirds of all: these are always dropped.

    Args:
      lattice: of one utterance, from `search_lattice` with a graph from `number_arcs`.
      frames: T.
      density: arcs per frame at most; where reference and best path alone have more, so has the
        result.
      beam: the output beam of the search.
      reference: a path that is kept like the best one, whether the search found it or not.
    """
    total = lattice.get_forward_scores(use_double_scores=True, log_semiring=False)
    rest = lattice.get_backward_scores(use_double_scores=True, log_semiring=False)
    arcs = lattice.arcs.values()[:, :2].long()
    through = total[arcs[:, 0]] + lattice.scores.double() + rest[arcs[:, 1]]
    loss = (total[-1] - through).numpy()
    key = _keys(lattice.frame.numpy(), lattice.graph_arc.numpy())
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


def reference_path(pdfs: Tensor, graph: k2.Fsa) -> LatticeArcs | None:
    """The graph's best path that reads the given pdfs, by its own scores, searched without a beam.

    Args:
      pdfs: [T] one for every frame.
      graph: a single one or an FsaVec of one.

    Returns:
      The path; None where the graph has none, for instance because it lacks a word.
    """
    first = graph.arcs.row_splits(graph.arcs.num_axes() - 1).numpy()
    arcs, arc_scores = graph.arcs.values().numpy(), graph.scores.detach().numpy()
    states, scores = np.zeros(1, np.int64), np.zeros(1)
    steps = []
    for label in [*(pdfs + 1).tolist(), FINAL]:
        degree = first[states + 1] - first[states]
        origin = np.arange(len(states)).repeat(degree)
        arc = np.arange(len(origin)) + (first[states] - degree.cumsum() + degree).repeat(degree)
        fits = arcs[arc, 2] == label
        arc, origin = arc[fits], origin[fits]
        total = scores[origin] + arc_scores[arc]
        order = np.lexsort((arc, -total, arcs[arc, 1]))
        best = order[np.diff(arcs[arc[order], 1], prepend=-1) > 0]
        if not len(best):
            return None
        steps.append((arc[best], origin[best]))
        states, scores = arcs[arc[best], 1], total[best]
    path, at = [], 0
    for arc, origin in reversed(steps):
        path.append(arc[at])
        at = origin[at]
    numbers = np.arange(len(steps), dtype=np.int32)
    return LatticeArcs(len(pdfs), numbers, np.array(path[::-1], np.int32))
