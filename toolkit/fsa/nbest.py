"""Word sequences of a lattice: the n best, and samples from the posterior."""

from dataclasses import dataclass, replace

import numpy as np

from toolkit.fsa.best_scores import backward_scores
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.sampling import sampled_arcs
from toolkit.fsa.traversal import LatticeTraversal

BEAMS = (1.0, 2.0, 4.0, 8.0, 16.0, np.inf)
"""How far n-best lists may reach below the best path, in turn until they are full."""


@dataclass(frozen=True)
class Hypothesis:
    """A word sequence, scored by its best path."""

    words: tuple[int, ...]
    """Word ids."""
    score: float
    """Total score under the given weights."""
    acoustic: float
    """Acoustic log-likelihood, unscaled."""
    lm: float
    """Log-probability of the language model."""


def n_best(lattice: ScoredLattice, weights: Weights, count: int) -> list[Hypothesis]:
    """The `count` best word sequences, each once, the best first.

    Exact: of the partial sequences that reach a state only the `count` best can be part of the
    result, since all of them can continue in the same ways. Those whose best completion is worse
    than the best path by more than a beam are left out, and the beam is widened until `count`
    sequences are within it, so that work grows with what is near the best path rather than with
    the lattice. Which of sequences with the same score are taken, and their order, is arbitrary.

    Args:
      lattice: of one utterance.
      weights: the weights of the score.
      count: most sequences to return; a lattice may have fewer.
    """
    scores = lattice.weighted(weights)
    columns = np.stack(
        [scores, lattice.acoustic, lattice.lattice.lm_scores], axis=1, dtype=np.float64
    )
    traversal = LatticeTraversal(lattice.lattice)
    rest = backward_scores(replace(lattice.lattice, scores=scores))
    for beam in BEAMS:
        worst = rest[0] - beam - 1e-6 * abs(rest[0])
        found = _within(traversal, columns, rest, worst, count)
        if len(found) == count:
            break
    return found


def _within(
    traversal: LatticeTraversal, columns: np.ndarray, rest: np.ndarray, worst: float, count: int
) -> list[Hypothesis]:
    """At most `count` of the word sequences whose score is at least `worst`, the best first.

    Args:
      traversal: the lattice.
      columns: [A, 3] float64, of each arc the three scores of a `Hypothesis`.
      rest: [S] float64, the best score from each state to the end.
      worst: see above.
      count: see above.
    """
    histories = _Histories()
    states, history = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    sums = np.zeros((1, 3))
    while True:
        source, arc = traversal.out_arcs(states)
        if not len(arc):
            break
        near = sums[source, 0] + columns[arc, 0] + rest[traversal.target[arc]] >= worst
        source, arc = source[near], arc[near]
        read = history[source]
        for writing, words in traversal.output_words(arc):
            read[writing] = histories.extend(read[writing], words)
        total = sums[source] + columns[arc]
        kept = _best(traversal.target[arc], read, total[:, 0], count)
        states, history, sums = traversal.target[arc[kept]], read[kept], total[kept]
    order = np.lexsort((history, -sums[:, 0]))
    return [Hypothesis(histories.words(int(history[i])), *sums[i].tolist()) for i in order]


def sampled_words(lattice: ScoredLattice, weights: Weights, count: int) -> list[tuple[int, ...]]:
    """The word ids of `count` paths drawn in proportion to their posteriors.

    The same paths in every call: the probability mass is divided into `count` equal parts.
    """
    fst = lattice.lattice
    paths = sampled_arcs(fst, lattice.weighted(weights), count)
    return [
        tuple(word for arc in path[fst.word_counts[path] > 0] for word in _words(fst, arc))
        for path in paths
    ]


def _words(lattice: Lattice, arc: int) -> list[int]:
    return lattice.words[lattice.splits[arc] : lattice.splits[arc + 1]].tolist()


def _best(states: np.ndarray, history: np.ndarray, score: np.ndarray, count: int) -> np.ndarray:
    """For each state the positions of its `count` best histories, each once."""
    order = np.lexsort((-score, history, states))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(states[order]) != 0) | (np.diff(history[order]) != 0)
    once = order[new]
    once = once[np.lexsort((history[once], -score[once], states[once]))]
    first = np.flatnonzero(np.diff(states[once], prepend=-1))
    rank = np.arange(len(once)) - np.repeat(first, np.diff(first, append=len(once)))
    return once[rank < count]


class _Histories:
    """Integer ids of word sequences; 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._entries: list[tuple[int, int]] = [(0, 0)]

    def extend(self, history: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The ids of histories [N], each extended by one word."""
        pairs, place = np.unique(np.stack([history, words]), axis=1, return_inverse=True)
        numbers = [self._number(pair) for pair in zip(*pairs.tolist(), strict=True)]
        return np.array(numbers, dtype=np.int64)[place.reshape(-1)]

    def _number(self, pair: tuple[int, int]) -> int:
        if pair not in self._numbers:
            self._numbers[pair] = len(self._entries)
            self._entries.append(pair)
        return self._numbers[pair]

    def words(self, number: int) -> tuple[int, ...]:
        """The words of a history."""
        found = []
        while number:
            number, word = self._entries[number]
            found.append(word)
        return tuple(reversed(found))
