"""Word sequences of a lattice: n-best lists, and samples from the posterior."""

from dataclasses import dataclass, replace

import numpy as np

from toolkit.fsa.arrays import find_slot, rehash_if_full, with_capacity
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice import ScoredLattice, Weights, backward_scores
from toolkit.kernels import njit

Array = np.ndarray


def sampled_arcs(lattice: Lattice, scores: Array, count: int) -> Array:
    """Return the arcs of `count` sampled paths: [count, T + 1] int64.

    Systematic sampling: with the paths in order of their arcs, the probability mass is divided into
    `count` equal parts, and the path in the middle of each is taken. This has less variance than
    independent draws, and gives the same paths in every call.

    Args:
      lattice: the lattice of an utterance.
      scores: [A] the scores of its arcs.
      count: number of paths; a path with a large posterior occurs several times.
    """
    arcs = int(lattice.frame[-1]) + 1
    return _sample(lattice.first, lattice.target, scores.astype(np.float64), count, arcs)


@njit(nogil=True, cache=True)
def _sample(first: Array, target: Array, scores: Array, count: int, length: int) -> Array:
    """Draw paths in proportion to their posteriors; see `sampled_arcs`.

    Args:
      first: [S + 1] where the arcs of each state begin.
      target: [A] of the arcs, which lead to later states.
      scores: [A] float64 of the arcs.
      count: number of paths.
      length: number of arcs of each path.
    """
    states = len(first) - 1
    # Backward recursion in the log domain: beta(s) = log sum over arcs s -> d of exp(score +
    # beta(d)), with the best summand factored out to avoid overflow.
    backward = np.full(states, -np.inf)
    backward[states - 1] = 0.0
    for state in range(states - 2, -1, -1):
        arcs = range(first[state], first[state + 1])
        best = -np.inf
        for a in arcs:
            best = max(best, scores[a] + backward[target[a]])
        total = 0.0
        for a in arcs:
            total += np.exp(scores[a] + backward[target[a]] - best)
        backward[state] = best + np.log(total)
    paths = np.empty((count, length), np.int64)
    # Path n is where the cumulated probability of paths, in the order of their arcs, is (n + 0.5) /
    # count. `remaining` is that position within the probability mass of the state.
    for n in range(count):
        remaining, state = (n + 0.5) / count, 0
        for step in range(length):
            arc, arc_probability = first[state], 0.0
            for a in range(first[state], first[state + 1]):
                # The arc's probability among those that leave its state.
                probability = np.exp(scores[a] + backward[target[a]] - backward[state])
                if probability > 0:
                    arc, arc_probability = a, probability
                    if remaining < arc_probability:
                        break
                    remaining -= arc_probability
            # Rounding may leave a bit more than the last arc has.
            remaining = min(remaining / arc_probability, 1.0)
            paths[n, step], state = arc, target[arc]
    return paths


