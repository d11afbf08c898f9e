"""Determinization of weighted transducers by subset construction, in compiled kernels (numba).

A state of the result is a subset, a set of elements (input state, residual score, residual string);
see Mohri, "Finite-state transducers in language and speech processing", 1997, figure 10. Scores are
int64 in fixed point (`toolkit.fsa.arrays.to_fixed_point`), so that equal subsets have equal bits.
"""

from typing import NamedTuple

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import (
    find_slot,
    from_fixed_point,
    hash_int64,
    rehash_if_full,
    to_fixed_point,
    with_capacity,
)
from toolkit.fsa.fst import Fst
from toolkit.kernels import njit

_FACTOR, _LEAST = 10, 10**6
"""Limit on the arcs of the result: `_FACTOR` times those of the input, but at least `_LEAST`."""


class DeterminizationError(ToolkitError):
    """Raised if the deterministic transducer does not exist or is too large."""


def determinize(fst: Fst) -> Fst:
    """Return an equivalent transducer in which no state has two arcs with the same label.

    Mohri's algorithm in the tropical semiring: a state of the result is a set of states of `fst`,
    each with a residual score and residual words. Output comes as early as possible: the arc to a
    set has the set's best score, the words that all its members begin with and, separately, the
    `lm_scores`. Of two paths to the same state with the same words, the better one is kept.

    The result is like that of OpenFst and of Kaldi's fstdeterminizestar. k2 distinguishes whole
    sequences of arcs, so its result has a copy of the next state for every word that leads there.
    Label 0 is treated like any other label. An input string with several outputs keeps them all, in
    several arcs to the final state. Scores are added in integers (see
    `toolkit.fsa.arrays.to_fixed_point`), so that equal sets are found equal.

    Args:
      fst: connected (see `toolkit.fsa.fst`).

    Raises:
      DeterminizationError: the result would have more than a million arcs and more than ten times
        those of `fst`, or more than a thousand words would wait to be written. The cause: two
        cycles read the same labels with different scores or words (they are not twins).
    """
    input_fst = InputFst(
        fst.first,
        fst.target,
        fst.labels,
        to_fixed_point(fst.scores),
        to_fixed_point(fst.scores if fst.lm_scores is None else fst.lm_scores),
        fst.splits,
        fst.words,
    )
    complete, states, arcs = determinized(input_fst, max(_FACTOR * fst.num_arcs, _LEAST))
    if not complete:
        raise DeterminizationError(
            f"a graph of {fst.num_arcs} arcs cannot be made deterministic: words that sound alike"
            " need disambiguation symbols (`#1`, ...) in the lexicon"
        )
    final = arcs.label < 0  # their target, -1 so far, becomes the last state
    return Fst(
        source=arcs.source,
        target=np.where(final, np.int32(states), arcs.target),
        labels=arcs.label,
        scores=from_fixed_point(arcs.score),
        splits=arcs.splits,
        words=arcs.words,
        lm_scores=None if fst.lm_scores is None else from_fixed_point(arcs.lm),
    )


Array = np.ndarray
_LOW = 32
"""Two 32-bit numbers are packed into an int64 key: high << _LOW | low."""
_MASK = np.int64(0xFFFFFFFF)
"""Selects the low number of a key."""
LONGEST = 1000
"""Largest number of words in a residual string, which wait to be written."""


class InputFst(NamedTuple):
    """The transducer to determinize, with A arcs."""

    first: Array
    """[states + 1] where the arcs of each state begin."""
    target: Array
    """[A] int32."""
    label: Array
    """[A] int32; -1 leads to the final state."""
    score: Array
    """[A] int64."""
    lm: Array
    """[A] int64, LM scores; determinized in parallel to `score`."""
    splits: Array
    """[A + 1] arc a writes `words[splits[a] : splits[a + 1]]`."""
    words: Array
    """[W] int32."""


