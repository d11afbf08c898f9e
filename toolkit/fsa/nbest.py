"""Word sequences of a lattice: the n best, and samples from the posterior."""

from dataclasses import dataclass, replace

import numpy as np

from toolkit.fsa.arrays import find_slot, rehash_if_full, with_capacity
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice import ScoredLattice, Weights, backward_scores
from toolkit.kernels import njit

Array = np.ndarray


def sampled_arcs(lattice: Lattice, scores: Array, count: int) -> Array:
    """The arcs of `count` paths, [count, T + 1] int64.

    Systematic sampling: with the paths in order of their arcs, the probability mass is divided into
    `count` equal parts, and the path in the middle of each is taken. Less variance than independent
    draws, and the same paths in every call.

    Args:
      lattice: of one utterance.
      scores: [A] of its arcs.
      count: number of paths; a path of large posterior is among them several times.
    """
    arcs = int(lattice.frame[-1]) + 1
    return _sample(lattice.first, lattice.target, scores.astype(np.float64), count, arcs)


@njit(nogil=True, cache=True)
def _sample(first: Array, target: Array, scores: Array, count: int, length: int) -> Array:
    states = len(first) - 1
    rest = np.full(states, -np.inf)  # log of the summed weights from each state to the end
    rest[states - 1] = 0.0
    # Backward pass of the forward-backward algorithm, in the log domain.
    for state in range(states - 2, -1, -1):
        arcs = range(first[state], first[state + 1])
        best = -np.inf
        for a in arcs:
            best = max(best, scores[a] + rest[target[a]])
        total = 0.0
        for a in arcs:
            total += np.exp(scores[a] + rest[target[a]] - best)
        rest[state] = best + np.log(total)
    paths = np.empty((count, length), np.int64)
    # Path n is where the cumulated probability of paths, in the order of their arcs, is (n + 0.5) /
    # count.
    for n in range(count):
        left, state = (n + 0.5) / count, 0
        for step in range(length):
            chosen, share = first[state], 0.0
            for a in range(first[state], first[state + 1]):
                mine = np.exp(scores[a] + rest[target[a]] - rest[state])
                if mine > 0:
                    chosen, share = a, mine
                    if left < share:
                        break
                    left -= share
            left = min(left / share, 1.0)
            paths[n, step], state = chosen, target[chosen]
    return paths


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
      count: most sequences to return; a lattice may have fewer, one without arcs has none.
    """
    if not lattice.lattice.num_arcs:
        return []
    fst, scores = lattice.lattice, lattice.weighted(weights)
    rest = backward_scores(replace(fst, scores=scores))
    entering = np.argsort(fst.target, kind="stable")
    columns = np.stack([scores, lattice.acoustic, fst.lm_scores], axis=1, dtype=np.float64)
    arcs = entering, np.searchsorted(fst.target[entering], np.arange(fst.num_states + 1))
    words = fst.splits, fst.words, int(fst.words.max(initial=0)) + 1
    for beam in BEAMS:
        worst = rest[0] - beam - 1e-6 * abs(rest[0])
        sums, histories, before, last = _best_sequences(
            fst.source, *arcs, *words, columns, rest, worst, count
        )
        if len(sums) == count:
            break
    return [
        Hypothesis(_history(number, before, last), *each)
        for number, each in zip(histories.tolist(), sums.tolist(), strict=True)
    ]


@njit(nogil=True, cache=True)
def _best_sequences(
    source: Array,
    entering: Array,
    first: Array,
    splits: Array,
    words: Array,
    vocabulary: int,
    columns: Array,
    rest: Array,
    worst: float,
    count: int,
) -> tuple[Array, Array, Array, Array]:  # pragma: no cover (compiled)
    """At most `count` of the word sequences whose score is at least `worst`, the best first.

    Args:
      source: [A].
      entering: [A] the arcs by target.
      first: [S + 1] where those that enter each state begin there.
      splits, words: of `Lattice`.
      vocabulary: more than any word id.
      columns: [A, 3] float64, of each arc the three scores of a `Hypothesis`.
      rest: [S] float64, the best score from each state to the end.
      worst, count: see above.

    Returns:
      [N, 3] scores and [N] the histories of the sequences; of each history [H] the one before its
      last word, and that word. History 0 is the empty one.
    """
    states = len(rest)
    begins = np.zeros(states + 1, np.int64)  # of each state's sequences, the best first
    sums, history = np.zeros((256, 3)), np.zeros(256, np.int64)
    begins[1:] = 1
    tried, read = np.empty((256, 3)), np.empty(256, np.int64)
    before, last = np.zeros(256, np.int64), np.zeros(256, np.int64)
    keys, slots, histories = np.full(256, -1, np.int64), np.full(1024, -1, np.int32), 1
    seen = np.full(256, -1, np.int64)
    # States in topological order: all sequences into a state are known before those out of it.
    for state in range(1, states):
        found = 0
        # 1. Extend the sequences of the states before by the arcs that enter this one.
        for arc in entering[first[state] : first[state + 1]]:
            start, score = source[arc], columns[arc, 0]
            for one in range(begins[start], begins[start + 1]):
                if sums[one, 0] + score + rest[state] < worst:
                    break
                if found == len(read):
                    larger = np.empty((2 * found, 3))
                    larger[:found] = tried
                    tried, read = larger, with_capacity(read, 2 * found)
                number = history[one]
                for word in words[splits[arc] : splits[arc + 1]]:
                    key = number * vocabulary + word
                    slot = find_slot(key, keys, slots)
                    if slots[slot] < 0:
                        before, last = (
                            with_capacity(before, histories + 1),
                            with_capacity(last, histories + 1),
                        )
                        keys = with_capacity(keys, histories + 1)
                        before[histories], last[histories], keys[histories] = number, word, key
                        slots[slot] = histories
                        histories += 1
                        number = histories - 1
                        slots = rehash_if_full(slots, keys, histories, histories + 1)
                    else:
                        number = slots[slot]
                for column in range(3):
                    tried[found, column] = sums[one, column] + columns[arc, column]
                read[found] = number
                found += 1
        if len(seen) < histories:
            known = len(seen)
            seen = with_capacity(seen, histories)
            seen[known:] = -1
        # 2. Keep the `count` best, each history once.
        kept = begins[state]
        for one in np.argsort(-tried[:found, 0], kind="mergesort"):
            if kept == begins[state] + count:
                break
            if seen[read[one]] != state:
                seen[read[one]] = state
                if kept == len(history):
                    larger = np.empty((2 * kept, 3))
                    larger[:kept] = sums
                    sums, history = larger, with_capacity(history, 2 * kept)
                sums[kept], history[kept] = tried[one], read[one]
                kept += 1
        begins[state + 1] = kept
    ends = slice(begins[states - 1], begins[states])
    return sums[ends], history[ends], before[:histories], last[:histories]


def _history(number: int, before: Array, last: Array) -> tuple[int, ...]:
    """The words of a history."""
    found = []
    while number:
        found.append(int(last[number]))
        number = int(before[number])
    return tuple(reversed(found))


def sampled_words(lattice: ScoredLattice, weights: Weights, count: int) -> list[tuple[int, ...]]:
    """The word ids of `count` paths drawn in proportion to their posteriors.

    The same paths in every call: the probability mass is divided into `count` equal parts. A
    lattice without arcs has no path.
    """
    fst = lattice.lattice
    if not fst.num_arcs:
        return []
    paths = sampled_arcs(fst, lattice.weighted(weights), count)
    return [
        tuple(word for arc in path[fst.word_counts[path] > 0] for word in _words(fst, arc))
        for path in paths
    ]


def _words(lattice: Lattice, arc: int) -> list[int]:
    return lattice.words[lattice.splits[arc] : lattice.splits[arc + 1]].tolist()
