"""Minimum Bayes risk decoding of word lattices: the word sequence with the fewest expected errors.

Xu, Povey, Mangu and Zhu, "Minimum Bayes risk decoding and system combination based on a recursion
for edit distance" (Computer Speech and Language, 2011); Kaldi's lattice-mbr-decode. The expected
edit distance is an upper bound, since the alignment is chosen in the states of the lattice and not
path by path; it is exact where no two paths meet but in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.fsa.arrays import with_capacity
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.kernels import njit

OUTSIDE = 1e-5
"""Additional cost of a word that is aligned with no bin, so that it prefers an empty one."""
Array = np.ndarray


@dataclass(frozen=True)
class Candidate:
    """A word, or no word, in a bin."""

    word: int
    """Word id; 0 is no word."""
    posterior: float
    begin: float
    """Seconds, the mean over its occurrences."""
    end: float


@dataclass(frozen=True)
class MinimumRisk:
    """The outcome of minimum Bayes risk decoding."""

    bins: tuple[tuple[Candidate, ...], ...]
    """The confusion network: in each bin the candidates, the likeliest first."""
    risk: float
    """Expected number of errors."""

    @property
    def words(self) -> list[Candidate]:
        """The words that were chosen."""
        return [candidates[0] for candidates in self.bins if candidates[0].word != NO_WORD]


def minimum_risk(
    lattice: WordLattice, scores: Array, starts: Sequence[list[int]] = ()
) -> MinimumRisk:
    """Find the word sequence with the fewest expected errors, beginning with the best path.

    The sequence is improved until it stays the same: in each bin the candidate with the largest
    posterior is chosen. What is found depends on the beginning.

    Args:
      lattice: of one utterance; words below 0 count as words, and are never chosen.
      scores: [A] the logarithms of the weights of its arcs.
      starts: word sequences to begin with in place of the best path; the best outcome counts.
    """
    shares = lattice.incoming_arc_posteriors(scores)
    starts = starts or [spoken_words(lattice, scores)]
    found = (_improved(lattice, shares, words) for words in starts)
    return min(found, key=lambda outcome: outcome.risk)


def _improved(lattice: WordLattice, shares: Array, chosen: list[int]) -> MinimumRisk:
    risk = np.inf
    while True:
        found = _bins_around(lattice, shares, chosen)
        words = [word.word for word in found.words]
        # Only where several sequences have the same risk might they go on in a circle.
        if words == chosen or found.risk > risk - 1e-9:
            return found
        chosen, risk = words, found.risk


def best_path_in_bins(lattice: WordLattice, scores: Array) -> list[Candidate]:
    """The words of the best path, with posteriors and mean times of what is aligned with them.

    Args:
      lattice: see `minimum_risk`.
      scores: [A] of its arcs.
    """
    chosen = spoken_words(lattice, scores)
    bins = _bins_around(lattice, lattice.incoming_arc_posteriors(scores), chosen).bins
    return [_of_word(*each) for each in zip(chosen, bins[1::2], strict=True)]


def _of_word(word: int, candidates: Sequence[Candidate]) -> Candidate:
    """A word in a bin; one that is aligned with others has the posterior 0, and the bin's times."""
    for candidate in candidates:
        if candidate.word == word:
            return candidate
    begin = sum(candidate.posterior * candidate.begin for candidate in candidates)
    end = sum(candidate.posterior * candidate.end for candidate in candidates)
    return Candidate(word, 0.0, begin, end)


def spoken_words(lattice: WordLattice, scores: Array) -> list[int]:
    """The words of the best path, without those below 0."""
    return [word for word in lattice.best_words(scores) if word > NO_WORD]


