"""Weighted transducers as plain arrays, lattices found by searching them, and graph files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import ragged_ranges
from toolkit.kernels import njit
from toolkit.storage.reading import read_tensors, reading

# (source state, destination state, input label, output label, score)
Arc = tuple[int, int, int, int, float]
EPSILON = 0
FINAL = -1
AnyFst = TypeVar("AnyFst", bound="Fst")


@dataclass(frozen=True, eq=False, kw_only=True)
class Fst:
    """A transducer with A arcs; state 0 is the start, and arcs with label -1 enter the last state.

    The conventions are those of k2, so that engines can exchange graphs.
    """

    source: np.ndarray
    """[A] int32, ascending."""
    target: np.ndarray
    """[A] int32."""
    labels: np.ndarray
    """[A] int32 input labels; 0 reads nothing, -1 leads to the final state."""
    scores: np.ndarray
    """[A] float32 natural logarithms; larger is better."""
    splits: np.ndarray
    """[A + 1] int32: arc a writes `words[splits[a] : splits[a + 1]]`."""
    words: np.ndarray
    """[W] int32 output labels, above 0."""
    lm_scores: np.ndarray | None = None
    """[A] float32, the language model's part of `scores`, where it is known."""

    @property
    def num_arcs(self) -> int:
        """Number of arcs, A."""
        return len(self.source)

    @cached_property
    def num_states(self) -> int:
        """Number of states, including the final one; 0 without arcs."""
        return 1 + int(max(self.source.max(), self.target.max())) if self.num_arcs else 0

    @cached_property
    def first(self) -> np.ndarray:
        """First arc of each state: [states + 1] int32."""
        return np.searchsorted(self.source, np.arange(self.num_states + 1)).astype(np.int32)

    @cached_property
    def top_label(self) -> int:
        """Highest input label."""
        return int(self.labels.max(initial=FINAL))

    @property
    def word_counts(self) -> np.ndarray:
        """Number of words on each arc: [A]."""
        return np.diff(self.splits)

    @cached_property
    def writes(self) -> np.ndarray:
        """Whether each arc writes a word: [A] bool."""
        return self.word_counts > 0

    def select_arcs(self: AnyFst, arcs: np.ndarray, **changes: Any) -> AnyFst:
        """Return the transducer with some of the arcs, which must stay sorted by source.

        Args:
          arcs: [B] indices, or [A] bool.
          changes: fields of the result with new values, [B] each.
        """
        arcs = np.flatnonzero(arcs) if arcs.dtype == bool else arcs
        columns = {
            name: value[arcs]
            for name, value in vars(self).items()
            if name in _columns(type(self)) and name not in changes and value is not None
        }
        splits, words = select_words(self.splits, self.words, arcs)
        return replace(self, **columns, splits=splits, words=words, **changes)


@dataclass(frozen=True, eq=False, kw_only=True)
class Lattice(Fst):
    """The lattice of an utterance: paths through a graph, with one arc per frame.

    Arcs lead from states of one frame to states of the next.
    """

    frame: np.ndarray
    """[A] int32, the row of the scores that an arc reads; T for arcs to the final state."""
    graph_arc: np.ndarray
    """[A] int32, the arc of the searched graph."""

    @classmethod
    def of(
        cls,
        graph: Fst,
        graph_arc: np.ndarray,
        frame: np.ndarray,
        source: np.ndarray,
        target: np.ndarray,
        scores: np.ndarray,
    ) -> "Lattice":
        """Make a lattice whose arcs write the words of their graph arcs.

        Args:
          graph: the graph that was searched.
          graph_arc: see `Lattice.graph_arc`.
          frame: see `Lattice.frame`.
          source: [A] the lattice's own states, ascending.
          target: [A] the lattice's own states.
          scores: [A] float32.
        """
        splits, words = select_words(graph.splits, graph.words, graph_arc)
        return cls(
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            labels=graph.labels[graph_arc],
            scores=scores,
            splits=splits,
            words=words,
            lm_scores=None if graph.lm_scores is None else graph.lm_scores[graph_arc],
            frame=frame,
            graph_arc=graph_arc,
        )

    @property
    def state_frames(self) -> np.ndarray:
        """Frame of each state, T for the last one: [S]."""
        return np.append(self.frame[self.first[:-2]], self.frame[-1])


def _columns(kind: type) -> set[str]:
    """Return the fields that have an entry for each arc."""
    return set(kind.__dataclass_fields__) - {"splits", "words"}


