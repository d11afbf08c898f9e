"""Dense search: pruned intersection of frame scores with a graph."""

from collections.abc import Sequence

from torch import Tensor

from toolkit.fsa.beam import Beam, GraphMismatchError
from toolkit.fsa.best_path import BestPath
from toolkit.fsa.engine import engine
from toolkit.fsa.frame_rows import FrameScores
from toolkit.fsa.fst import Fst, Lattice


def search_lattice(scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
    """The lattice of one utterance by pruned intersection.

    Args:
      scores: [T, P] scaled log-likelihoods, float32, one row per frame.
      graph: its labels are pdf + 1, without epsilons.
      beam: the pruning.

    Returns:
      The lattice, without dead ends, or None when no path survives to the end.

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
    """Search with one beam after the other until a path survives to the end.

    Args:
      scores: see `search_lattice`.
      graph: see `search_lattice`.
      beams: at least one, such as `Beam.with_retries`.

    Returns:
      The lattice, None when no path survives even the last beam, and the beam tried last.
    """
    for beam in beams:
        lattice = search_lattice(scores, graph, beam)
        if lattice is not None:
            break
    return lattice, beam


def search_best_paths(
    scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
) -> list[BestPath | None]:
    """The best path of each of several utterances through its own graph, without lattices.

    Args:
      scores: for each utterance [T_n, P_n], the longest first, none empty.
      graphs: for each its graph.
      beam: the pruning of each.

    Returns:
      For each its path; None where none survives to the end.

    Raises:
      GraphMismatchError: a graph has labels without a column in its scores.
    """
    for rows, graph in zip(scores, graphs, strict=True):
        GraphMismatchError.check(graph.top_label, rows.shape[1])
    found: list[BestPath | None] = [None] * len(graphs)
    some = [n for n, graph in enumerate(graphs) if graph.num_arcs]
    if some:
        own = [scores[n] for n in some], [graphs[n] for n in some]
        for n, path in zip(some, engine().best_paths(*own, beam), strict=True):
            found[n] = path
    return found
