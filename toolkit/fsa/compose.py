"""Composition: what one transducer writes is read by another."""

from typing import NamedTuple

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import find_slot, rehash_if_full, with_capacity
from toolkit.fsa.fst import EPSILON, FINAL, Fst, select_words
from toolkit.kernels import njit

_END = np.iinfo(np.int32).max
"""Stands for the label to the final state, so that epsilons come first."""


class CompositionError(ToolkitError):
    """Transducers that `compose` does not compose."""


class _Side(NamedTuple):
    """One transducer, the arcs of each state sorted by the label in which the two must agree."""

    first: np.ndarray
    target: np.ndarray
    label: np.ndarray
    arc: np.ndarray
    """[arcs] the arc's number in the transducer."""


def compose(a: Fst, b: Fst) -> Fst:
    """The transducer that reads what `a` reads and writes what `b` makes of what `a` writes.

    Args:
      a: writes at most one label per arc, and none on arcs to the final state.
      b: reads a label on every arc.

    Returns:
      A transducer whose states may include dead ends (see `connect`). Its `lm_scores` are those of
      `b`, or `b`'s scores if it has none: what `a` adds is not the language model's.

    Raises:
      CompositionError: arguments of another form.
    """
    if a.word_counts.max(initial=0) > 1 or a.word_counts[a.labels == FINAL].any():
        raise CompositionError("arcs of the first transducer write two labels, or one at the end")
    if (b.labels == EPSILON).any():
        raise CompositionError("arcs of the second transducer read nothing")
    written = np.zeros(a.num_arcs, np.int32)
    written[a.word_counts > 0] = a.words
    left = _side(a, np.where(a.labels == FINAL, _END, written))
    right = _side(b, np.where(b.labels == FINAL, _END, b.labels))
    source, target, of_a, of_b, final = _pairs(left, right, len(b.first))
    states = 1 + max(source.max(initial=0), target.max(initial=0))
    if final >= 0:
        number = np.arange(states, dtype=np.int32)
        number -= number > final
        number[final] = states - 1
        source, target = number[source], number[target]
    # Row 0 is empty: it serves the arcs of `a` alone.
    splits, words = select_words(np.append(np.int32(0), b.splits), b.words, of_b + 1)
    lm_scores = b.scores if b.lm_scores is None else b.lm_scores
    return Fst(
        source=source,
        target=target,
        labels=a.labels[of_a],
        scores=a.scores[of_a] + np.append(b.scores, np.float32(0))[of_b],
        splits=splits,
        words=words,
        lm_scores=np.append(lm_scores, np.float32(0))[of_b],
    )


def _side(fst: Fst, label: np.ndarray) -> _Side:
    order = np.lexsort((label, fst.source))
    arc = order.astype(np.int32)
    return _Side(fst.first, fst.target[order], label[order].astype(np.int32), arc)


@njit(cache=True, nogil=True)
def _pairs(
    a: _Side, b: _Side, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """The arcs between pairs of states that can be reached, breadth first.

    Returns:
      Of every arc its source, its target, its arc of `a` and of `b` (-1: none); the number of the
      pair of final states, or -1.
    """
    pairs, slots = np.empty(1024, np.int64), np.full(4096, -1, np.int32)
    source, target = np.empty(4096, np.int32), np.empty(4096, np.int32)
    of_a, of_b = np.empty(4096, np.int32), np.empty(4096, np.int32)
    pairs[0], size, done, arcs, final = 0, np.int64(1), 0, 0, -1
    slots[find_slot(pairs[0], pairs, slots)] = 0
    while done < size:
        at_a, at_b = pairs[done] // width, pairs[done] % width
        matched_a, matched_b = _matches(a, at_a, b, at_b)
        more = arcs + len(matched_a)
        source, target = with_capacity(source, more), with_capacity(target, more)
        of_a, of_b = with_capacity(of_a, more), with_capacity(of_b, more)
        for k in range(len(matched_a)):
            i, j = matched_a[k], matched_b[k]
            pair = np.int64(a.target[i]) * width + (at_b if j < 0 else b.target[j])
            slot = find_slot(pair, pairs, slots)
            number = slots[slot]
            if number < 0:
                number, slots[slot] = size, size
                pairs = with_capacity(pairs, size + 1)
                pairs[size] = pair
                size += 1
                slots = rehash_if_full(slots, pairs, size, size)
            if a.label[i] == _END:
                final = number
            source[arcs], target[arcs] = done, number
            of_a[arcs], of_b[arcs] = a.arc[i], -1 if j < 0 else b.arc[j]
            arcs += 1
        done += 1
    return source[:arcs].copy(), target[:arcs].copy(), of_a[:arcs].copy(), of_b[:arcs].copy(), final


@njit(cache=True, nogil=True)
def _matches(a: _Side, at_a: int, b: _Side, at_b: int) -> tuple[np.ndarray, np.ndarray]:
    """The arcs that leave a pair of states: positions in `a`, and in `b` or -1."""
    begin, end = a.first[at_a], a.first[at_a + 1]
    middle = begin
    while middle < end and a.label[middle] == 0:
        middle += 1
    low, high = b.first[at_b], b.first[at_b + 1]
    room, count = middle - begin, middle - begin
    of_a, of_b = np.arange(begin, middle), np.full(room, -1)
    if end - middle <= high - low:
        for i in range(middle, end):
            j = low + np.searchsorted(b.label[low:high], a.label[i])
            while j < high and b.label[j] == a.label[i]:
                of_a, of_b = with_capacity(of_a, count + 1), with_capacity(of_b, count + 1)
                of_a[count], of_b[count] = i, j
                count, j = count + 1, j + 1
    else:
        for j in range(low, high):
            i = middle + np.searchsorted(a.label[middle:end], b.label[j])
            while i < end and a.label[i] == b.label[j]:
                of_a, of_b = with_capacity(of_a, count + 1), with_capacity(of_b, count + 1)
                of_a[count], of_b[count] = i, j
                count, i = count + 1, i + 1
    return of_a[:count], of_b[:count]
