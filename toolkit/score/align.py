"""Levenshtein alignment of two sequences, with Kaldi's choice among alignments of equal cost."""

from collections.abc import Sequence

import numpy as np
from numba import njit

Pair = tuple[str | None, str | None]
"""(reference unit, hypothesis unit); None first is an insertion, None second a deletion."""

_DIAGONAL, _DELETION, _INSERTION = 0, 1, 2


def align(ref: Sequence[str], hyp: Sequence[str]) -> list[Pair]:
    """Align a hypothesis with its reference at the least number of errors.

    Where several alignments cost the same, the split into insertions, deletions and substitutions
    is that of Kaldi's `compute-wer`: with the hypothesis in the outer loop, each cell takes the
    diagonal when it is strictly the cheapest, else the deletion when cheaper than the insertion,
    else the insertion. (Kaldi writes its alignment statistics with a second function that breaks
    ties otherwise; here counts and alignment come from one path and cannot disagree.)

    Args:
      ref: R units, words or characters.
      hyp: H units. Time is O(R * H), memory R * H bytes.

    Returns:
      The pairs in order; reading off their first (second) members without None gives back `ref`
      (`hyp`).
    """
    if list(ref) == list(hyp):
        return list(zip(ref, hyp, strict=True))
    index: dict[str, int] = {}
    moves = _moves(_encode(ref, index), _encode(hyp, index))
    units = iter(ref), iter(hyp)
    return [
        (
            None if move == _INSERTION else next(units[0]),
            None if move == _DELETION else next(units[1]),
        )
        for move in moves.tolist()
    ]


def _encode(units: Sequence[str], index: dict[str, int]) -> np.ndarray:
    numbers = (index.setdefault(unit, len(index)) for unit in units)
    return np.fromiter(numbers, dtype=np.int32, count=len(units))


@njit(cache=True)
def _moves(ref: np.ndarray, hyp: np.ndarray) -> np.ndarray:  # pragma: no cover (compiled)
    """Return the moves of the chosen path from the first units to the last, uint8[length]."""
    num_ref, num_hyp = len(ref), len(hyp)
    move = np.empty((num_hyp + 1, num_ref + 1), np.uint8)
    cost = np.arange(num_ref + 1)  # of aligning hyp[:h] with ref[:r], one row at a time
    move[0, :] = _DELETION
    for h in range(1, num_hyp + 1):
        diagonal = cost[0]
        cost[0] = h
        move[h, 0] = _INSERTION
        for r in range(1, num_ref + 1):
            insertion = cost[r] + 1
            deletion = cost[r - 1] + 1
            substitution = diagonal + (1 if hyp[h - 1] != ref[r - 1] else 0)
            diagonal = cost[r]
            if substitution < insertion and substitution < deletion:
                cost[r] = substitution
                move[h, r] = _DIAGONAL
            elif deletion < insertion:
                cost[r] = deletion
                move[h, r] = _DELETION
            else:
                cost[r] = insertion
                move[h, r] = _INSERTION

    path = np.empty(num_ref + num_hyp, np.uint8)
    start, h, r = len(path), num_hyp, num_ref
    while h > 0 or r > 0:
        start -= 1
        step = move[h, r]
        path[start] = step
        if step != _DELETION:
            h -= 1
        if step != _INSERTION:
            r -= 1
    return path[start:]
