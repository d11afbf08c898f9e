"""Dense search: pruned intersection of frame scores with a graph."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import k2
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.fsa.pruning import prune


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
        if not 0 < self.min_active < self.max_active:
            raise ValueError("need 0 < min_active < max_active")

    def widened(self, factor: float) -> "Beam":
        """The same beam, `factor` times as wide: for a second try."""
        return Beam(
            self.search * factor,
            self.output,
            int(self.min_active * factor),
            int(self.max_active * factor),
        )

    def with_retries(self, factors: Iterable[float]) -> list["Beam"]:
        """This beam, then the same widened by each of `factors`."""
        return [self, *(self.widened(factor) for factor in factors)]


def search_lattice(scores: Tensor, graph: k2.Fsa, beam: Beam) -> k2.Fsa | None:
    """The lattice of one utterance by pruned intersection.

    Args:
      scores: [T, P] scaled log-likelihoods, float32, one row per frame.
      graph: its labels are pdf + 1, without epsilons; an FsaVec of one (`load_graph`) saves a copy
        of a large graph for every utterance.
      beam: the pruning.

    Returns:
      The lattice as an FsaVec of one without dead ends, or None when no path survives to the end.

    Raises:
      GraphMismatchError: the graph has labels without a column in `scores`.
    """
    if len(scores) == 0:
        return None
    graphs = graph if len(graph.shape) == 3 else k2.create_fsa_vec([graph])
    return prune(search_lattices([scores], graphs, beam))


def search_with_retries(
    scores: Tensor, graph: k2.Fsa, beams: Sequence[Beam]
) -> tuple[k2.Fsa | None, Beam]:
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


_TOP_LABELS: "WeakKeyDictionary[k2.Fsa, int]" = WeakKeyDictionary()


def _top_label(graphs: k2.Fsa) -> int:
    """The highest label; looked for once per graph, since of a large one it takes 10 ms."""
    if graphs not in _TOP_LABELS:
        _TOP_LABELS[graphs] = int(graphs.labels.max())
    return _TOP_LABELS[graphs]


def search_lattices(scores: Sequence[Tensor], graphs: k2.Fsa, beam: Beam) -> k2.Fsa:
    """The lattices of several utterances in one call, which shares k2's overhead per frame.

    Args:
      scores: for each utterance [T_n, P_n], the longest first, none empty.
      graphs: an FsaVec with a graph for each utterance.
      beam: the pruning of each.

    Returns:
      An FsaVec; the lattice of an utterance of which no path survives has no final arc.

    Raises:
      GraphMismatchError: a graph has labels without a column in `scores` (k2 itself would read
        beyond the matrix).
    """
    top, columns = _top_label(graphs), max(x.shape[1] for x in scores)
    if top > columns:
        raise GraphMismatchError(
            f"the graph has {top} pdfs, the acoustic model {columns}: they come from"
            " different runs; make the graph again with this model's topology"
        )
    # Column 0 belongs to epsilon, which no graph reads.
    padded = scores[0].new_full((len(scores), len(scores[0]), columns + 1), -1e10)
    for row, values in zip(padded, scores, strict=True):
        row[: len(values), 1 : values.shape[1] + 1] = values
    segments = [[n, 0, len(values)] for n, values in enumerate(scores)]
    dense = k2.DenseFsaVec(padded, torch.tensor(segments, dtype=torch.int32))
    return k2.intersect_dense_pruned(
        graphs,
        dense,
        search_beam=beam.search,
        output_beam=beam.output,
        min_active_states=beam.min_active,
        max_active_states=beam.max_active,
        frame_idx_name="frame",
    )


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
    return best_paths(lattice)[0]


def best_paths(lattices: k2.Fsa) -> list[BestPath | None]:
    """The best path of every lattice of an FsaVec, None where no path reaches the end."""
    paths = k2.shortest_path(lattices, use_double_scores=True)
    splits = paths.arcs.row_splits(1).tolist()
    states = paths.arcs.row_splits(2).tolist()
    words = paths.aux_labels.tolist()
    found: list[BestPath | None] = []
    for first_state, last_state in itertools.pairwise(splits):
        arcs = slice(states[first_state], states[last_state])
        labels = paths.labels[arcs]
        if not len(labels):
            found.append(None)
            continue
        path = BestPath(labels[labels >= 0] - 1, [], [], float(paths.scores[arcs].double().sum()))
        for frame, written in enumerate(words[arcs]):
            for word in written if isinstance(written, list) else [written]:
                if word > 0:
                    path.words.append(word)
                    path.word_frames.append(frame)
        found.append(path)
    return found
