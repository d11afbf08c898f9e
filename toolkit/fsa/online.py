"""Online dense search: the same search while the scores arrive.

k2 1.23.4 has `OnlineDenseIntersecter`, but between two calls it keeps only what lies within the
*output* beam, so that its result depends on how the scores are cut up: on read speech the best
paths' scores fell from 83 to 63 with pieces of one second, to -180 with single frames. Here the
search of `toolkit.fsa.search` is carried out frame by frame: same beams, same lattice. (Where
`max_active` is reached in the last four frames, the lattice can have a few arcs more.)
"""

from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary

import k2
import numpy as np
import torch
from torch import Tensor

from toolkit.fsa.online_kernels import (
    FINAL_FRAMES,
    GraphArrays,
    advance,
    collect_histories,
    extend_histories,
    next_word_arc,
    prune_frame,
)
from toolkit.fsa.pruning import prune
from toolkit.fsa.search import Beam, GraphMismatchError

# When, and how many frames back, k2's pruned intersection prunes: its lattice depends on it where
# arcs are further behind the best path than the output beam.
PRUNE_EVERY, PRUNE_BACK = 20, 30

_ARRAYS: "WeakKeyDictionary[k2.Fsa, GraphArrays]" = WeakKeyDictionary()


def graph_arrays(graph: k2.Fsa) -> GraphArrays:
    """The arrays of a graph from `load_graph`, made once per graph."""
    if graph not in _ARRAYS:
        arcs = graph.arcs.values()
        words = graph.aux_labels
        splits, values = words.shape.row_splits(1).long(), words.values
        written = torch.cat([values.new_zeros(1).long(), (values > 0).long().cumsum(0)])
        _ARRAYS[graph] = GraphArrays(
            graph.arcs.row_splits(2).numpy(),
            arcs[:, 1].contiguous().numpy(),
            arcs[:, 2].contiguous().numpy(),
            graph.scores.detach().contiguous().numpy(),
            (written[splits[1:]] > written[splits[:-1]]).numpy(),
        )
    return _ARRAYS[graph]


@dataclass
class _Frame:
    """The states before a frame, and the arcs that read it."""

    states: np.ndarray
    forward: np.ndarray
    beam: np.float32
    source: np.ndarray
    target: np.ndarray
    arc: np.ndarray
    score: np.ndarray

    def keep(self, arcs: np.ndarray) -> None:
        """Keep some of the arcs."""
        self.source, self.target = self.source[arcs], self.target[arcs]
        self.arc, self.score = self.arc[arcs], self.score[arcs]