def _bins_around(lattice: WordLattice, shares: Array, chosen: list[int]) -> MinimumRisk:
    """The bins of all paths aligned with words, and the words' risk."""
    arcs = np.int64(lattice.source), np.int64(lattice.target), np.int64(lattice.words)
    slots = np.full(2 * len(chosen) + 1, NO_WORD)  # an empty bin between any two words
    slots[1::2] = chosen
    distances = _distances(*arcs, shares, lattice.num_states, slots)
    aligned = _aligned(*arcs, shares, lattice.times, slots, distances)
    return MinimumRisk(_bins(*aligned, len(slots)), float(distances[-1, -1]))


def _bins(
    bins: Array, words: Array, masses: Array, begins: Array, ends: Array, count: int
) -> tuple[tuple[Candidate, ...], ...]:
    """The candidates of each bin from their parts: [K] bin, word, posterior, and sums of times."""
    pairs, place = np.unique(np.stack([bins, words]), axis=1, return_inverse=True)
    mass, begin, end = (np.bincount(place.reshape(-1), x) for x in (masses, begins, ends))
    found: list[list[Candidate]] = [[] for _ in range(count)]
    for (number, word), posterior, b, e in zip(pairs.T.tolist(), mass, begin, end, strict=True):
        if posterior > 0:
            parts = posterior, b / posterior, e / posterior
            found[number].append(Candidate(word, *map(float, parts)))
    # A word below 0 stands for unknown ones and comes last, whatever its posterior.
    return tuple(
        tuple(sorted(candidates, key=lambda c: (c.word < 0, -c.posterior, c.word)))
        for candidates in found
    )


@njit(nogil=True, cache=True)
def _along(
    before: Array, word: int, slots: Array, distance: Array, moves: Array
) -> None:  # pragma: no cover (compiled)
    """The expected errors after an arc, for each number of bins passed.

    Args:
      before: [Q + 1] those in the arc's source.
      word: of the arc.
      slots: [Q] the words in the bins.
      distance: [Q + 1] for the result.
      moves: [Q + 1] for how it came about: 0, the arc's word is in the bin; 1, it is in none; 2,
        the bin comes after the arc and holds no word of it.
    """
    outside = 0.0 if word == 0 else 1.0 + OUTSIDE
    distance[0], moves[0] = before[0] + outside, 1
    for q in range(1, len(before)):
        inside = before[q - 1] + (word != slots[q - 1])
        alone = before[q] + outside
        skipped = distance[q - 1] + (slots[q - 1] != 0)
        if inside <= alone and inside <= skipped:
            distance[q], moves[q] = inside, 0
        elif alone <= skipped:
            distance[q], moves[q] = alone, 1
        else:
            distance[q], moves[q] = skipped, 2


@njit(nogil=True, cache=True)
def _distances(
    source: Array, target: Array, words: Array, shares: Array, states: int, slots: Array
) -> Array:  # pragma: no cover (compiled)
    """[S, Q + 1] expected errors of the paths into each state against the first q bins."""
    expected = np.zeros((states, len(slots) + 1))
    for q in range(len(slots)):
        expected[0, q + 1] = expected[0, q] + (slots[q] != 0)
    distance, moves = np.empty(len(slots) + 1), np.empty(len(slots) + 1, np.int64)
    # The distance at a state is the mean of those of the arcs into it, weighted by their
    # posteriors.
    for a in range(len(source)):
        _along(expected[source[a]], words[a], slots, distance, moves)
        expected[target[a]] += shares[a] * distance
    return expected


