"""Lattices: best paths and scores, pruning by beam or density, and reweighting of scores."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import Tensor

from toolkit.config.fields import Finite, FinitePositive, Settings, read_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import ragged_ranges
from toolkit.fsa.fst import FINAL, Fst, Lattice
from toolkit.kernels import njit

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
    """Return the best path of a lattice (tropical semiring, float64)."""
    arcs = best_arcs(lattice.source, lattice.target, lattice.scores, lattice.num_states)
    return path_of(lattice, arcs, float(lattice.scores[arcs].sum(dtype=np.float64)))


def path_of(fst: Fst, arcs: Array, score: float) -> BestPath:
    """Make a path from arcs of a graph or lattice: one per frame, and one to the final state."""
    counts = fst.splits[arcs + 1] - fst.splits[arcs]
    # Words on the arc to the final state belong to the last frame.
    frames = np.repeat(np.minimum(np.arange(len(arcs)), len(arcs) - 2), counts)
    words = [fst.words[fst.splits[arc] : fst.splits[arc + 1]] for arc in arcs[counts > 0]]
    labels = fst.labels[arcs[:-1]].astype(np.int64)
    joined = np.concatenate(words) if words else np.zeros(0, np.int32)
    return BestPath(labels - 1, joined.tolist(), frames.tolist(), score)


@njit(nogil=True, cache=True)
def best_arcs(source: Array, target: Array, scores: Array, states: int) -> Array:
    """Return the arcs of the best path from state 0 to the last state.

    Args:
      source, target, scores: [A] the arcs, ascending by source; every arc leads to a state with a
        higher number.
      states: number of states; if 0, the path is empty.
    """
    if states == 0:
        return np.empty(0, np.int64)
    forward, entry = np.full(states, -np.inf), np.full(states, -1)
    forward[0] = 0.0
    # States are numbered in topological order, so that one pass over the arcs gives the best
    # scores.
    for a in range(len(source)):
        total = forward[source[a]] + scores[a]
        if total > forward[target[a]]:
            forward[target[a]], entry[target[a]] = total, a
    # Follow the entries back from the last state: first to count them, then to write them.
    length, state = 0, states - 1
    while entry[state] >= 0:
        length, state = length + 1, source[entry[state]]
    path, state = np.empty(length, np.int64), states - 1
    for step in range(length - 1, -1, -1):
        path[step] = entry[state]
        state = source[entry[state]]
    return path


def forward_scores(fst: Fst) -> np.ndarray:
    """Return the best score of a path from the start to each state: [states] float64.

    Args:
      fst: its states are numbered in topological order, as those of lattices are.

    Returns:
      -inf for a state that no path reaches.
    """
    best = np.full(fst.num_states, -np.inf)
    best[:1] = 0.0
    _forward(fst.source, fst.target, fst.scores, best)
    return best


def backward_scores(fst: Fst) -> np.ndarray:
    """Return the best score of a path from each state to the end: [states] float64.

    Args:
      fst: see `forward_scores`.

    Returns:
      -inf for a state from which no path leads to the end.
    """
    best = np.full(fst.num_states, -np.inf)
    best[-1:] = 0.0
    _backward(fst.source, fst.target, fst.scores, best)
    return best


@njit(cache=True, nogil=True)
def _forward(source: np.ndarray, target: np.ndarray, scores: np.ndarray, best: np.ndarray) -> None:
    """Compute `forward_scores` in place, over arcs sorted by source."""
    for a in range(len(source)):
        score = best[source[a]] + np.float64(scores[a])
        best[target[a]] = max(best[target[a]], score)


@njit(cache=True, nogil=True)
def _backward(source: np.ndarray, target: np.ndarray, scores: np.ndarray, best: np.ndarray) -> None:
    """Compute `backward_scores` in place, over arcs sorted by source."""
    for a in range(len(source) - 1, -1, -1):
        score = best[target[a]] + np.float64(scores[a])
        best[source[a]] = max(best[source[a]], score)


AnyFst = TypeVar("AnyFst", bound=Fst)


def prune(lattice: AnyFst, beam: float = math.inf) -> AnyFst | None:
    """Keep the arcs on paths that score at most `beam` below the best path.

    An infinite beam removes dead ends only.

    Args:
      lattice: the lattice of an utterance, its states in topological order.
      beam: in the units of the lattice's scores.

    Returns:
      The lattice that is left, or None if no path reaches the end.
    """
    if not (lattice.labels == FINAL).any():
        return None
    forward, backward = forward_scores(lattice), backward_scores(lattice)
    path_scores = forward[lattice.source] + lattice.scores + backward[lattice.target]
    best = float(path_scores.max())
    if not math.isfinite(best):  # no path, or scores that are not numbers
        return None
    # The margin allows for the rounding of sums in another order; -1e300 drops arcs on no path.
    arcs = np.flatnonzero(path_scores > max(best - beam - 1e-6 * abs(best), -1e300))
    if len(arcs) == lattice.num_arcs:
        return lattice
    source, target = lattice.source[arcs], lattice.target[arcs]
    alive = np.zeros(lattice.num_states, dtype=bool)
    alive[source] = alive[target] = True
    new_state = (np.cumsum(alive) - 1).astype(np.int32)
    return lattice.select_arcs(arcs, source=new_state[source], target=new_state[target])


def in_order(source: np.ndarray, target: np.ndarray, num_states: int) -> bool:
    """Whether arcs are sorted by source, lead to later states, and use all `num_states` states."""
    ordered = (np.diff(source) >= 0).all() and (source >= 0).all() and (target > source).all()
    states = np.union1d(source, target)
    return bool(ordered and len(states) == num_states == states.max(initial=-1) + 1)


class LatticeTraversal:
    """A lattice with an index of the arcs out of each state.

    Args:
      lattice: a lattice as dense search gives it: arcs are sorted by source, and every arc leads
        from a state of one frame to a state of the next.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.target = lattice.target.astype(np.int64)
        self.final = lattice.labels == FINAL
        self._first = lattice.first.astype(np.int64)
        self.splits, self.words = lattice.splits, lattice.words

    def out_arcs(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the arcs out of `states`: the source's position in `states`, and the arc."""
        return ragged_ranges(self._first, states)

    def output_words(self, arc: np.ndarray) -> "list[tuple[np.ndarray, np.ndarray]]":
        """Return (positions in `arc`, word ids) of the arcs' first words, second words, ..."""
        begin, end = self.splits[arc], self.splits[arc + 1]
        steps = []
        while True:
            writing = np.flatnonzero(begin < end)
            if not len(writing):
                return steps
            steps.append((writing, self.words[begin[writing]]))
            begin = begin + 1


class WeightsError(ToolkitError):
    """Raised when a file of weights cannot be read."""


@dataclass(frozen=True, order=True)
class Weights(Settings):
    """Acoustic scale and word penalty, relative to the language model."""

    acoustic_scale: FinitePositive
    """Factor on acoustic log-likelihoods (kappa, C2)."""
    word_penalty: Finite = 0.0
    """Added to the score for each word; a negative value gives fewer words."""

    @classmethod
    def load(cls, path: Path) -> "Weights":
        """Read the weights that decoding tuned, from its `tuned.json`.

        Raises:
          WeightsError: the file cannot be read, or is damaged; names the file.
        """
        return read_plain(path, cls, WeightsError, "decode again")


def acoustic_scores(lattice: Lattice, scores: Tensor) -> np.ndarray:
    """Return the acoustic part of each arc's score: [arcs].

    Args:
      lattice: from `search_lattice` with the same `scores`.
      scores: [T, P] scaled log-likelihoods.
    """
    emitting = lattice.labels > 0
    acoustic = np.zeros_like(lattice.scores)
    rows = scores.detach().cpu().numpy()
    acoustic[emitting] = rows[lattice.frame[emitting], lattice.labels[emitting] - 1]
    return acoustic


@dataclass(frozen=True, eq=False)
class ScoredLattice:
    """A lattice with separate acoustic and graph scores, to be weighted in several ways."""

    lattice: Lattice
    """The paths."""
    acoustic: np.ndarray
    """[A] float32 log-likelihoods, unscaled."""
    graph: np.ndarray
    """[A] float32 graph scores."""

    @classmethod
    def of(cls, lattice: Lattice, scores: Tensor, scale: float) -> "ScoredLattice":
        """Split the scores of a lattice into acoustic and graph scores.

        Args:
          lattice: from `search_lattice`, or rescored by `rescore_lattice`.
          scores: [T, P] the scores it was searched with.
          scale: the acoustic scale in `scores`.
        """
        acoustic = acoustic_scores(lattice, scores)
        return cls(lattice, acoustic / np.float32(scale), lattice.scores - acoustic)

    def weighted(self, weights: Weights) -> np.ndarray:
        """Return the arcs' scores under `weights`: [arcs] float32."""
        scale, penalty = np.float32(weights.acoustic_scale), np.float32(weights.word_penalty)
        return self.graph + self.acoustic * scale + self.lattice.word_counts * penalty

    def best_path(self, weights: Weights) -> BestPath:
        """Return the best path under `weights`."""
        lattice, scores = self.lattice, self.weighted(weights)
        arcs = best_arcs(lattice.source, lattice.target, scores, lattice.num_states)
        return path_of(lattice, arcs, float(scores[arcs].sum(dtype=np.float64)))

    def best_words(self, weights: Weights) -> list[int]:
        """Return the word ids of the best path under `weights`."""
        return self.best_path(weights).words


# Paths whose scores differ by less are kept or dropped together, since scores are sums of float32.
TIE = 1e-6


@dataclass(frozen=True)
class LatticeArcs:
    """A lattice as arcs of its graph, in order of frame and arc."""

    frames: int
    """T, the emitting frames."""
    frame: np.ndarray
    """[A] int32: the frame of each arc, T for arcs to the final state."""
    arc: np.ndarray
    """[A] int32: the graph's arc."""

    @property
    def num_emitting(self) -> int:
        """Number of arcs, without those to the final state."""
        return int(np.count_nonzero(self.frame < self.frames))


def prune_to_density(
    lattice: Lattice,
    frames: int,
    density: float,
    beam: float,
) -> LatticeArcs:
    """Keep the arcs of the best paths, as many as the density allows.

    An arc's score is that of the best path through it. The arc is kept if the lattice's best path
    is better by less than a threshold, which is the largest one up to `beam` that meets the
    density. So the best path is always kept, and so is the best path through every arc that is
    kept. Arcs of equal score are kept or dropped together; only if they are on best paths may
    there be more than the density allows. Kaldi's lattice-prune does the same with a fixed
    threshold.

    A search's lattice is complete up to its output beam. Which arcs it has beyond that beam depends
    on when the search pruned; with k2 on read speech they are up to two thirds of all arcs. They
    are always dropped.

    Args:
      lattice: the lattice of an utterance, from `search_lattice`.
      frames: T, its number of frames.
      density: largest mean number of arcs per frame; at least 1, the density of the best path
        alone.
      beam: the output beam of the search.
    """
    forward, backward = forward_scores(lattice), backward_scores(lattice)
    loss = forward[-1] - (forward[lattice.source] + lattice.scores + backward[lattice.target])
    key = (lattice.frame.astype(np.int64) << 32) + lattice.graph_arc
    # Arcs to the final state, one on each path, are not counted.
    emitting = key < frames << 32
    threshold = _threshold(np.sort(loss[emitting]), int(density * frames), beam)
    kept_keys = np.sort(key[loss < threshold])
    return LatticeArcs(frames, (kept_keys >> 32).astype(np.int32), kept_keys.astype(np.int32))


def _threshold(losses: np.ndarray, num_kept: int, beam: float) -> float:
    """Return the largest threshold, up to `beam`, that keeps at most `num_kept` of the losses."""
    num_kept = min(num_kept, int(np.searchsorted(losses, beam)))
    if num_kept >= len(losses):
        return beam
    gaps = np.flatnonzero(np.diff(losses[: num_kept + 1]) > TIE)
    last_kept = gaps[-1] if len(gaps) else 0
    return float(losses[last_kept] + TIE / 2)
