"""Minimum Bayes risk decoding of word lattices: minimises the expected word errors.

Xu, Povey, Mangu and Zhu, "Minimum Bayes risk decoding and system combination based on a recursion
for edit distance" (Computer Speech and Language, 2011), as in Kaldi's lattice-mbr-decode. The
expected edit distance is an upper bound, since the alignment is chosen per lattice state and not
per path. It is exact if no two paths meet before the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.fsa.arrays import with_capacity
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.kernels import njit

OUTSIDE = 1e-5
"""Additional cost of a word that is aligned with no bin: an empty bin is preferred."""
Array = np.ndarray


@dataclass(frozen=True)
class Candidate:
    """A word (or no word) in a bin of the confusion network."""

    word: int
    """Word id; 0 means no word."""
    posterior: float
    begin: float
    """Start and end in seconds, means over the word's occurrences."""
    end: float


@dataclass(frozen=True)
class MinimumRisk:
    """The result of minimum Bayes risk decoding."""

    bins: tuple[tuple[Candidate, ...], ...]
    """The confusion network: in each bin the candidates, the likeliest first."""
    risk: float
    """Expected number of errors."""

    @property
    def words(self) -> list[Candidate]:
        """The chosen words."""
        return [candidates[0] for candidates in self.bins if candidates[0].word != NO_WORD]


def minimum_risk(
    lattice: WordLattice, scores: Array, starts: Sequence[list[int]] = ()
) -> MinimumRisk:
    """Find the word sequence with the fewest expected errors, starting from the best path.

    The sequence is improved until it stays the same: in each bin the candidate with the largest
    posterior is chosen. The result depends on the initial sequence.

    Args:
      lattice: the lattice of an utterance; word ids below 0 count as words, but are never chosen.
      scores: [A] log weights of its arcs.
      starts: word sequences to start from in place of the best path; the outcome with the lowest
        risk is returned.
    """
    arc_posteriors = lattice.incoming_arc_posteriors(scores)
    starts = starts or [spoken_words(lattice, scores)]
    outcomes = (_improved(lattice, arc_posteriors, words) for words in starts)
    return min(outcomes, key=lambda outcome: outcome.risk)


def _improved(lattice: WordLattice, arc_posteriors: Array, hypothesis: list[int]) -> MinimumRisk:
    """Improve a word sequence until its expected errors stop falling."""
    risk = np.inf
    while True:
        outcome = _bins_around(lattice, arc_posteriors, hypothesis)
        words = [word.word for word in outcome.words]
        # The iteration could cycle only among sequences with the same risk.
        if words == hypothesis or outcome.risk > risk - 1e-9:
            return outcome
        hypothesis, risk = words, outcome.risk


def best_path_in_bins(lattice: WordLattice, scores: Array) -> list[Candidate]:
    """Return the words of the best path, with posteriors and mean times of their bins.

    Args:
      lattice, scores: see `minimum_risk`.
    """
    hypothesis = spoken_words(lattice, scores)
    bins = _bins_around(lattice, lattice.incoming_arc_posteriors(scores), hypothesis).bins
    return [_of_word(*each) for each in zip(hypothesis, bins[1::2], strict=True)]


def _of_word(word: int, candidates: Sequence[Candidate]) -> Candidate:
    """Return a word's candidate in a bin, or else one with posterior 0 and the bin's times."""
    for candidate in candidates:
        if candidate.word == word:
            return candidate
    begin = sum(candidate.posterior * candidate.begin for candidate in candidates)
    end = sum(candidate.posterior * candidate.end for candidate in candidates)
    return Candidate(word, 0.0, begin, end)


def spoken_words(lattice: WordLattice, scores: Array) -> list[int]:
    """Return the words of the best path, without NO_WORD and other special entries."""
    return [word for word in lattice.best_words(scores) if word > NO_WORD]


def _bins_around(lattice: WordLattice, arc_posteriors: Array, hypothesis: list[int]) -> MinimumRisk:
    """Align all paths with a word sequence; return the bins and the expected errors."""
    arcs = np.int64(lattice.source), np.int64(lattice.target), np.int64(lattice.words)
    bin_words = np.full(2 * len(hypothesis) + 1, NO_WORD)  # an empty bin between any two words
    bin_words[1::2] = hypothesis
    distances = _distances(*arcs, arc_posteriors, lattice.num_states, bin_words)
    aligned = _aligned(*arcs, arc_posteriors, lattice.times, bin_words, distances)
    return MinimumRisk(_bins(*aligned, len(bin_words)), float(distances[-1, -1]))


