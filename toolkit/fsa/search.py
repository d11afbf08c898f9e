"""Dense search: frame scores against a graph."""

from dataclasses import dataclass

import k2
import torch
from torch import Tensor

from toolkit.errors import ToolkitError


class GraphMismatchError(ToolkitError):
    """The graph and the acoustic model do not belong together."""


@dataclass(frozen=True)
class Beam:
    """How much of the search space is kept."""

    search: float = 15.0
    """Score below the best partial path at which a path is dropped, in scaled log units."""
    output: float = 6.0
    """Score below the best path within which the lattice keeps alternatives."""
    min_active: int = 30
    """States kept per frame at least."""
    max_active: int = 4000
    """States kept per frame at most."""

    def __post_init__(self) -> None:
        if self.search <= 0 or self.output <= 0:
            raise ValueError("beams must be positive")
        if not 0 < self.min_active <= self.max_active:
            raise ValueError("need 0 < min_active <= max_active")

    def widened(self, factor: float) -> "Beam":
        """The same beam, `factor` times as wide: for a second try."""
        return Beam(
            self.search * factor,
            self.output,
            int(self.min_active * factor),
            int(self.max_active * factor),
        )


def search_lattice(scores: Tensor, graph: k2.Fsa, beam: Beam) -> k2.Fsa | None:
    """The lattice of one utterance by pruned intersection.

    Args:
      scores: [T, P] scaled log-likelihoods, float32, one row per frame.
      graph: an FsaVec of one graph, or an Fsa; its labels are pdf + 1, without epsilons.
      beam: the pruning.

    Returns:
      The lattice as an FsaVec of one, or None when no path survives to the end.

    Raises:
      GraphMismatchError: the graph has labels without a column in `scores` (k2 itself would read
        beyond the matrix).
    """
    top = int(graph.labels.max())
    if top > scores.shape[1]:
        raise GraphMismatchError(
            f"the graph knows {top} pdfs, the acoustic model {scores.shape[1]}: they come from"
            " different runs; make the graph again with this model's topology"
        )
    frames = len(scores)
    if frames == 0:
        return None
    padded = torch.cat([scores.new_full((frames, 1), -1e10), scores], dim=1)[None].contiguous()
    dense = k2.DenseFsaVec(padded, torch.tensor([[0, 0, frames]], dtype=torch.int32))
    if len(graph.shape) == 2:
        graph = k2.create_fsa_vec([graph])
    lattice = k2.intersect_dense_pruned(
        graph,
        dense,
        search_beam=beam.search,
        output_beam=beam.output,
        min_active_states=beam.min_active,
        max_active_states=beam.max_active,
        frame_idx_name="frame",
    )
    return lattice if lattice.arcs.num_elements() else None


@dataclass
class BestPath:
    """The best path through a lattice."""

    pdfs: Tensor
    """[T] the pdf of every frame."""
    words: list[int]
    """Word ids in order."""
    word_frames: list[int]
    """The frame in which each word begins."""
    score: float
    """Total score: scaled acoustic plus graph."""


def best_path(lattice: k2.Fsa) -> BestPath:
    """The single best path of a lattice of one utterance (tropical semiring)."""
    path = k2.shortest_path(lattice, use_double_scores=True)[0]
    frames = path.labels[path.labels >= 0]
    words, starts = [], []
    if isinstance(path.aux_labels, k2.RaggedTensor):
        arc_words = path.aux_labels.tolist()
    else:
        arc_words = [[w] for w in path.aux_labels.tolist()]
    for arc, ids in enumerate(arc_words):
        for word in ids:
            if word > 0:
                words.append(word)
                starts.append(arc)
    return BestPath(frames - 1, words, starts, float(path.scores.sum()))