def select_words(
    splits: np.ndarray, words: np.ndarray, arcs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the splits and words of some arcs, in the order of `arcs`."""
    new_splits = np.zeros(len(arcs) + 1, np.int32)
    np.cumsum(splits[arcs + 1] - splits[arcs], out=new_splits[1:])
    _, positions = ragged_ranges(splits, arcs)
    return new_splits, words[positions]


def fst_from_arcs(arcs: Sequence[Arc], finals: Iterable[int] | Mapping[int, float]) -> Fst:
    """Make a transducer from arcs.

    The start state is 0. The one final state, numbered last and entered by arcs labelled -1, is
    added here.

    Args:
      arcs: in any order.
      finals: the states in which paths may end, or a mapping to the scores of ending there.
    """
    ends = finals if isinstance(finals, Mapping) else dict.fromkeys(finals, 0.0)
    last = 1 + max([max(a[0], a[1]) for a in arcs] + list(ends))
    ordered = sorted(
        [*arcs, *((s, last, FINAL, EPSILON, score) for s, score in ends.items())],
        key=lambda a: a[0],
    )
    table = np.array([a[:4] for a in ordered], np.int32)
    writes = table[:, 3] > 0
    return Fst(
        source=table[:, 0].copy(),
        target=table[:, 1].copy(),
        labels=table[:, 2].copy(),
        scores=np.array([a[4] for a in ordered], np.float32),
        splits=np.append(0, writes.cumsum()).astype(np.int32),
        words=table[writes, 3],
    )


def connect(fst: AnyFst) -> AnyFst:
    """Remove states and arcs that are not on a path from start to end; keep the order.

    Returns:
      The transducer; without arcs if there is no path.
    """
    if not (fst.labels == FINAL).any():
        return fst.select_arcs(np.zeros(fst.num_arcs, bool))
    # Keep states that the start reaches and that reach the end (found along arcs sorted by target).
    last = fst.num_states - 1
    forward = _reachable(fst.first, fst.target, 0)
    by_target = np.argsort(fst.target, kind="stable").astype(np.int32)
    first_incoming = np.searchsorted(fst.target[by_target], np.arange(fst.num_states + 1)).astype(
        np.int32
    )
    alive = forward & _reachable(first_incoming, fst.source[by_target], last)
    new_state = (np.cumsum(alive) - 1).astype(np.int32)
    arcs = np.flatnonzero(alive[fst.source] & alive[fst.target])
    return fst.select_arcs(
        arcs, source=new_state[fst.source[arcs]], target=new_state[fst.target[arcs]]
    )


def arc_sort(fst: AnyFst) -> AnyFst:
    """Return the transducer with each state's arcs sorted by label and target."""
    order = np.lexsort((fst.target, fst.labels, fst.source))
    return fst.select_arcs(order)


@njit(cache=True, nogil=True)
def _reachable(first: np.ndarray, target: np.ndarray, state: int) -> np.ndarray:
    """Return which states can be reached from `state`: [states] bool."""
    reached = np.zeros(len(first) - 1, np.bool_)
    stack = np.empty(len(first), np.int32)
    stack[0], size = state, 1
    reached[state] = True
    # Depth-first search.
    while size:
        size -= 1
        state_on_stack = stack[size]
        for arc in range(first[state_on_stack], first[state_on_stack + 1]):
            next_state = target[arc]
            if not reached[next_state]:
                reached[next_state] = True
                stack[size] = next_state
                size += 1
    return reached


_SHAPES = {
    "arcs": ("I32", 2),
    "scores": ("F32", 1),
    "aux_labels": ("I32", 1),
    "aux_splits": ("I32", 1),
}
_OPTIONAL = {"lm_scores": ("F32", 1)}


class GraphError(ToolkitError):
    """Raised when a file does not hold a graph."""


def dump_fst(fst: Fst) -> bytes:
    """Serialise a transducer as safetensors: arcs, output labels, LM scores.

    `arcs` is k2's table: source, destination, label and the bits of the float32 score. Arc a writes
    `aux_labels[aux_splits[a] : aux_splits[a + 1]]`.
    """
    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    tensors = {
        "arcs": np.stack(columns, axis=1),
        "scores": fst.scores,
        "aux_labels": fst.words,
        "aux_splits": fst.splits,
    }
    if fst.lm_scores is not None:
        tensors["lm_scores"] = fst.lm_scores
    return save({name: np.ascontiguousarray(value) for name, value in tensors.items()})


def load_fst(path: Path) -> Fst:
    """Read a file that holds the result of `dump_fst`.

    Raises:
      GraphError: the file cannot be read, or holds no graph; names the file.
    """
    with reading(path, GraphError, "make the graph again", "not a graph"):
        tensors, _ = read_tensors(path, _SHAPES, "np", _OPTIONAL)
        _check_arcs(tensors)
        arcs = tensors["arcs"]
        return Fst(
            source=arcs[:, 0].copy(),
            target=arcs[:, 1].copy(),
            labels=arcs[:, 2].copy(),
            scores=tensors["scores"],
            splits=tensors["aux_splits"],
            words=tensors["aux_labels"],
            lm_scores=tensors.get("lm_scores"),
        )


def _check_arcs(tensors: dict[str, np.ndarray]) -> None:
    """Check the assumptions of searches, which would read out of bounds otherwise.

    Raises:
      ValueError: the tensors do not form a transducer.
    """
    arcs, words, splits = tensors["arcs"], tensors["aux_labels"], tensors["aux_splits"]
    lengths = {len(tensors[name]) for name in ("scores", "lm_scores") if name in tensors}
    if arcs.shape[1] != 4 or lengths != {len(arcs)} or len(splits) != len(arcs) + 1:
        raise ValueError("the sizes of its tensors do not match")
    if splits[0] != 0 or splits[-1] != len(words) or (np.diff(splits) < 0).any():
        raise ValueError("it has output labels that belong to no arc")
    if (words <= EPSILON).any():
        raise ValueError("output labels below 1")
    if not len(arcs):
        raise ValueError("no arcs")
    source, target, labels = arcs[:, 0], arcs[:, 1], arcs[:, 2]
    final = int(arcs[:, :2].max())
    if final > len(arcs) or (arcs[:, :2] < 0).any():
        raise ValueError("it has more states than its arcs can connect, or state numbers below 0")
    if (np.diff(source) < 0).any() or (source == final).any():
        raise ValueError("its arcs are not sorted by source state")
    if not np.array_equal(labels == FINAL, target == final) or (labels < FINAL).any():
        raise ValueError("an arc to the final state lacks the label -1, or another arc has it")
    if (labels == EPSILON).any():
        raise ValueError("arcs with input epsilon")