def _bins(
    bins: Array, words: Array, masses: Array, begins: Array, ends: Array, count: int
) -> tuple[tuple[Candidate, ...], ...]:
    """Make the candidates of each bin from [K] bins, words, posteriors and sums of times."""
    pairs, pair_index = np.unique(np.stack([bins, words]), axis=1, return_inverse=True)
    mass, begin, end = (np.bincount(pair_index.reshape(-1), x) for x in (masses, begins, ends))
    candidates_of_bin: list[list[Candidate]] = [[] for _ in range(count)]
    for (number, word), posterior, b, e in zip(pairs.T.tolist(), mass, begin, end, strict=True):
        if posterior > 0:
            parts = posterior, b / posterior, e / posterior
            candidates_of_bin[number].append(Candidate(word, *map(float, parts)))
    # An id below 0 means unknown words; it comes last, regardless of its posterior.
    return tuple(
        tuple(sorted(candidates, key=lambda c: (c.word < 0, -c.posterior, c.word)))
        for candidates in candidates_of_bin
    )


@njit(nogil=True, cache=True)
def _along(
    source_distance: Array, word: int, bin_words: Array, distance: Array, moves: Array
) -> None:  # pragma: no cover (compiled)
    """Compute the expected errors after an arc, for each number of bins passed.

    The edit-distance recursion of Xu, Povey, Mangu and Zhu, "Minimum Bayes risk decoding and system
    combination based on a recursion for edit distance" (2011), for the words of one arc.

    Args:
      source_distance: [Q + 1] expected errors in the arc's source, by number of bins passed.
      word: the arc's word; 0 for none.
      bin_words: [Q] the words in the bins; 0 for none.
      distance: [Q + 1] written: the expected errors after the arc.
      moves: [Q + 1] written: the best alignment. 0: the arc's word is in the bin; 1: it is in no
        bin; 2: the bin comes after the arc and holds none of its words.
    """
    cost_of_no_bin = 0.0 if word == 0 else 1.0 + OUTSIDE
    distance[0], moves[0] = source_distance[0] + cost_of_no_bin, 1
    for q in range(1, len(source_distance)):
        # The arc's word is in bin q - 1, or it is in no bin, or the bin is empty after the arc.
        match = source_distance[q - 1] + (word != bin_words[q - 1])
        no_bin = source_distance[q] + cost_of_no_bin
        skip = distance[q - 1] + (bin_words[q - 1] != 0)
        if match <= no_bin and match <= skip:
            distance[q], moves[q] = match, 0
        elif no_bin <= skip:
            distance[q], moves[q] = no_bin, 1
        else:
            distance[q], moves[q] = skip, 2


@njit(nogil=True, cache=True)
def _distances(
    source: Array, target: Array, words: Array, arc_posteriors: Array, states: int, bin_words: Array
) -> Array:  # pragma: no cover (compiled)
    """Return the expected errors of the paths into each state against 0 to Q bins: [S, Q + 1]."""
    expected = np.zeros((states, len(bin_words) + 1))
    # In the start state all words of the bins passed are deleted.
    for q in range(len(bin_words)):
        expected[0, q + 1] = expected[0, q] + (bin_words[q] != 0)
    distance, moves = np.empty(len(bin_words) + 1), np.empty(len(bin_words) + 1, np.int64)
    # The distance at a state is the mean of those of the arcs into it, weighted by their
    # posteriors.
    for a in range(len(source)):
        _along(expected[source[a]], words[a], bin_words, distance, moves)
        expected[target[a]] += arc_posteriors[a] * distance
    return expected


