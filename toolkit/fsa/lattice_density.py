"""Lattice pruning to a density, the number of arcs per frame (C8: about 10)."""

import numpy as np

from toolkit.fsa.best_scores import backward_scores, forward_scores
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice_codec import LatticeArcs

# Paths whose scores differ by less are kept or dropped together: float64 sums of float32 scores.
TIE = 1e-6


def prune_to_density(
    lattice: Lattice,
    frames: int,
    density: float,
    beam: float,
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
      density: arcs per frame at most, from 1: the best path has one.
      beam: the output beam of the search.
    """
    total, rest = forward_scores(lattice), backward_scores(lattice)
    loss = total[-1] - (total[lattice.source] + lattice.scores + rest[lattice.target])
    key = (lattice.frame.astype(np.int64) << 32) + lattice.graph_arc
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