class OnlineSearch:
    """The online search of one utterance.

    Memory grows with the lattice alone: some 50 to 150 arcs of 16 bytes per frame on read speech.

    Args:
      graph: from `load_graph`.
      beam: the pruning.
    """

    def __init__(self, graph: k2.Fsa, beam: Beam) -> None:
        self._graph, self._arrays, self._output = graph, graph_arrays(graph), beam.output
        self._limits = beam.search, beam.min_active, beam.max_active
        self._top = int(self._arrays.label.max())
        self._place = np.full(len(self._arrays.first) - 1, -1, np.int32)
        self._frames: list[_Frame] = []
        self._rows: list[np.ndarray] = []  # of the last frames
        self._beam = np.float32(beam.search)
        self._states, self._forward = np.zeros(1, np.int32), np.zeros(1, np.float32)
        self._histories = np.zeros(1, np.int64)
        self._nodes, self._count = np.zeros((1024, 2), np.int64), 1

    @property
    def num_frames(self) -> int:
        """Frames read so far."""
        return len(self._frames)

    def advance(self, scores: Tensor) -> None:
        """Read the next frames.

        Args:
          scores: [T, P] scaled log-likelihoods, float32; any T.

        Raises:
          GraphMismatchError: see `toolkit.fsa.search.search_lattices`.
        """
        if self._top > scores.shape[1]:
            raise GraphMismatchError(
                f"the graph has {self._top} pdfs, the acoustic model {scores.shape[1]}: they come"
                " from different runs; make the graph again with this model's topology"
            )
        for row in scores.contiguous().numpy():
            self._rows = [*self._rows, row][-FINAL_FRAMES:]
            self._remember(*self._step(row, FINAL_FRAMES))
            # Frames that may turn out to be the last ones are not pruned yet.
            if self.num_frames % PRUNE_EVERY == FINAL_FRAMES and self.num_frames > FINAL_FRAMES:
                self._prune(PRUNE_BACK, FINAL_FRAMES)
                self._count = collect_histories(self._nodes, self._count, self._histories)

    def best_words(self) -> list[int]:
        """The words of the best path so far."""
        if not len(self._states):
            return []
        arcs, node = [], int(self._histories[self._forward.argmax()])
        while node:
            node, arc = self._nodes[node].tolist()
            arcs.append(arc)
        return self._words(arcs[::-1])

    def next_words(self) -> list[int]:
        """A guess at the word being spoken: the next one along the graph's best arcs, if any."""
        if not len(self._states):
            return []
        arc = next_word_arc(self._arrays, self._states[self._forward.argmax()])
        return [] if arc < 0 else self._words([arc])

    def _words(self, arcs: list[int]) -> list[int]:
        """The words on some arcs of the graph, in order."""
        chosen = torch.tensor(arcs, dtype=torch.int32)
        words, _ = self._graph.aux_labels.index(chosen, axis=0)
        return [word for word in words.values.tolist() if word > 0]

    def finish(self) -> k2.Fsa | None:
        """End the utterance; return what `search_lattice` returns for all its scores."""
        if self.num_frames == 0:
            return None
        # Search the last frames again, now that they are known to be the last: with wider beams.
        first = self._frames[-len(self._rows)]
        self._frames = self._frames[: -len(self._rows)]
        self._states, self._forward, self._beam = first.states, first.forward, first.beam
        for left, row in zip(range(len(self._rows) - 1, -1, -1), self._rows, strict=True):
            self._step(row, left)
            if self.num_frames % PRUNE_EVERY == 0:
                self._prune(PRUNE_BACK)
        overlap = PRUNE_BACK - PRUNE_EVERY
        last = self.num_frames % PRUNE_EVERY
        self._step(np.zeros(0, np.float32), -1)
        if not len(self._states):
            return None
        self._prune(1 + last + overlap)
        return prune(self._lattice())

    def _step(self, row: np.ndarray, left: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Search a frame; return the sources, arcs and entries of `extend_histories`."""
        before = self._states, self._forward, self._beam
        found = advance(self._arrays, row, left, *before, self._limits, self._place)
        self._beam, source, target, arc, score, self._states, self._forward, entry = found
        self._frames.append(_Frame(*before, source, target, arc, score))
        return source, arc, entry

    def _remember(self, source: np.ndarray, arc: np.ndarray, entry: np.ndarray) -> None:
        """Note the words of the best path to every state."""
        if self._count + len(entry) > len(self._nodes):
            room = np.zeros((len(self._nodes) + max(len(self._nodes), len(entry)), 2), np.int64)
            room[: self._count] = self._nodes[: self._count]
            self._nodes = room
        self._histories, self._count = extend_histories(
            self._histories, source, arc, entry, self._arrays.writes, self._nodes, self._count
        )

    def _prune(self, back: int, held: int = 0) -> None:
        """Drop from some of the newest frames the arcs outside the output beam, whatever follows.

        Args:
          back: number of frames to prune.
          held: number of newest frames, after those, that are not pruned.
        """
        end = len(self._frames) - held
        after = self._frames[end].forward if held else self._forward
        loss = np.zeros(len(after))
        begin = max(0, end - back)
        for frame in reversed(self._frames[begin:end]):
            kept, loss = prune_frame(
                frame.source, frame.target, frame.score, frame.forward, after, loss, self._output
            )
            frame.keep(kept)
            after = frame.forward
        for before, frame in pairwise(self._frames[max(0, begin - 1) : end]):
            self._drop_states(before, frame)

    @staticmethod
    def _drop_states(before: _Frame, frame: _Frame) -> None:
        """Drop the states between two frames from which no arc leads on."""
        alive = np.zeros(len(frame.states), bool)
        alive[frame.source] = True
        number = (np.cumsum(alive) - 1).astype(np.int32)
        before.keep(alive[before.target])
        before.target, frame.source = number[before.target], number[frame.source]
        frame.states, frame.forward = frame.states[alive], frame.forward[alive]

    def _lattice(self) -> k2.Fsa:
        """The arcs left, in an FsaVec of one as k2's pruned intersection returns it."""
        sizes = [len(frame.states) for frame in self._frames]
        begins = np.concatenate([[0], np.cumsum(sizes)])
        source = np.concatenate([f.source + b for f, b in zip(self._frames, begins, strict=False)])
        target = np.concatenate(
            [f.target + b for f, b in zip(self._frames, begins[1:], strict=True)]
        )
        arc = np.concatenate([frame.arc for frame in self._frames])
        score = np.concatenate([frame.score for frame in self._frames])
        number = np.concatenate(
            [np.full(len(frame.arc), t, np.int32) for t, frame in enumerate(self._frames)]
        )
        order = np.argsort(source, kind="stable")
        arc, score, number = arc[order], score[order], number[order]
        columns = (source[order], target[order], self._arrays.label[arc], score.view(np.int32))
        table = np.stack([column.astype(np.int32) for column in columns], axis=1)
        lattice = k2.Fsa(torch.from_numpy(table))
        chosen = torch.from_numpy(arc)
        for name, value in self._graph.named_tensor_attr(include_scores=False):
            if name == "labels":
                continue
            ragged = isinstance(value, k2.RaggedTensor)
            taken = value.index(chosen, axis=0)[0] if ragged else value[chosen.long()]
            setattr(lattice, name, taken)
        lattice.frame = torch.from_numpy(number)
        return k2.create_fsa_vec([lattice])
