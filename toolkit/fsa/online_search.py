"""Online dense search: the same search as `search_lattice`, carried out while scores arrive.

k2 1.23.4 has `OnlineDenseIntersecter`, but between two calls it keeps only what lies within the
*output* beam. So its result depends on the block size: on read speech the best paths' scores fell
from 83 to 63 with blocks of one second, and to -180 with single frames. Here the search of
`toolkit.fsa.search` is carried out frame by frame: same beams, same lattice. (Where `max_active` is
reached in the last four frames, the lattice can have a few arcs more.)
"""

import numpy as np
from torch import Tensor

from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, Lattice, select_words
from toolkit.fsa.search import GraphMismatchError, graph_arrays, lattice_of, rows_of
from toolkit.fsa.search_kernels import (
    FINAL_FRAMES,
    PRUNE_BACK,
    PRUNE_EVERY,
    GraphArrays,
    advance_frame,
    empty_trellis,
    prune_end,
    prune_trellis,
)
from toolkit.kernels import njit


class OnlineSearch:
    """The online search of one utterance.

    Memory grows with the lattice alone: some 50 to 150 arcs of 16 bytes per frame on read speech.

    Args:
      graph: the decoding graph.
      beam: settings of the pruning.
    """

    def __init__(self, graph: Fst, beam: Beam) -> None:
        self._graph, self._arrays, self._output = graph, graph_arrays(graph), beam.output
        self._limits = beam.search, beam.min_active, beam.max_active
        self._place = np.full(graph.num_states, -1, np.int32)
        self._trellis = empty_trellis(beam.search)
        self._rows: list[np.ndarray] = []  # of the last frames
        self._histories = np.zeros(1, np.int64)
        self._nodes, self._count = np.zeros((1024, 2), np.int64), 1

    @property
    def num_frames(self) -> int:
        """Number of frames read so far."""
        return int(self._trellis.frames[0])

    @property
    def arcs_per_frame(self) -> np.ndarray:
        """Number of lattice arcs kept for each frame so far: [T]."""
        return np.diff(self._trellis.arcs_at[: self.num_frames + 1])

    @property
    def num_history_nodes(self) -> int:
        """Number of nodes in the tree of the active states' word histories."""
        return self._count - 1

    def advance(self, scores: Tensor) -> None:
        """Search the next frames of scores.

        Args:
          scores: [T, P] scaled log-likelihoods, float32; any T.

        Raises:
          GraphMismatchError: see `toolkit.fsa.search.search_lattice`.
        """
        GraphMismatchError.check(self._graph.top_label, scores.shape[1])
        for row in rows_of(scores):
            self._rows = [*self._rows, row.copy()][-FINAL_FRAMES:]
            self._step(row, FINAL_FRAMES)
            self._remember()
            # Frames that may turn out to be the last ones are not pruned yet.
            if self.num_frames % PRUNE_EVERY == FINAL_FRAMES and self.num_frames > FINAL_FRAMES:
                prune_trellis(self._trellis, PRUNE_BACK, FINAL_FRAMES, self._output)
                self._count = collect_histories(self._nodes, self._count, self._histories)

    def best_words(self) -> list[int]:
        """Return the words of the best path so far."""
        _, forward = self._active()
        if not len(forward):
            return []
        arcs, node = [], int(self._histories[forward.argmax()])
        while node:
            node, arc = self._nodes[node].tolist()
            arcs.append(arc)
        return self._words(arcs[::-1])

    def next_words(self) -> list[int]:
        """Guess the word being spoken: the next one along the graph's best arcs, if any."""
        states, forward = self._active()
        if not len(states):
            return []
        arc = next_word_arc(self._arrays, states[forward.argmax()])
        return [] if arc < 0 else self._words([arc])

    def finish(self) -> Lattice | None:
        """End the utterance; return the lattice that `search_lattice` gives for all its scores.

        Raises:
          ValueError: the utterance has already ended.
        """
        if self.num_frames == 0:
            return None
        if not self._rows:
            raise ValueError("the search has ended")
        # Search the last frames again, now that they are known to be the last: with wider beams.
        self._trellis.frames[0] -= len(self._rows)
        for left, row in zip(range(len(self._rows) - 1, -1, -1), self._rows, strict=True):
            self._step(row, left)
            if self.num_frames % PRUNE_EVERY == 0:
                prune_trellis(self._trellis, PRUNE_BACK, 0, self._output)
        self._step(self._rows[-1], -1)
        self._rows = []
        prune_end(self._trellis, self._output)
        return lattice_of(self._trellis, self._graph)

    def _step(self, row: np.ndarray, left: int) -> None:
        """Search one frame, `left` frames before the end."""
        self._trellis = advance_frame(
            self._trellis, self._arrays, row, left, self._limits, self._output, self._place
        )

    def _active(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the active graph states after the last frame, and their best scores."""
        trellis, n = self._trellis, self.num_frames
        last = slice(trellis.states_at[n], trellis.states_at[n + 1])
        return trellis.state[last], trellis.forward[last]

    def _remember(self) -> None:
        """Record the words of the best path to every state."""
        trellis, n = self._trellis, self.num_frames
        arcs = slice(trellis.arcs_at[n - 1], trellis.arcs_at[n])
        entry = trellis.entry[trellis.states_at[n] : trellis.states_at[n + 1]]
        if self._count + len(entry) > len(self._nodes):
            room = np.zeros((len(self._nodes) + max(len(self._nodes), len(entry)), 2), np.int64)
            room[: self._count] = self._nodes[: self._count]
            self._nodes = room
        self._histories, self._count = extend_histories(
            self._histories,
            trellis.source[arcs],
            trellis.arc[arcs],
            entry,
            self._arrays.writes,
            self._nodes,
            self._count,
        )

    def _words(self, arcs: list[int]) -> list[int]:
        """Return the words on some arcs of the graph, in order."""
        return select_words(self._graph.splits, self._graph.words, np.array(arcs, np.int64))[
            1
        ].tolist()


Array = np.ndarray
MAX_STEPS = 100
"""Largest number of arcs that `next_word_arc` follows."""


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
    """Extend the word histories, which are nodes of a tree, to the states that a frame reaches.

    Args:
      histories: the nodes of the states before the frame.
      source, arc: of the frame's arcs, see `Trellis`.
      entry: for each state reached, the last arc of its best path.
      writes: see `GraphArrays`.
      nodes: [room, 2] int64: parent, arc that writes; has room for another node per state.
      count: number of nodes in use.

    Returns:
      The nodes of the states reached, and the number of nodes in use.
    """
    new_histories = np.empty(len(entry), np.int64)
    for position in range(len(entry)):
        frame_arc = entry[position]
        new_histories[position] = histories[source[frame_arc]]
        if writes[arc[frame_arc]]:
            nodes[count, 0], nodes[count, 1] = new_histories[position], arc[frame_arc]
            new_histories[position] = count
            count += 1
    return new_histories, count


@njit(nogil=True, cache=True)
def collect_histories(nodes: Array, count: int, histories: Array) -> int:
    """Remove unused history nodes in place; return how many are left.

    Args:
      nodes: see `extend_histories`; a parent stands before its children, and node 0 is the root.
      count: nodes in use.
      histories: the nodes of the active states; renumbered in place.
    """
    new_node = np.full(count, -1, np.int64)
    new_node[0] = 0
    for node in histories:
        while new_node[node] < 0:
            new_node[node] = 1
            node = nodes[node, 0]
    num_kept = 1
    for node in range(1, count):
        if new_node[node] > 0:
            new_node[node] = num_kept
            nodes[num_kept, 0], nodes[num_kept, 1] = new_node[nodes[node, 0]], nodes[node, 1]
            num_kept += 1
    for position in range(len(histories)):
        histories[position] = new_node[histories[position]]
    return num_kept


@njit(nogil=True, cache=True)
def next_word_arc(graph: GraphArrays, state: int) -> int:
    """Follow the best arcs from a state to an arc that writes a word; return it, or -1."""
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