class SubsetElements(NamedTuple):
    """The elements of all subsets: states reached by the same input, with their residuals."""

    state: Array
    """int32, of the input transducer."""
    score: Array
    """int64, residual score; the best of a subset is 0."""
    lm: Array
    """int64, residual LM score."""
    string: Array
    """int32, residual words: a number in `OutputStrings`."""


class SubsetTable(NamedTuple):
    """The subsets found so far; each is a range of elements sorted by state and string."""

    begin: Array
    """[subsets + 1] int64: where the elements of each begin."""
    key: Array
    """[subsets] int64 hashes of their elements."""
    slots: Array
    """[a power of 2] int32: hash table of subset numbers."""


class OutputStrings(NamedTuple):
    """Strings of words, each stored once as a linked list; string 0 is empty."""

    key: Array
    """[strings] int64: first word << 32 | number of the string of the other words."""
    slots: Array
    """[a power of 2] int32: hash table of string numbers."""


class Arcs(NamedTuple):
    """The arcs of the result, with the columns of `InputFst`."""

    source: Array
    """[arcs] int32, the subset that an arc leaves."""
    target: Array
    """[arcs] int32; -1 for the final state."""
    label: Array
    score: Array
    lm: Array
    splits: Array
    words: Array


@njit(cache=True, nogil=True)
def determinized(input_fst: InputFst, limit: int) -> tuple[bool, int, Arcs]:
    """Determinize a transducer, breadth first.

    Args:
      input_fst: the transducer to determinize.
      limit: the largest number of arcs, of elements and of strings.

    Returns:
      Whether the result is within the limit, the number of its states without the final one, and
      its arcs (target -1: the final state).
    """
    # Typed numbers, here and below: for untyped constants numba would compile each function again.
    zero, none = np.int64(0), np.int64(-1)
    elements = _elements(np.int64(1024))
    subsets = SubsetTable(
        np.zeros(1024, np.int64), np.zeros(1024, np.int64), np.full(4096, -1, np.int32)
    )
    strings = OutputStrings(np.full(1024, -1, np.int64), np.full(4096, -1, np.int32))
    arcs = _arcs(1024)
    # Subset 0: the start state without residuals.
    elements.state[0], elements.score[0], elements.lm[0], elements.string[0] = 0, 0, 0, 0
    subsets.begin[1] = 1
    subsets.key[0] = _subset_key(elements, zero, np.int64(1))
    subsets.slots[find_slot(subsets.key[0], subsets.key, subsets.slots)] = 0
    num_subsets, num_strings, num_arcs, expanded = np.int64(1), np.int64(1), zero, zero
    while expanded < num_subsets:
        # 1. Follow all arcs out of the elements of a subset, sorted by label, state and string.
        end = subsets.begin[num_subsets]
        label, successors, strings, num_strings = _successors(
            input_fst,
            elements,
            subsets.begin[expanded],
            subsets.begin[expanded + 1],
            strings,
            num_strings,
        )
        if num_strings < 0 or max(num_arcs, end, num_strings) > limit:
            return False, expanded, arcs
        order = _sort_successors(label, successors)
        count = len(order)
        elements = _resize_elements(elements, end + count)
        arcs = _resize_arcs(arcs, num_arcs + count + 1)
        subsets = _resize_subsets(subsets, num_subsets, num_subsets + count + 1)
        k = 0
        while k < count:
            # 2. The successors by one label become the elements of a new subset, for now.
            input_label, size, begin = label[order[k]], zero, subsets.begin[num_subsets]
            while k < count and label[order[k]] == input_label:
                size = _append_element(successors, order[k], elements, begin, size)
                k += 1
            if input_label < 0:
                # Final arcs write their residual strings; each keeps its own score.
                for i in range(begin, begin + size):
                    arcs = _write_words(arcs, num_arcs, elements.string[i], strings, none)
                    score, lm = elements.score[i], elements.lm[i]
                    _set_arc(arcs, num_arcs, expanded, none, input_label, score, lm)
                    num_arcs += 1
                continue
            # 3. The arc to the subset has the best score of its elements (the sum of the tropical
            # semiring) and the words that all of them begin with.
            score, lm = elements.score[begin], elements.lm[begin]
            for i in range(begin + 1, begin + size):
                score, lm = max(score, elements.score[i]), max(lm, elements.lm[i])
            prefix = _common_prefix(elements.string[begin : begin + size], strings)
            arcs = _write_words(arcs, num_arcs, elements.string[begin], strings, prefix)
            # 4. What an element has beyond that is its residual.
            for i in range(begin, begin + size):
                elements.score[i] -= score
                elements.lm[i] -= lm
                for _ in range(prefix):
                    elements.string[i] = strings.key[elements.string[i]] & _MASK
            _sort_strings(elements, begin, begin + size)
            # 5. Look the subset up: if it is not an earlier one, it becomes a state of the result.
            number = _find_or_add_subset(elements, subsets, num_subsets, begin + size)
            _set_arc(arcs, num_arcs, expanded, number, input_label, score, lm)
            num_arcs += 1
            if number == num_subsets:
                num_subsets += 1
                subsets.begin[num_subsets] = begin + size
        expanded += 1
    return True, num_subsets, _trimmed(arcs, num_arcs)


