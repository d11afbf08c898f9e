"""The best path: of a lattice, or of a graph and an utterance's scores without a lattice."""

from dataclasses import dataclass

import numpy as np
from numba import njit

from toolkit.fsa.frame_rows import frame_row, num_frames
from toolkit.fsa.fst import Fst
from toolkit.fsa.search_kernels import FINAL_FRAMES, GraphArrays, adapted_beam
from toolkit.fsa.tables import grown
from toolkit.hmm.gmm_kernels import MixtureArrays

Array = np.ndarray


@dataclass
class BestPath:
    """The best path through a lattice."""

    pdfs: Array
    """[T] int64, the pdf of every frame."""
    words: list[int]
    """Word ids in order."""
    word_frames: list[int]
    """The frame in which each word begins."""
    score: float
    """Total score: scaled acoustic plus graph."""


def best_path(lattice: Fst) -> BestPath:
    """The single best path of a lattice (tropical semiring, in float64)."""
    arcs = best_arcs(lattice.source, lattice.target, lattice.scores, lattice.num_states)
    return path_of(lattice, arcs, float(lattice.scores[arcs].sum(dtype=np.float64)))


def path_of(fst: Fst, arcs: Array, score: float) -> BestPath:
    """The path along arcs of a graph or lattice, one per frame and one to the final state."""
    counts = fst.splits[arcs + 1] - fst.splits[arcs]
    # What is written at the end belongs to the last frame.
    frames = np.repeat(np.minimum(np.arange(len(arcs)), len(arcs) - 2), counts)
    words = [fst.words[fst.splits[arc] : fst.splits[arc + 1]] for arc in arcs[counts > 0]]
    labels = fst.labels[arcs[:-1]].astype(np.int64)
    joined = np.concatenate(words) if words else np.zeros(0, np.int32)
    return BestPath(labels - 1, joined.tolist(), frames.tolist(), score)


@njit(nogil=True, cache=True)
def best_arcs(source: Array, target: Array, scores: Array, states: int) -> Array:
    """The arcs of the best path from state 0 to the last state.

    Args:
      source, target, scores: [A] the arcs, ascending by source; every arc leads to a state with a
        higher number.
      states: number of states; without any the path is empty.
    """
    if states == 0:
        return np.empty(0, np.int64)
    forward, entry = np.full(states, -np.inf), np.full(states, -1)
    forward[0] = 0.0
    for a in range(len(source)):
        total = forward[source[a]] + scores[a]
        if total > forward[target[a]]:
            forward[target[a]], entry[target[a]] = total, a
    length, state = 0, states - 1
    while entry[state] >= 0:
        length, state = length + 1, source[entry[state]]
    path, state = np.empty(length, np.int64), states - 1
    for step in range(length - 1, -1, -1):
        path[step] = entry[state]
        state = source[entry[state]]
    return path


@njit(nogil=True, cache=True)
def viterbi(
    graph: GraphArrays, scores: Array | MixtureArrays, limits: tuple[float, int, int]
) -> tuple[Array, float]:
    """The best path of scores through a graph, pruned as `search_kernels.search`.

    Keeps one arc per state and frame where a lattice keeps them all, and adds up in float64.

    Args:
      graph: its labels are column + 1.
      scores: [T, P], see `toolkit.fsa.frame_rows.kernel_scores`.
      limits: beam, fewest and most active states.

    Returns:
      The graph's arcs, one per frame and one to the final state (none if no path reaches it), and
      the path's score.
    """
    frames = num_frames(scores)
    place = np.full(len(graph.first) - 1, -1, np.int32)
    states, forward = np.zeros(1, np.int32), np.zeros(1, np.float64)
    previous, entry = np.full(1, -1), np.full(1, -1, np.int32)  # of all levels, one after the other
    begin, end, beam = 0, 1, np.float32(limits[0])
    for t in range(frames + 1):
        row, room = frame_row(scores, t, graph, states), 0
        for state in states:
            room += graph.first[state + 1] - graph.first[state]
        reached, tops = np.empty(room, np.float64), np.empty(len(states), np.float64)
        count, best = 0, -np.inf
        for i in range(len(states)):
            top = -np.inf
            for a in range(graph.first[states[i]], graph.first[states[i] + 1]):
                total = forward[i] + graph.score[a] + row[np.uint32(graph.label[a] + 1)]
                reached[count] = total
                top = total if total > top else top
                count += 1
            tops[i] = top
            best = top if top > best else best
        beam = adapted_beam(beam, len(states), limits)
        cutoff = best - beam * 1.25 ** max(0, FINAL_FRAMES - (frames - 1 - t))
        room = 0
        for total in reached:
            room += total > cutoff
        previous, entry = grown(previous, end + room), grown(entry, end + room)
        after, to_states, size, read = np.empty(room, np.float64), np.empty(room, np.int32), 0, 0
        for i in range(len(states)):
            first, after_last = graph.first[states[i]], graph.first[states[i] + 1]
            if not tops[i] > cutoff:
                read += after_last - first
                continue
            for a in range(first, after_last):
                total = reached[read]
                read += 1
                if not total > cutoff:
                    continue
                to = graph.target[a]
                position = place[to]
                if position < 0:
                    position = place[to] = size
                    to_states[size], after[size] = to, -np.inf
                    size += 1
                if total > after[position]:
                    after[position] = total
                    previous[end + position], entry[end + position] = begin + i, a
        for state in to_states[:size]:
            place[state] = -1
        states, forward = to_states[:size].copy(), after[:size].copy()
        begin, end = end, end + size
        if not size:
            return np.empty(0, np.int64), -np.inf
    path, at = np.empty(frames + 1, np.int64), begin
    for t in range(frames, -1, -1):
        path[t] = entry[at]
        at = previous[at]
    return path, forward[0]