@njit(nogil=True, cache=True)
def _aligned(
    source: Array,
    target: Array,
    words: Array,
    shares: Array,
    times: Array,
    slots: Array,
    expected: Array,
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover (compiled)
    """What the arcs put into the bins.

    Returns:
      [K] bin, word, posterior, and posterior times the word's begin and end.
    """
    states, bins = expected.shape[0], len(slots)
    number, word = np.empty(64, np.int64), np.empty(64, np.int64)
    mass, begin, end = np.empty(64), np.empty(64), np.empty(64)
    count = 0
    # The posterior that the paths from each state on have left for the bins up to the q-th.
    open_mass = np.zeros((states, bins + 1))
    open_mass[states - 1, bins] = 1.0
    distance, moves = np.empty(bins + 1), np.empty(bins + 1, np.int64)
    here = np.empty(bins + 1)
    for a in range(len(source) - 1, -2, -1):
        origin, at = (source[a], target[a]) if a >= 0 else (0, 0)
        if a >= 0:
            _along(expected[origin], words[a], slots, distance, moves)
            here[:] = shares[a] * open_mass[at]
        else:  # in the first state all bins that are left are empty
            here[:] = open_mass[0]
            moves[:] = 2
        for q in range(bins, -1, -1):
            if here[q] == 0.0:
                continue
            if q == 0 or moves[q] == 1:
                open_mass[origin, q] += here[q]
                continue
            size = count + 1
            number, word, mass = (
                with_capacity(number, size),
                with_capacity(word, size),
                with_capacity(mass, size),
            )
            begin, end = with_capacity(begin, size), with_capacity(end, size)
            number[count], mass[count] = q - 1, here[q]
            end[count] = here[q] * times[at]
            if moves[q] == 0:
                word[count], begin[count] = words[a], here[q] * times[origin]
                open_mass[origin, q - 1] += here[q]
            else:
                word[count], begin[count] = 0, end[count]
                here[q - 1] += here[q]
            count += 1
    return number[:count], word[:count], mass[:count], begin[:count], end[:count]


def oracle_words(lattice: WordLattice, reference: Sequence[int]) -> list[int]:
    """The words of the path with the smallest edit distance from a reference, exactly.

    Work grows with arcs times reference words. Kaldi's lattice-oracle.

    Args:
      lattice: of one utterance.
      reference: word ids; an id that the lattice does not have, such as -1, is never right.
    """
    words = np.array(reference, np.int64)
    columns = np.int64(lattice.source), np.int64(lattice.target), np.int64(lattice.words)
    path = _nearest(*columns, lattice.num_states, words)
    found = lattice.words[path[::-1]]
    return found[found != NO_WORD].tolist()


@njit(nogil=True, cache=True)
def _nearest(
    source: np.ndarray, target: np.ndarray, words: np.ndarray, states: int, reference: np.ndarray
) -> np.ndarray:  # pragma: no cover (compiled)
    """The arcs of the nearest path, from the last to the first."""
    size = len(reference) + 1
    errors = np.full((states, size), len(source) + size)
    entry = np.full((states, size), -1)  # the arc into the state
    taken = np.zeros((states, size), np.int64)  # reference words before that arc
    errors[0] = np.arange(size)
    place = 0  # arcs into a state have all come before those out of it
    # Edit distance between the reference and paths of the lattice, state by state.
    for state in range(states):
        for r in range(1, size):  # reference words that no arc says
            if errors[state, r - 1] + 1 < errors[state, r]:
                errors[state, r] = errors[state, r - 1] + 1
                entry[state, r], taken[state, r] = entry[state, r - 1], taken[state, r - 1]
        while place < len(source) and source[place] == state:
            to, word = target[place], words[place]
            for r in range(size):
                cost = errors[state, r] + (word != 0)
                if cost < errors[to, r]:
                    errors[to, r], entry[to, r], taken[to, r] = cost, place, r
                if word != 0 and r + 1 < size:
                    cost = errors[state, r] + (word != reference[r])
                    if cost < errors[to, r + 1]:
                        errors[to, r + 1], entry[to, r + 1], taken[to, r + 1] = cost, place, r
            place += 1
    # Follow the entries back from the last state with all reference words read.
    path = np.empty(states, np.int64)
    state, r, count = states - 1, size - 1, 0
    while state > 0:
        arc = entry[state, r]
        path[count] = arc
        count += 1
        r = taken[state, r]
        state = source[arc]
    return path[:count]
