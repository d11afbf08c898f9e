"""The toolkit's own dense search, compiled by numba."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from toolkit.fsa.beam import Beam, GraphMismatchError
from toolkit.fsa.best_path import BestPath, path_of, viterbi
from toolkit.fsa.frame_rows import FrameScores, kernel_scores
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.pruning import prune
from toolkit.fsa.search_kernels import GraphArrays, Trellis, search


class NativeEngine:
    """Searches one utterance after the other, without the interpreter lock."""

    def lattice(self, scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
        """See `toolkit.fsa.search.search_lattice`."""
        limits = (beam.search, beam.min_active, beam.max_active)
        return lattice_of(search(graph_arrays(graph), rows_of(scores), limits, beam.output), graph)

    def best_paths(
        self, scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
    ) -> list[BestPath | None]:
        """See `toolkit.fsa.search.search_best_paths`."""
        limits = (beam.search, beam.min_active, beam.max_active)
        found: list[BestPath | None] = []
        for rows, graph in zip(scores, graphs, strict=True):
            arcs, score = viterbi(graph_arrays(graph), kernel_scores(rows), limits)
            found.append(path_of(graph, arcs, score) if len(arcs) else None)
        return found


def graph_arrays(graph: Fst) -> GraphArrays:
    """A graph as the kernels take it.

    Raises:
      GraphMismatchError: it has no arcs.
    """
    if not graph.num_arcs:
        raise GraphMismatchError("the graph has no arcs: it accepts nothing")
    return GraphArrays(graph.first, graph.target, graph.labels, graph.scores, graph.writes)


def lattice_of(trellis: Trellis, graph: Fst) -> Lattice | None:
    """The lattice that a trellis holds after its last frame; None if no path reached the end."""
    frames = int(trellis.frames[0]) - 1  # the last step followed the arcs to the final state
    if trellis.states_at[frames + 2] == trellis.states_at[frames + 1]:
        return None
    counts = np.diff(trellis.arcs_at[: frames + 2])
    frame = np.repeat(np.arange(frames + 1, dtype=np.int32), counts)
    every = slice(0, int(trellis.arcs_at[frames + 1]))
    arc = trellis.arc[every].copy()
    source = trellis.source[every] + trellis.states_at[frame]
    target = trellis.target[every] + trellis.states_at[frame + 1]
    lattice = Lattice.of(graph, arc, frame, source, target, trellis.score[every].copy())
    return prune(lattice)


def rows_of(scores: Tensor) -> np.ndarray:
    """Scores [T, P] as the kernels take them: float32, on the CPU."""
    return np.ascontiguousarray(scores.detach().cpu().numpy(), dtype=np.float32)
