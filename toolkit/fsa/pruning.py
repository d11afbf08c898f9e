"""Lattice pruning: removal of dead ends and of paths outside a beam."""

import math
from typing import TypeVar

import numpy as np

from toolkit.fsa.best_scores import backward_scores, forward_scores
from toolkit.fsa.fst import FINAL, Fst

Kind = TypeVar("Kind", bound=Fst)


def prune(lattice: Kind, beam: float = math.inf) -> Kind | None:
    """Keep the arcs on paths whose score is at most `beam` below the best path's.

    An infinite beam removes dead ends only.

    Args:
      lattice: of one utterance, states in topological order.
      beam: in the units of the lattice's scores.

    Returns:
      The lattice that is left, or None when no path reaches the end.
    """
    if not (lattice.labels == FINAL).any():
        return None
    before, after = forward_scores(lattice), backward_scores(lattice)
    through = before[lattice.source] + lattice.scores + after[lattice.target]
    best = float(through.max())
    if not math.isfinite(best):  # no path, or scores that are no numbers
        return None
    # The margin allows for the rounding of sums in another order.
    kept = np.flatnonzero(through > max(best - beam - 1e-6 * abs(best), -1e300))
    if len(kept) == lattice.num_arcs:
        return lattice
    source, target = lattice.source[kept], lattice.target[kept]
    alive = np.zeros(lattice.num_states, dtype=bool)
    alive[source] = alive[target] = True
    number = (np.cumsum(alive) - 1).astype(np.int32)
    return lattice.taken(kept, source=number[source], target=number[target])