@njit(nogil=True, cache=True)
def _aligned(
    source: Array,
    target: Array,
    words: Array,
    arc_posteriors: Array,
    times: Array,
    bin_words: Array,
    expected: Array,
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover (compiled)
    """Return the arcs' contributions to the bins (the backward pass of `_distances`).

    Args:
      source, target, words, arc_posteriors: [A] of the arcs.
      times: [S] of the states.
      bin_words: [Q].
      expected: [S, Q + 1] the result of `_distances`.

    Returns:
      [K] bin, word, posterior, and posterior times the word's start and end times.
    """
    states, bins = expected.shape[0], len(bin_words)
    bin_number, word = np.empty(64, np.int64), np.empty(64, np.int64)
    mass, begin, end = np.empty(64), np.empty(64), np.empty(64)
    count = 0
    # open_mass[s, q]: the posterior of paths through state s whose words up to s are to be aligned
    # with the first q bins (beta-tilde of the paper).
    open_mass = np.zeros((states, bins + 1))
    open_mass[states - 1, bins] = 1.0
    distance, moves = np.empty(bins + 1), np.empty(bins + 1, np.int64)
    arc_mass = np.empty(bins + 1)
    for a in range(len(source) - 1, -2, -1):
        arc_source, arc_target = (source[a], target[a]) if a >= 0 else (0, 0)
        if a >= 0:
            _along(expected[arc_source], words[a], bin_words, distance, moves)
            arc_mass[:] = arc_posteriors[a] * open_mass[arc_target]
        else:  # last of all, in the start state: all bins that are left are empty
            arc_mass[:] = open_mass[0]
            moves[:] = 2
        for q in range(bins, -1, -1):
            if arc_mass[q] == 0.0:
                continue
            if q == 0 or moves[q] == 1:  # the arc's word is in no bin
                open_mass[arc_source, q] += arc_mass[q]
                continue
            size = count + 1
            bin_number, word = with_capacity(bin_number, size), with_capacity(word, size)
            mass = with_capacity(mass, size)
            begin, end = with_capacity(begin, size), with_capacity(end, size)
            bin_number[count], mass[count] = q - 1, arc_mass[q]
            end[count] = arc_mass[q] * times[arc_target]
            if moves[q] == 0:  # the arc's word is in bin q - 1
                word[count], begin[count] = words[a], arc_mass[q] * times[arc_source]
                open_mass[arc_source, q - 1] += arc_mass[q]
            else:  # bin q - 1 is empty after the arc
                word[count], begin[count] = 0, end[count]
                arc_mass[q - 1] += arc_mass[q]
            count += 1
    return bin_number[:count], word[:count], mass[:count], begin[:count], end[:count]


def oracle_words(lattice: WordLattice, reference: Sequence[int]) -> list[int]:
    """Return the words of the path with the smallest edit distance from a reference.

    Like Kaldi's lattice-oracle. The work grows with the number of arcs times reference words.

    Args:
      lattice: the lattice of an utterance.
      reference: word ids; an id that is not in the lattice, such as -1, always counts as an error.
    """
    words = np.array(reference, np.int64)
    columns = np.int64(lattice.source), np.int64(lattice.target), np.int64(lattice.words)
    path = _nearest(*columns, lattice.num_states, words)
    path_words = lattice.words[path[::-1]]
    return path_words[path_words != NO_WORD].tolist()


@njit(nogil=True, cache=True)
def _nearest(
    source: np.ndarray, target: np.ndarray, words: np.ndarray, states: int, reference: np.ndarray
) -> np.ndarray:  # pragma: no cover (compiled)
    """Return the arcs of the path nearest to a reference, from last to first.

    Levenshtein's recursion over (state of the lattice, reference words read): deletions stay in a
    state, arcs substitute, match or insert.
    """
    columns = len(reference) + 1
    errors = np.full((states, columns), len(source) + columns)  # more than any path can have
    entry = np.full((states, columns), -1)  # the arc by which the best path enters the state
    words_before = np.zeros((states, columns), np.int64)  # reference words read before that arc
    errors[0] = np.arange(columns)  # in the start state all words read so far are deleted
    arc = 0
    # States are in topological order: all arcs into a state come before those out of it.
    for state in range(states):
        # Deletions: a reference word is read without an arc.
        for r in range(1, columns):
            if errors[state, r - 1] + 1 < errors[state, r]:
                errors[state, r] = errors[state, r - 1] + 1
                entry[state, r] = entry[state, r - 1]
                words_before[state, r] = words_before[state, r - 1]
        while arc < len(source) and source[arc] == state:
            next_state, word = target[arc], words[arc]
            for r in range(columns):
                # An insertion, or an arc without a word, which costs nothing.
                cost = errors[state, r] + (word != 0)
                if cost < errors[next_state, r]:
                    errors[next_state, r] = cost
                    entry[next_state, r], words_before[next_state, r] = arc, r
                # A substitution, or a match.
                if word != 0 and r + 1 < columns:
                    cost = errors[state, r] + (word != reference[r])
                    if cost < errors[next_state, r + 1]:
                        errors[next_state, r + 1] = cost
                        entry[next_state, r + 1], words_before[next_state, r + 1] = arc, r
            arc += 1
    # Follow the entries back from the last state with all reference words read.
    path = np.empty(states, np.int64)
    state, r, count = states - 1, columns - 1, 0
    while state > 0:
        path[count] = entry[state, r]
        r = words_before[state, r]
        state = source[path[count]]
        count += 1
    return path[:count]
