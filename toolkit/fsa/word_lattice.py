"""Lattices of words: an arc is a word with its scores, a state is a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit

from toolkit.fsa.best_path import best_arcs

NO_WORD = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class WordLattice:
    """A lattice of A arcs between S states: state 0 starts, the last one ends.

    Every arc leads to a state with a higher number, and arcs ascend by source.
    """

    source: np.ndarray
    """[A] int32."""
    target: np.ndarray
    """[A] int32."""
    words: np.ndarray
    """[A] int32 word ids; 0 is no word, as on arcs into the last state."""
    graph: np.ndarray
    """[A] float64, the logarithm of the probability by language model, pronunciations and HMMs."""
    acoustic: np.ndarray
    """[A] float64 log-likelihoods, not scaled."""
    times: np.ndarray
    """[S] float64 seconds; no arc leads back in time."""

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.source)

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.times)

    def scores(self, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
        """[A] float64, the scores that weights give the arcs; see `toolkit.fsa.lattice.Weights`."""
        penalties = word_penalty * (self.words != NO_WORD)
        return self.graph + acoustic_scale * self.acoustic + penalties

    def best_path(self, scores: np.ndarray) -> np.ndarray:
        """The arcs of the path with the highest sum of `scores` [A]."""
        return best_arcs(self.source, self.target, scores, self.num_states)

    def best_words(self, scores: np.ndarray) -> list[int]:
        """The word ids of that path."""
        words = self.words[self.best_path(scores)]
        return words[words != NO_WORD].tolist()

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        return np.int64(self.source), np.int64(self.target)

    def total(self, scores: np.ndarray) -> float:
        """The logarithm of the summed exponentials of the scores of all paths."""
        return float(_log_sums(*self._ends, scores, self.num_states)[-1])

    def shares(self, scores: np.ndarray) -> np.ndarray:
        """[A] the share that each arc has in the paths that enter its target."""
        sums = _log_sums(*self._ends, scores, self.num_states)
        return np.exp(sums[self.source] + scores - sums[self.target])


@njit(nogil=True, cache=True)
def _log_sums(
    source: np.ndarray, target: np.ndarray, scores: np.ndarray, states: int
) -> np.ndarray:  # pragma: no cover (compiled)
    """[S] the log of the summed exponentials of the scores of the paths into each state."""
    sums = np.full(states, -np.inf)
    sums[0] = 0.0
    for a in range(len(source)):
        sums[target[a]] = np.logaddexp(sums[target[a]], sums[source[a]] + scores[a])
    return sums


def united(lattices: Sequence[WordLattice]) -> WordLattice:
    """The union of lattices: their first states become one, and so do their last ones.

    Kaldi's lattice-combine, after `weighted`.
    """
    counts = [lattice.num_states - 2 for lattice in lattices]
    offsets = np.cumsum([0, *counts])
    last = offsets[-1] + 1
    columns: dict[str, list[np.ndarray]] = {"source": [], "target": []}
    for lattice, offset in zip(lattices, offsets[:-1], strict=True):
        for name, found in columns.items():
            state = getattr(lattice, name)
            inner = np.where(state == lattice.num_states - 1, last, state + offset)
            found.append(np.where(state == 0, 0, inner))
    source, target = (np.concatenate(found).astype(np.int32) for found in columns.values())
    order = np.argsort(source, kind="stable")
    rest = {
        name: np.concatenate([getattr(lattice, name) for lattice in lattices])[order]
        for name in ("words", "graph", "acoustic")
    }
    first = min(lattice.times[0] for lattice in lattices)
    end = max(lattice.times[-1] for lattice in lattices)
    times = np.concatenate([[first], *(lattice.times[1:-1] for lattice in lattices), [end]])
    return WordLattice(source=source[order], target=target[order], times=times, **rest)


def weighted(lattice: WordLattice, scores: np.ndarray, weight: float) -> WordLattice:
    """The lattice with posteriors for scores: those of its paths add up to a weight.

    Args:
      lattice: of one utterance.
      scores: [A] of its arcs.
      weight: above 0.

    Returns:
      All scores are in `graph`.
    """
    graph = scores - np.where(lattice.source == 0, lattice.total(scores) - np.log(weight), 0.0)
    return replace(lattice, graph=graph, acoustic=np.zeros_like(graph))
