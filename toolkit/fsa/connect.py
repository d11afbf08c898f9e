"""Trimming of transducers, and the order of their arcs."""

from typing import TypeVar

import numpy as np
from numba import njit

from toolkit.fsa.fst import FINAL, Fst

T = TypeVar("T", bound=Fst)


def connect(fst: T) -> T:
    """The states and arcs that are on a path from the start to the end, in their order.

    Returns:
      The transducer; without arcs if there is no path.
    """
    if not (fst.labels == FINAL).any():
        return fst.taken(np.zeros(fst.num_arcs, bool))
    last = fst.num_states - 1
    forward = _reached(fst.first, fst.target, 0)
    order = np.argsort(fst.target, kind="stable").astype(np.int32)
    before = np.searchsorted(fst.target[order], np.arange(fst.num_states + 1)).astype(np.int32)
    alive = forward & _reached(before, fst.source[order], last)
    number = (np.cumsum(alive) - 1).astype(np.int32)
    kept = np.flatnonzero(alive[fst.source] & alive[fst.target])
    return fst.taken(kept, source=number[fst.source[kept]], target=number[fst.target[kept]])


def arc_sort(fst: T) -> T:
    """The same transducer, the arcs of each state sorted by label and target."""
    order = np.lexsort((fst.target, fst.labels, fst.source))
    return fst.taken(order)


@njit(cache=True, nogil=True)
def _reached(first: np.ndarray, target: np.ndarray, state: int) -> np.ndarray:
    """[states] bool: whether arcs lead there from `state`."""
    seen = np.zeros(len(first) - 1, np.bool_)
    stack = np.empty(len(first), np.int32)
    stack[0], size = state, 1
    seen[state] = True
    while size:
        size -= 1
        here = stack[size]
        for arc in range(first[here], first[here + 1]):
            there = target[arc]
            if not seen[there]:
                seen[there] = True
                stack[size] = there
                size += 1
    return seen
