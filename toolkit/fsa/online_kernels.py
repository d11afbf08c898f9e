"""Compiled kernels (numba) of the words found so far; see `toolkit.fsa.online`."""

import numpy as np
from numba import njit

from toolkit.fsa.search_kernels import GraphArrays

Array = np.ndarray
MAX_STEPS = 100
"""Arcs that `next_word_arc` follows at most."""


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
