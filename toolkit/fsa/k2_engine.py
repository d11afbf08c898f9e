"""Dense search by k2 (1.23.4 or later), on the device of the scores."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import k2
import numpy as np
import torch
from torch import Tensor

from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.lattice import BestPath, best_path, prune
from toolkit.fsa.search_kernels import FrameScores
from toolkit.hmm.gmm import LazyGmmScores


class K2Engine:
    """Pruned intersection by k2, whose overhead per frame is shared by the utterances."""

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[Fst, dict[torch.device, k2.Fsa]] = WeakKeyDictionary()

    def lattice(self, scores: Tensor, graph: Fst, beam: Beam) -> Lattice | None:
        """Return the lattice of one utterance; see `toolkit.fsa.search.search_lattice`."""
        devices = self._graphs.setdefault(graph, {})
        if scores.device not in devices:
            devices[scores.device] = k2.create_fsa_vec([to_k2(graph)]).to(scores.device)
        return _lattices([scores], devices[scores.device], [graph], beam)[0]

    def best_paths(
        self, scores: Sequence[FrameScores], graphs: Sequence[Fst], beam: Beam
    ) -> list[BestPath | None]:
        """Return the best paths of utterances; see `toolkit.fsa.search.search_best_paths`."""
        dense = [rows.dense() if isinstance(rows, LazyGmmScores) else rows for rows in scores]
        joined = k2.create_fsa_vec([to_k2(graph) for graph in graphs]).to(dense[0].device)
        lattices = _lattices(dense, joined, graphs, beam)
        return [None if lattice is None else best_path(lattice) for lattice in lattices]


def to_k2(fst: Fst) -> k2.Fsa:
    """Convert a transducer to k2; its attribute `graph_arc` numbers the arcs."""
    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    fsa = k2.Fsa(torch.from_numpy(np.stack(columns, axis=1)))
    fsa.graph_arc = torch.arange(fst.num_arcs, dtype=torch.int32)
    return fsa


def _lattices(
    scores: Sequence[Tensor], graph_vec: k2.Fsa, graphs: Sequence[Fst], beam: Beam
) -> list[Lattice | None]:
    """Return the lattices of utterances that are sorted from longest to shortest.

    Args:
      scores: [T_n, P_n] for each utterance.
      graph_vec: an FsaVec with a graph for each utterance.
      graphs: the same graphs as transducers.
      beam: settings of the pruning.
    """
    # Column 0 belongs to epsilon, which no graph reads.
    columns = max(rows.shape[1] for rows in scores)
    padded = scores[0].new_full((len(scores), len(scores[0]), columns + 1), -1e10)
    for row, values in zip(padded, scores, strict=True):
        row[: len(values), 1 : values.shape[1] + 1] = values
    segments = [[n, 0, len(values)] for n, values in enumerate(scores)]
    dense = k2.DenseFsaVec(padded.float(), torch.tensor(segments, dtype=torch.int32))
    intersection = k2.intersect_dense_pruned(
        graph_vec,
        dense,
        search_beam=beam.search,
        output_beam=beam.output,
        min_active_states=beam.min_active,
        max_active_states=beam.max_active,
        frame_idx_name="frame",
    ).to("cpu")
    states, arcs = intersection.arcs.row_splits(1).tolist(), intersection.arcs.row_splits(2)
    table = intersection.arcs.values().numpy()
    lattices = []
    for n, graph in enumerate(graphs):
        arc_range = slice(int(arcs[states[n]]), int(arcs[states[n + 1]]))
        graph_arc = intersection.graph_arc[arc_range].numpy()
        # k2 numbers arcs through all the graphs of an FsaVec; `graph_arc` counts within each graph.
        frame, scores = (
            intersection.frame[arc_range].numpy(),
            intersection.scores[arc_range].detach().numpy(),
        )
        lattice = Lattice.of(
            graph, graph_arc, frame, table[arc_range, 0], table[arc_range, 1], scores
        )
        lattices.append(prune(lattice))
    return lattices


def total_scores_and_posteriors(lattices: Sequence[Lattice]) -> tuple[Tensor, Tensor]:
    """Return total scores [N] and arc posteriors [A] of lattices, in float64.

    They are a reference for `toolkit.fsa.forward_backward`.
    """
    lattice_vec = k2.create_fsa_vec([to_k2(lattice) for lattice in lattices])
    totals = lattice_vec.get_tot_scores(use_double_scores=True, log_semiring=True)
    posteriors = lattice_vec.get_arc_post(use_double_scores=True, log_semiring=True)
    return totals, posteriors.exp()