@njit(cache=True, nogil=True)
def _successors(
    input_fst: InputFst,
    elements: SubsetElements,
    begin: int,
    end: int,
    strings: OutputStrings,
    num_strings: int,
) -> tuple[Array, SubsetElements, OutputStrings, int]:
    """Return the arcs out of the subset with elements `begin` to `end - 1`.

    Returns:
      The labels, the elements they lead to, the strings and their number (-1: one is too long).
    """
    total = np.int64(0)
    for i in range(begin, end):
        state = elements.state[i]
        total += input_fst.first[state + 1] - input_fst.first[state]
    label, successors, k = np.empty(total, np.int32), _elements(total), 0
    for i in range(begin, end):
        state = elements.state[i]
        for arc in range(input_fst.first[state], input_fst.first[state + 1]):
            # Residual string, then the arc's words.
            string = elements.string[i]
            low, high = input_fst.splits[arc], input_fst.splits[arc + 1]
            if low < high:
                string, strings, num_strings = _append_words(
                    string, input_fst.words[low:high], strings, num_strings
                )
                if num_strings < 0:
                    return label, successors, strings, num_strings
            label[k] = input_fst.label[arc]
            successors.state[k], successors.string[k] = input_fst.target[arc], string
            # Residual score plus the arc's.
            successors.score[k] = elements.score[i] + input_fst.score[arc]
            successors.lm[k] = elements.lm[i] + input_fst.lm[arc]
            k += 1
    return label, successors, strings, num_strings


@njit(cache=True, nogil=True)
def _sort_successors(label: Array, successors: SubsetElements) -> Array:
    """Return the order of successors by label, state and string; best first among equals."""
    key = ((label.astype(np.int64) + 1) << _LOW) | successors.state
    ascending = True
    for k in range(1, len(key)):
        ascending &= key[k - 1] < key[k]
    if ascending:  # as for a subset of one state whose arcs are sorted
        return np.arange(len(key))
    order = np.argsort(key, kind="mergesort")
    # Insertion sort of the few that have the same label and state.
    begin = 0
    for k in range(1, len(key) + 1):
        if k == len(key) or key[order[k]] != key[order[begin]]:
            for i in range(begin + 1, k):
                inserted, j = order[i], i
                while j > begin and _precedes(successors, inserted, order[j - 1]):
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = inserted
            begin = k
    return order


@njit(cache=True, nogil=True)
def _precedes(successors: SubsetElements, a: int, b: int) -> bool:
    """Whether a comes before b: by string, then higher score, then higher LM score."""
    if successors.string[a] != successors.string[b]:
        return successors.string[a] < successors.string[b]
    if successors.score[a] != successors.score[b]:
        return successors.score[a] > successors.score[b]
    return successors.lm[a] > successors.lm[b]


