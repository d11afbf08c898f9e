"""Compiled kernels (numba) of the online search; see `toolkit.fsa.online`."""

from typing import NamedTuple

import numpy as np
from numba import njit

Array = np.ndarray
MAX_STEPS = 100
"""Arcs that `next_word_arc` follows at most."""
FINAL_FRAMES = 4
"""Number of frames at the end that are searched with wider beams."""


class GraphArrays(NamedTuple):
    """A decoding graph, its arcs sorted by source."""

    first: Array
    """[states + 1] int32: where the arcs of each state begin."""
    target: Array
    """[arcs] int32."""
    label: Array
    """[arcs] int32: pdf + 1; -1 leads to the final state."""
    score: Array
    """[arcs] float32."""
    writes: Array
    """[arcs] bool: whether the arc writes a word."""


@njit(cache=True, nogil=True)
def advance(
    graph: GraphArrays,
    row: Array,
    left: int,
    states: Array,
    forward: Array,
    beam: np.float32,
    limits: tuple[float, int, int],
    place: Array,
) -> tuple[np.float32, Array, Array, Array, Array, Array, Array, Array]:
    """Expand the active states by one frame, and drop what falls outside the beam.

    The beam narrows and widens as in k2's pruned intersection, in float32 as there.

    Args:
      graph: the graph.
      row: [P] float32, the frame's scores.
      left: frames that follow; if that is not known, many. -1 follows the arcs to the final state
        instead, after the last frame.
      states: [N] active states of the graph.
      forward: [N] float32, the score of the best path to each.
      beam: of the frame before.
      limits: search beam, min_active and max_active.
      place: [states] int32 scratch memory, all -1 before and after the call.

    Returns:
      The frame's beam; of each arc kept its source (position in `states`), its destination
      (position in the states reached), its number in the graph and its score; the states reached,
      the score of the best path to each, and the arc (position) by which it comes.
    """
    ending, total = left < 0, 0
    for state in states:
        total += graph.first[state + 1] - graph.first[state]
    source, arc = np.empty(total, np.int32), np.empty(total, np.int32)
    score, end = np.empty(total, np.float32), np.empty(total, np.float32)
    count, best = 0, np.float32(-np.inf)
    for i in range(len(states)):
        for a in range(graph.first[states[i]], graph.first[states[i] + 1]):
            label = graph.label[a]
            if (label < 0) != ending:
                continue
            value = graph.score[a] if ending else graph.score[a] + row[label - 1]
            source[count], arc[count], score[count] = i, a, value
            end[count] = forward[i] + value
            best = max(best, end[count])
            count += 1
    beam = _adapted(beam, len(states), limits)
    # Wider in the last frames: an utterance may not be able to end in the best states.
    cutoff = best - beam * np.float32(1.25 ** max(0, FINAL_FRAMES - left))
    target, reached = np.empty(count, np.int32), np.empty(count, np.int32)
    after, entry = np.empty(count, np.float32), np.empty(count, np.int32)
    kept, size = 0, 0
    for k in range(count):
        state = graph.target[arc[k]]
        if end[k] > cutoff and place[state] < 0:
            place[state] = size
            reached[size], after[size] = state, -np.inf
            size += 1
    for k in range(count):
        position = place[graph.target[arc[k]]]
        if position < 0:
            continue
        if end[k] > after[position]:
            after[position], entry[position] = end[k], kept
        source[kept], arc[kept], score[kept] = source[k], arc[k], score[k]
        target[kept] = position
        kept += 1
    for position in range(size):
        place[reached[position]] = -1
    return (
        beam,
        source[:kept].copy(),
        target[:kept].copy(),
        arc[:kept].copy(),
        score[:kept].copy(),
        reached[:size].copy(),
        after[:size].copy(),
        entry[:size].copy(),
    )


@njit(nogil=True, cache=True)
def _adapted(beam: np.float32, active: int, limits: tuple[float, int, int]) -> np.float32:
    """The beam of a frame: narrower where too many states are active, wider where too few."""
    wanted, fewest, most = np.float32(limits[0]), limits[1], limits[2]
    if active > most:
        return np.float32(0.8) * min(beam, wanted)
    if active < fewest:
        return np.float32(1.25) * max(beam, wanted)
    return np.float32(0.8) * beam + np.float32(0.2) * wanted


@njit(nogil=True, cache=True)
def prune_frame(
    source: Array,
    target: Array,
    score: Array,
    forward: Array,
    after: Array,
    loss_after: Array,
    beam: float,
) -> tuple[Array, Array]:
    """Find the arcs of a frame that are on a path within the beam.

    Args:
      source, target, score: the frame's arcs.
      forward: the best scores of the states before it.
      after: those of the states after it.
      loss_after: how far the best path through each of these is behind the best one of all that
        end in the same state of the newest frame; infinite for those dropped.
      beam: the largest loss that is kept.

    Returns:
      Whether each arc is kept, and the losses of the states before the frame.
    """
    kept = np.zeros(len(source), np.bool_)
    loss = np.full(len(forward), np.inf)
    for k in range(len(source)):
        behind = np.float64(after[target[k]]) - forward[source[k]] - score[k]
        through = behind + loss_after[target[k]]
        if through <= beam:
            kept[k] = True
            loss[source[k]] = min(loss[source[k]], through)
    return kept, loss


@njit(nogil=True, cache=True)
def extend_histories(
    histories: Array,
    source: Array,
    arc: Array,
    entry: Array,
    writes: Array,
    nodes: Array,
    count: int,
) -> tuple[Array, int]:
    """Give each state reached the words of the best path to it, as a node of a tree.

    Args:
      histories: the nodes of the states before.
      source, arc: of the frame's arcs.
      entry: for each state reached the arc by which it comes.
      writes: see `GraphArrays`.
      nodes: [room, 2] int64: parent, arc that writes; room for a node per state.
      count: nodes in use.

    Returns:
      The nodes of the states reached, and the number of nodes in use.
    """
    found = np.empty(len(entry), np.int64)
    for position in range(len(entry)):
        k = entry[position]
        found[position] = histories[source[k]]
        if writes[arc[k]]:
            nodes[count, 0], nodes[count, 1] = found[position], arc[k]
            found[position] = count
            count += 1
    return found, count


@njit(nogil=True, cache=True)
def collect_histories(nodes: Array, count: int, histories: Array) -> int:
    """Drop the nodes that no state's history needs, in place; return how many are left.

    Args:
      nodes: see `extend_histories`; a parent stands before its children, and node 0 is the root.
      count: nodes in use.
      histories: of the states alive; renumbered.
    """
    number = np.full(count, -1, np.int64)
    number[0] = 0
    for node in histories:
        while number[node] < 0:
            number[node] = 1
            node = nodes[node, 0]
    left = 1
    for node in range(1, count):
        if number[node] > 0:
            number[node] = left
            nodes[left, 0], nodes[left, 1] = number[nodes[node, 0]], nodes[node, 1]
            left += 1
    for position in range(len(histories)):
        histories[position] = number[histories[position]]
    return left


@njit(nogil=True, cache=True)
def next_word_arc(graph: GraphArrays, state: int) -> int:
    """Follow the best arc out of every state up to one that writes a word; return it, or -1."""
    for _ in range(MAX_STEPS):
        best = -1
        for a in range(graph.first[state], graph.first[state + 1]):
            ahead = graph.label[a] > 0 and graph.target[a] != state
            if ahead and (best < 0 or graph.score[a] > graph.score[best]):
                best = a
        if best < 0 or graph.writes[best]:
            return best
        state = graph.target[best]
    return -1
