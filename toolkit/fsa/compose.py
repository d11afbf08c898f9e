"""Composition of transducers: the output of one is the input of the other."""

from typing import NamedTuple

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import find_slot, rehash_if_full, with_capacity
from toolkit.fsa.fst import EPSILON, FINAL, Fst, select_words
from toolkit.kernels import njit

_END = np.iinfo(np.int32).max
"""Replaces the label of arcs to the final state, so that epsilons are sorted first."""


class CompositionError(ToolkitError):
    """Raised for transducers that `compose` cannot compose."""


class _Side(NamedTuple):
    """One of the two transducers, with each state's arcs sorted by the label to match."""

    first: np.ndarray
    """[states + 1] where the arcs of each state begin."""
    target: np.ndarray
    """[arcs] int32."""
    label: np.ndarray
    """[arcs] int32: output labels of the first transducer, input labels of the second."""
    arc: np.ndarray
    """[arcs] the arc's number in the transducer."""


def compose(a: Fst, b: Fst) -> Fst:
    """Return the composition a∘b, which reads the inputs of `a` and writes the outputs of `b`.

    Args:
      a: writes at most one label per arc, and none on arcs to the final state.
      b: reads a label on every arc.

    Returns:
      A transducer whose states may include dead ends (see `connect`). Its `lm_scores` are those of
      `b`, or the scores of `b` if `b` has no `lm_scores`; what `a` adds is not from the language
      model.

    Raises:
      CompositionError: `a` or `b` does not have this form.
    """
    if a.word_counts.max(initial=0) > 1 or a.word_counts[a.labels == FINAL].any():
        raise CompositionError(
            "the first transducer has an arc with several output labels, or an output label on an "
            "arc to the final state"
        )
    if (b.labels == EPSILON).any():
        raise CompositionError("the second transducer has arcs with input epsilon")
    output_label = np.zeros(a.num_arcs, np.int32)
    output_label[a.word_counts > 0] = a.words
    outputs_of_a = _side(a, np.where(a.labels == FINAL, _END, output_label))
    inputs_of_b = _side(b, np.where(b.labels == FINAL, _END, b.labels))
    source, target, of_a, of_b, final = _compose_pairs(outputs_of_a, inputs_of_b, len(b.first))
    states = 1 + max(source.max(initial=0), target.max(initial=0))
    if final >= 0:
        # Pairs are numbered as they are reached: move the pair of final states to the end.
        number = np.arange(states, dtype=np.int32)
        number -= number > final
        number[final] = states - 1
        source, target = number[source], number[target]
    # Row 0 is empty; it is for arcs of `a` without an arc of `b`.
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
    """Sort the arcs of a transducer by source and label."""
    order = np.lexsort((label, fst.source))
    arc = order.astype(np.int32)
    return _Side(fst.first, fst.target[order], label[order].astype(np.int32), arc)


@njit(cache=True, nogil=True)
def _compose_pairs(
    a: _Side, b: _Side, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the arcs between reachable pairs of states, found breadth first.

    Args:
      a: the first transducer, sorted by output label.
      b: the second one, sorted by input label.
      width: at least the number of states of `b`; a pair (s, t) has the key s * width + t.

    Returns:
      For each arc its source, its target, the arc of `a` and the arc of `b` (-1: none). Also the
      number of the pair of final states (-1: not reached).
    """
    pairs, slots = np.empty(1024, np.int64), np.full(4096, -1, np.int32)
    source, target = np.empty(4096, np.int32), np.empty(4096, np.int32)
    of_a, of_b = np.empty(4096, np.int32), np.empty(4096, np.int32)
    pairs[0], num_pairs, expanded, num_arcs, final = 0, np.int64(1), 0, 0, -1
    slots[find_slot(pairs[0], pairs, slots)] = 0  # the pair of start states
    while expanded < num_pairs:
        at_a, at_b = pairs[expanded] // width, pairs[expanded] % width
        a_positions, b_positions = _matches(a, at_a, b, at_b)
        capacity = num_arcs + len(a_positions)
        source, target = with_capacity(source, capacity), with_capacity(target, capacity)
        of_a, of_b = with_capacity(of_a, capacity), with_capacity(of_b, capacity)
        for k in range(len(a_positions)):
            a_position, b_position = a_positions[k], b_positions[k]
            # Where `a` writes nothing, `b` stays in its state.
            b_target = at_b if b_position < 0 else b.target[b_position]
            pair = np.int64(a.target[a_position]) * width + b_target
            slot = find_slot(pair, pairs, slots)
            pair_number = slots[slot]
            if pair_number < 0:
                pair_number, slots[slot] = num_pairs, num_pairs
                pairs = with_capacity(pairs, num_pairs + 1)
                pairs[num_pairs] = pair
                num_pairs += 1
                slots = rehash_if_full(slots, pairs, num_pairs, num_pairs)
            if a.label[a_position] == _END:
                final = pair_number
            source[num_arcs], target[num_arcs] = expanded, pair_number
            of_a[num_arcs] = a.arc[a_position]
            of_b[num_arcs] = -1 if b_position < 0 else b.arc[b_position]
            num_arcs += 1
        expanded += 1
    return (
        source[:num_arcs].copy(),
        target[:num_arcs].copy(),
        of_a[:num_arcs].copy(),
        of_b[:num_arcs].copy(),
        final,
    )


@njit(cache=True, nogil=True)
def _matches(a: _Side, at_a: int, b: _Side, at_b: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the arcs out of a pair of states: positions in `a` and in `b` (-1: none)."""
    # Arcs of `a` that write nothing come first; they match no arc of `b`.
    begin, end = a.first[at_a], a.first[at_a + 1]
    first_writing = begin
    while first_writing < end and a.label[first_writing] == 0:
        first_writing += 1
    low, high = b.first[at_b], b.first[at_b + 1]
    count = first_writing - begin
    of_a, of_b = np.arange(begin, first_writing), np.full(count, -1)
    # For each arc of the state with fewer arcs, search the other state's arcs by bisection.
    if end - first_writing <= high - low:
        for i in range(first_writing, end):
            j = low + np.searchsorted(b.label[low:high], a.label[i])
            while j < high and b.label[j] == a.label[i]:
                of_a, of_b = with_capacity(of_a, count + 1), with_capacity(of_b, count + 1)
                of_a[count], of_b[count] = i, j
                count, j = count + 1, j + 1
    else:
        for j in range(low, high):
            i = first_writing + np.searchsorted(a.label[first_writing:end], b.label[j])
            while i < end and a.label[i] == b.label[j]:
                of_a, of_b = with_capacity(of_a, count + 1), with_capacity(of_b, count + 1)
                of_a[count], of_b[count] = i, j
                count, i = count + 1, i + 1
    return of_a[:count], of_b[:count]