@njit(cache=True, nogil=True)
def _append_element(
    successors: SubsetElements, k: int, elements: SubsetElements, begin: int, size: int
) -> int:
    """Append successor k to the subset at `begin` if its (state, string) is new there.

    Successors are sorted, so that the better of two equal ones is already there. The result is the
    new size of the subset.
    """
    end = begin + size
    if (
        size
        and elements.state[end - 1] == successors.state[k]
        and elements.string[end - 1] == successors.string[k]
    ):
        return size
    elements.state[end], elements.string[end] = successors.state[k], successors.string[k]
    elements.score[end], elements.lm[end] = successors.score[k], successors.lm[k]
    return size + 1


@njit(cache=True, nogil=True)
def _sort_strings(elements: SubsetElements, begin: int, end: int) -> None:
    """Sort elements of equal state by string (insertion sort).

    Removing the common prefix gave the strings other numbers, whose order differs.
    """
    for i in range(begin + 1, end):
        j = i
        while (
            j > begin
            and elements.state[j - 1] == elements.state[j]
            and elements.string[j - 1] > elements.string[j]
        ):
            for values in (elements.score, elements.lm):
                values[j - 1], values[j] = values[j], values[j - 1]
            string = elements.string[j - 1]
            elements.string[j - 1], elements.string[j] = elements.string[j], string
            j -= 1


@njit(cache=True, nogil=True)
def _subset_key(elements: SubsetElements, begin: int, end: int) -> int:
    """Return the hash of a subset, from its size and all four columns of its elements."""
    key = np.int64(end - begin)
    for i in range(begin, end):
        key = hash_int64(key ^ ((np.int64(elements.string[i]) << _LOW) | elements.state[i]))
        key = hash_int64(key ^ (elements.score[i] * np.int64(31) + elements.lm[i]))
    return key


@njit(cache=True, nogil=True)
def _find_or_add_subset(
    elements: SubsetElements, subsets: SubsetTable, count: int, end: int
) -> int:
    """Return the number of the subset formed by the newest elements; `count` if new."""
    begin = subsets.begin[count]
    key = _subset_key(elements, begin, end)
    slot = hash_int64(key) & (len(subsets.slots) - 1)
    while subsets.slots[slot] >= 0:
        number = subsets.slots[slot]
        if subsets.key[number] == key and _is_same(elements, subsets, number, begin, end):
            return number
        slot = (slot + 1) & (len(subsets.slots) - 1)
    subsets.slots[slot], subsets.key[count] = count, key
    return count


@njit(cache=True, nogil=True)
def _is_same(
    elements: SubsetElements, subsets: SubsetTable, number: int, begin: int, end: int
) -> bool:
    """Whether a subset has the same elements as those from `begin` to `end - 1`."""
    shift = begin - subsets.begin[number]
    if subsets.begin[number + 1] + shift != end:
        return False
    for i in range(begin, end):
        if (
            elements.state[i] != elements.state[i - shift]
            or elements.string[i] != elements.string[i - shift]
            or elements.score[i] != elements.score[i - shift]
            or elements.lm[i] != elements.lm[i - shift]
        ):
            return False
    return True


@njit(cache=True, nogil=True)
def _append_words(
    string: int, words: Array, strings: OutputStrings, count: int
) -> tuple[int, OutputStrings, int]:
    """Append words to a string; return its number, or -1 if it becomes too long."""
    length, suffix = 0, string
    while suffix:
        length, suffix = length + 1, strings.key[suffix] & _MASK
    if length > LONGEST:
        return string, strings, -1
    # Strings share their ends: unpack the words of this one, then link them again from the back.
    prefix = np.empty(length, np.int32)
    for k in range(length):
        prefix[k] = strings.key[string] >> _LOW
        string = strings.key[string] & _MASK
    number = np.int64(0)
    for k in range(length + len(words) - 1, -1, -1):
        first_word = prefix[k] if k < length else words[k - length]
        key = (np.int64(first_word) << _LOW) | number
        slot = find_slot(key, strings.key, strings.slots)
        number = np.int64(strings.slots[slot])
        if number < 0:
            number = np.int64(count)
            strings.slots[slot] = count
            keys = with_capacity(strings.key, count + 1)
            keys[count] = key
            count += 1
            # Key 0, that of the empty string, is never looked up: word ids are above 0.
            strings = OutputStrings(keys, rehash_if_full(strings.slots, keys, count, count))
    return number, strings, count