BEAMS = (1.0, 2.0, 4.0, 8.0, 16.0, np.inf)
"""Beams below the best path's score, tried in turn until an n-best list is full."""


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
    """Return the `count` best distinct word sequences, best first.

    The result is exact: of the partial sequences that reach a state, only the `count` best can be
    part of the result, since all can continue in the same ways. Partial sequences whose best
    completion is worse than the best path by more than a beam are left out. The beam is widened
    until `count` sequences are within it, so that work grows with the number of paths near the best
    one rather than with the lattice. The choice among sequences with the same score, and their
    order, are arbitrary.

    Args:
      lattice: the lattice of an utterance.
      weights: acoustic scale and word penalty of the scores.
      count: largest number of sequences; a lattice may have fewer, and a lattice without arcs has
        none.
    """
    if not lattice.lattice.num_arcs:
        return []
    fst, scores = lattice.lattice, lattice.weighted(weights)
    backward = backward_scores(replace(fst, scores=scores))
    entering = np.argsort(fst.target, kind="stable")
    columns = np.stack([scores, lattice.acoustic, fst.lm_scores], axis=1, dtype=np.float64)
    entering_arcs = entering, np.searchsorted(fst.target[entering], np.arange(fst.num_states + 1))
    words = fst.splits, fst.words, int(fst.words.max(initial=0)) + 1
    for beam in BEAMS:
        # The margin allows for the rounding of sums in another order.
        worst = backward[0] - beam - 1e-6 * abs(backward[0])
        path_scores, history_ids, parent, last_word = _best_sequences(
            fst.source, *entering_arcs, *words, columns, backward, worst, count
        )
        if len(path_scores) == count:
            break
    return [
        Hypothesis(_history(number, parent, last_word), *each)
        for number, each in zip(history_ids.tolist(), path_scores.tolist(), strict=True)
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
    backward: Array,
    worst: float,
    count: int,
) -> tuple[Array, Array, Array, Array]:  # pragma: no cover (compiled)
    """Return at most `count` word sequences that score at least `worst`, best first.

    Args:
      source: [A].
      entering: [A] the arcs sorted by target.
      first: [S + 1] where the arcs that enter each state begin in `entering`.
      splits, words: of `Lattice`.
      vocabulary: a number above all word ids.
      columns: [A, 3] float64, of each arc the three scores of a `Hypothesis`.
      backward: [S] float64, the best score from each state to the end.
      worst, count: see the first line.

    Returns:
      [N, 3] scores and [N] histories of the sequences; [H] for each history its parent, i.e. the
      history without the last word, and [H] its last word. History 0 is the empty one.
    """
    states = len(backward)
    # Sequences of all states, one after the other: state s has begins[s] to begins[s + 1] - 1, the
    # best first. State 0 has one, the empty one.
    begins = np.zeros(states + 1, np.int64)
    begins[1:] = 1
    sums, history_of = np.zeros((256, 3)), np.zeros(256, np.int64)
    # The extensions that reach one state.
    extended_sums, extended_history = np.empty((256, 3)), np.empty(256, np.int64)
    # The tree of histories, and a hash table of (history, word) -> longer history.
    parent, last_word = np.zeros(256, np.int64), np.zeros(256, np.int64)
    keys, slots, num_histories = np.full(256, -1, np.int64), np.full(1024, -1, np.int32), 1
    state_of_history = np.full(256, -1, np.int64)  # the last state that keeps each history
    # States in topological order: all sequences into a state are known before those out of it.
    for state in range(1, states):
        num_extended = 0
        # 1. Extend the sequences of earlier states by the arcs that enter this one.
        for arc in entering[first[state] : first[state + 1]]:
            origin, score = source[arc], columns[arc, 0]
            for sequence in range(begins[origin], begins[origin + 1]):
                # Sequences come best first: all further ones stay below `worst` too.
                if sums[sequence, 0] + score + backward[state] < worst:
                    break
                if num_extended == len(extended_history):
                    larger = np.empty((2 * num_extended, 3))
                    larger[:num_extended] = extended_sums
                    extended_sums = larger
                    extended_history = with_capacity(extended_history, 2 * num_extended)
                # Append the arc's words to the history.
                history = history_of[sequence]
                for word in words[splits[arc] : splits[arc + 1]]:
                    key = history * vocabulary + word
                    slot = find_slot(key, keys, slots)
                    if slots[slot] < 0:
                        parent = with_capacity(parent, num_histories + 1)
                        last_word = with_capacity(last_word, num_histories + 1)
                        keys = with_capacity(keys, num_histories + 1)
                        parent[num_histories], last_word[num_histories] = history, word
                        keys[num_histories] = key
                        slots[slot] = num_histories
                        num_histories += 1
                        history = num_histories - 1
                        slots = rehash_if_full(slots, keys, num_histories, num_histories + 1)
                    else:
                        history = slots[slot]
                for column in range(3):
                    extended_sums[num_extended, column] = (
                        sums[sequence, column] + columns[arc, column]
                    )
                extended_history[num_extended] = history
                num_extended += 1
        if len(state_of_history) < num_histories:
            old_size = len(state_of_history)
            state_of_history = with_capacity(state_of_history, num_histories)
            state_of_history[old_size:] = -1
        # 2. Keep the `count` best, each history once: its best path comes first.
        end = begins[state]
        for extension in np.argsort(-extended_sums[:num_extended, 0], kind="mergesort"):
            if end == begins[state] + count:
                break
            history = extended_history[extension]
            if state_of_history[history] != state:
                state_of_history[history] = state
                if end == len(history_of):
                    larger = np.empty((2 * end, 3))
                    larger[:end] = sums
                    sums, history_of = larger, with_capacity(history_of, 2 * end)
                sums[end], history_of[end] = extended_sums[extension], history
                end += 1
        begins[state + 1] = end
    ends = slice(begins[states - 1], begins[states])
    return sums[ends], history_of[ends], parent[:num_histories], last_word[:num_histories]


def _history(history: int, parent: Array, last_word: Array) -> tuple[int, ...]:
    """Return the words of a history; see `_best_sequences` for the tree of histories."""
    words = []
    while history:
        words.append(int(last_word[history]))
        history = int(parent[history])
    return tuple(reversed(words))


def sampled_words(lattice: ScoredLattice, weights: Weights, count: int) -> list[tuple[int, ...]]:
    """Return the word ids of `count` paths sampled by their posteriors.

    The paths are the same in every call, see `sampled_arcs`. A lattice without arcs has no path.
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
    """Return the words on an arc of a lattice."""
    return lattice.words[lattice.splits[arc] : lattice.splits[arc + 1]].tolist()
