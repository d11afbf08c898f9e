"""Dense search: pruned intersection of frame scores with a graph, by native kernels or k2."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from toolkit.engines import SEARCH_VARIABLE, EngineError, search_engine
from toolkit.errors import ToolkitError
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, Lattice, fst_from_arcs
from toolkit.fsa.lattice import BestPath, best_path, path_of, prune
from toolkit.fsa.search_kernels import (
    FrameScores,
    GraphArrays,
    Trellis,
    kernel_scores,
    search,
    viterbi,
)


class GraphMismatchError(ToolkitError):
    """Raised when a graph and an acoustic model do not belong together."""

    @classmethod
    def check(cls, top_label: int, columns: int, graph: Path | str = "the graph") -> None:
        """Raise the error if a label has no column in the scores.

        Args:
          top_label: the graph's highest label.
          columns: P of the scores.
          graph: what the message calls the graph, such as its file.

        Raises:
          GraphMismatchError: a label has no column; the search would read out of bounds.
        """
        if top_label > columns:
            raise cls(
                f"{graph} has {top_label} pdfs, but the acoustic model has {columns}: they come "
                "from different runs; make the graph again with this model's topology"
            )


def search_lattice(scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
    """Return the lattice of one utterance by pruned intersection.

    Args:
      scores: [T, P] scaled log-likelihoods, float32, one row per frame.
      graph: its labels are pdf + 1, without epsilons.
      beam: settings of the pruning.

    Returns:
      The lattice, without dead ends, or None if no path survives to the end.

    Raises:
      GraphMismatchError: the graph has labels without a column in `scores`.
    """
    if len(scores) == 0 or graph.num_arcs == 0:
        return None
    GraphMismatchError.check(graph.top_label, scores.shape[1])
    return engine().lattice(scores, graph, beam)


def search_with_retries(
    scores: Tensor, graph: Fst, beams: Sequence[Beam]
) -> tuple[Lattice | None, Beam]:
    """Search with ever wider beams until a path survives to the end.

    Args:
      scores: see `search_lattice`.
      graph: see `search_lattice`.
      beams: at least one, such as `Beam.with_retries`.

    Returns:
      The lattice (None if no path survives even with the last beam), and the beam tried last.
    """
    for beam in beams:
        lattice = search_lattice(scores, graph, beam)
        if lattice is not None:
            break
    return lattice, beam


def search_best_paths(
    scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
) -> list[BestPath | None]:
    """Return the best path of each utterance through its own graph, without lattices.

    Args:
      scores: [T_n, P_n] for each utterance, the longest first, none empty.
      graphs: the graph of each utterance.
      beam: settings of the pruning in each search.

    Returns:
      The path of each utterance; None where no path survives to the end.

    Raises:
      GraphMismatchError: a graph has labels without a column in its scores.
    """
    for rows, graph in zip(scores, graphs, strict=True):
        GraphMismatchError.check(graph.top_label, rows.shape[1])
    paths: list[BestPath | None] = [None] * len(graphs)
    numbers = [n for n, graph in enumerate(graphs) if graph.num_arcs]
    if numbers:
        with_arcs = [scores[n] for n in numbers], [graphs[n] for n in numbers]
        for n, path in zip(numbers, engine().best_paths(*with_arcs, beam), strict=True):
            paths[n] = path
    return paths


class Engine(Protocol):
    """A dense search engine; all engines follow the same rules and keep the same arcs."""

    def lattice(self, scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
        """Return the lattice of one utterance; see `search_lattice`."""

    def best_paths(
        self, scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
    ) -> list[BestPath | None]:
        """Return the best paths of utterances; see `search_best_paths`."""


def engine() -> Engine:
    """Return the engine that `toolkit.engines.search_engine` names.

    Raises:
      EngineError: the engine is k2, which cannot be imported.
    """
    return load_engine(search_engine())


@contextmanager
def searching_with(name: str) -> Iterator[None]:
    """Use the engine `name` within a `with` statement, e.g. to compare engines."""
    previous = os.environ.get(SEARCH_VARIABLE, "")
    os.environ[SEARCH_VARIABLE] = name
    try:
        yield
    finally:
        os.environ[SEARCH_VARIABLE] = previous


@cache
def load_engine(name: str) -> Engine:
    """Import an engine by name; each process has one instance of it.

    Raises:
      EngineError: the engine is k2, which cannot be imported.
    """
    if name == "native":
        return NativeEngine()
    try:
        from toolkit.fsa.k2_engine import K2Engine
    except ImportError as error:
        raise EngineError(
            f"{SEARCH_VARIABLE} is 'k2', which cannot be imported ({error}). Unset the variable to"
            " search with the toolkit's own kernels, or install k2 (see docs/install.md)"
        ) from error
    return K2Engine()


class NativeEngine:
    """Searches utterances one by one in compiled kernels that release the GIL."""

    def lattice(self, scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
        """Return the lattice of one utterance; see `search_lattice`."""
        limits = (beam.search, beam.min_active, beam.max_active)
        return lattice_of(search(graph_arrays(graph), rows_of(scores), limits, beam.output), graph)

    def best_paths(
        self, scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
    ) -> list[BestPath | None]:
        """Return the best paths of utterances; see `search_best_paths`."""
        limits = (beam.search, beam.min_active, beam.max_active)
        paths: list[BestPath | None] = []
        for rows, graph in zip(scores, graphs, strict=True):
            arcs, score = viterbi(graph_arrays(graph), kernel_scores(rows), limits)
            paths.append(path_of(graph, arcs, score) if len(arcs) else None)
        return paths


def graph_arrays(graph: Fst) -> GraphArrays:
    """Convert a graph to the arrays that the kernels take.

    Raises:
      GraphMismatchError: the graph has no arcs.
    """
    if not graph.num_arcs:
        raise GraphMismatchError("the graph has no arcs: it accepts nothing")
    return GraphArrays(graph.first, graph.target, graph.labels, graph.scores, graph.writes)


def lattice_of(trellis: Trellis, graph: Fst) -> Lattice | None:
    """Return the lattice in a complete trellis; None if no path reached the end."""
    frames = int(trellis.frames[0]) - 1  # the last step followed the arcs to the final state
    if trellis.states_at[frames + 2] == trellis.states_at[frames + 1]:
        return None
    counts = np.diff(trellis.arcs_at[: frames + 2])
    frame = np.repeat(np.arange(frames + 1, dtype=np.int32), counts)
    all_arcs = slice(0, int(trellis.arcs_at[frames + 1]))
    arc = trellis.arc[all_arcs].copy()
    source = trellis.source[all_arcs] + trellis.states_at[frame]
    target = trellis.target[all_arcs] + trellis.states_at[frame + 1]
    lattice = Lattice.of(graph, arc, frame, source, target, trellis.score[all_arcs].copy())
    return prune(lattice)


def rows_of(scores: Tensor) -> np.ndarray:
    """Convert scores [T, P] to the form that the kernels take: float32, on the CPU."""
    return np.ascontiguousarray(scores.detach().cpu().numpy(), dtype=np.float32)


def intersect_two_frames() -> str:
    """Check the search on a two-word graph and two frames with a known best path.

    Returns:
      For a report: the name of the test, followed by the engine.

    Raises:
      RuntimeError: the engine runs but finds another path or score.
    """
    graph = fst_from_arcs(
        [(0, 1, 1, 1, -0.5), (0, 1, 2, 2, 0.0), (1, 2, 1, 1, 0.0), (1, 2, 2, 2, -0.25)], [2]
    )
    frames = torch.tensor([[0.6, 0.3], [0.1, 0.7]]).log()  # [T, P]
    lattice = search_lattice(frames, graph, Beam(20.0, 10.0, 1, 100))
    path = lattice and best_path(lattice)
    expected = math.log(0.6) - 0.5 + math.log(0.7) - 0.25
    if not path or path.words != [1, 2] or abs(path.score - expected) > 1e-5:
        raise RuntimeError(f"the search found {path}, not the words [1, 2] with score {expected}")
    return f"dense pruned intersection ({search_engine()})"