@njit(cache=True, nogil=True)
def _common_prefix(string: Array, strings: OutputStrings) -> int:
    """Return the number of words that all strings have in common at the start."""
    suffixes, length = string.copy(), 0
    while True:
        if suffixes[0] == 0:
            return length
        first_word = strings.key[suffixes[0]] >> _LOW
        for k in range(len(suffixes)):
            if suffixes[k] == 0 or strings.key[suffixes[k]] >> _LOW != first_word:
                return length
        for k in range(len(suffixes)):
            suffixes[k] = strings.key[suffixes[k]] & _MASK
        length += 1


@njit(cache=True, nogil=True)
def _write_words(arcs: Arcs, number: int, string: int, strings: OutputStrings, length: int) -> Arcs:
    """Write a string's first `length` words (-1: all) on arc `number`; return the arcs."""
    words, end = arcs.words, arcs.splits[number]
    while string and length:
        words = with_capacity(words, end + 1)
        words[end] = strings.key[string] >> _LOW
        string, length, end = strings.key[string] & _MASK, length - 1, end + 1
    arcs.splits[number + 1] = end
    return Arcs(arcs.source, arcs.target, arcs.label, arcs.score, arcs.lm, arcs.splits, words)


@njit(cache=True, nogil=True)
def _set_arc(
    arcs: Arcs, number: int, source: int, target: int, label: int, score: int, lm: int
) -> None:
    """Set the columns of one arc."""
    arcs.source[number], arcs.target[number], arcs.label[number] = source, target, label
    arcs.score[number], arcs.lm[number] = score, lm


@njit(cache=True, nogil=True)
def _elements(size: int) -> SubsetElements:
    """Return uninitialised arrays for `size` elements."""
    return SubsetElements(
        np.empty(size, np.int32),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int32),
    )


@njit(cache=True, nogil=True)
def _resize_elements(elements: SubsetElements, size: int) -> SubsetElements:
    """Return the elements with room for `size`."""
    return SubsetElements(
        with_capacity(elements.state, size),
        with_capacity(elements.score, size),
        with_capacity(elements.lm, size),
        with_capacity(elements.string, size),
    )


@njit(cache=True, nogil=True)
def _resize_subsets(subsets: SubsetTable, count: int, size: int) -> SubsetTable:
    """Return the subset table with room for `size`."""
    key = with_capacity(subsets.key, size)
    return SubsetTable(
        with_capacity(subsets.begin, size + 1), key, rehash_if_full(subsets.slots, key, count, size)
    )


@njit(cache=True, nogil=True)
def _arcs(size: int) -> Arcs:
    """Return uninitialised arrays for `size` arcs."""
    return Arcs(
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.zeros(size + 1, np.int32),
        np.empty(size, np.int32),
    )


@njit(cache=True, nogil=True)
def _resize_arcs(arcs: Arcs, size: int) -> Arcs:
    """Return the arcs with room for `size`; `words` is not resized."""
    return Arcs(
        with_capacity(arcs.source, size),
        with_capacity(arcs.target, size),
        with_capacity(arcs.label, size),
        with_capacity(arcs.score, size),
        with_capacity(arcs.lm, size),
        with_capacity(arcs.splits, size + 1),
        arcs.words,
    )


@njit(cache=True, nogil=True)
def _trimmed(arcs: Arcs, count: int) -> Arcs:
    """Return the first `count` arcs."""
    return Arcs(
        arcs.source[:count].copy(),
        arcs.target[:count].copy(),
        arcs.label[:count].copy(),
        arcs.score[:count].copy(),
        arcs.lm[:count].copy(),
        arcs.splits[: count + 1].copy(),
        arcs.words[: arcs.splits[count]].copy(),
    )
