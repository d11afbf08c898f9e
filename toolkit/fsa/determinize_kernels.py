"""Compiled kernels (numba) of `toolkit.fsa.determinize`; scores are exact (see `tables`)."""

from typing import NamedTuple

import numpy as np

from toolkit.fsa.arrays import find_slot, hash_int64, rehash_if_full, with_capacity
from toolkit.kernels import njit

Array = np.ndarray
_LOW = 32
_MASK = np.int64(0xFFFFFFFF)
LONGEST = 1000
"""The most words that may wait to be written."""


class InputFst(NamedTuple):
    """The transducer."""

    first: Array
    """[states + 1] where the arcs of each state begin."""
    target: Array
    label: Array
    score: Array
    lm: Array
    splits: Array
    words: Array


class SubsetElements(NamedTuple):
    """States that are reached together, each with what it lags behind by."""

    state: Array
    """int32."""
    score: Array
    """int64; the best of a set is 0."""
    lm: Array
    """int64; likewise."""
    string: Array
    """int32, the words not yet written: see `Strings`."""


class SubsetTable(NamedTuple):
    """The sets found so far, each a range of elements sorted by state and string."""

    begin: Array
    """[sets + 1] int64."""
    key: Array
    """[sets] int64 hashes."""
    slots: Array


class OutputStrings(NamedTuple):
    """Lists of words, each stored once: first word << 32 | number of the rest; 0 is empty."""

    key: Array
    slots: Array


class Arcs(NamedTuple):
    """The arcs of the result."""

    source: Array
    target: Array
    label: Array
    score: Array
    lm: Array
    splits: Array
    words: Array


@njit(cache=True, nogil=True)
def determinized(machine: InputFst, limit: int) -> tuple[bool, int, Arcs]:
    """Determinize, breadth first.

    Args:
      machine: the transducer.
      limit: the most arcs, elements and strings that are made.

    Returns:
      Whether it ended within the limit, the number of states but the final one, and the arcs,
      those to the final state with target -1.
    """
    # Typed numbers, here and below: from bare ones numba would compile each function once more for
    # the constant.
    zero, one, every = np.int64(0), np.int64(1), np.int64(-1)
    elements = _elements(np.int64(1024))
    sets = SubsetTable(
        np.zeros(1024, np.int64), np.zeros(1024, np.int64), np.full(4096, -1, np.int32)
    )
    strings = OutputStrings(np.full(1024, -1, np.int64), np.full(4096, -1, np.int32))
    arcs = _arcs(1024)
    # The set of the start state.
    elements.state[0], elements.score[0], elements.lm[0], elements.string[0] = 0, 0, 0, 0
    sets.begin[1] = 1
    sets.key[0] = _set_key(elements, zero, one)
    sets.slots[find_slot(sets.key[0], sets.key, sets.slots)] = 0
    num_sets, num_strings, num_arcs, done = one, one, zero, zero
    while done < num_sets:
        end = sets.begin[num_sets]
        label, way, strings, num_strings = _ways(
            machine, elements, sets.begin[done], sets.begin[done + 1], strings, num_strings
        )
        if num_strings < 0 or max(num_arcs, end, num_strings) > limit:
            return False, done, arcs
        order = _sorted(label, way)
        count = len(order)
        elements = _roomy_elements(elements, end + count)
        arcs = _roomy_arcs(arcs, num_arcs + count + 1)
        sets = _roomy_sets(sets, num_sets, num_sets + count + 1)
        k = 0
        while k < count:
            read, size, begin = label[order[k]], zero, sets.begin[num_sets]
            while k < count and label[order[k]] == read:
                size = _add(way, order[k], elements, begin, size)
                k += 1
            if read < 0:
                for at in range(begin, begin + size):
                    arcs = _written(arcs, num_arcs, elements.string[at], strings, every)
                    _set_arc(arcs, num_arcs, done, every, read, elements.score[at], elements.lm[at])
                    num_arcs += 1
                continue
            score, lm = elements.score[begin], elements.lm[begin]
            for at in range(begin + 1, begin + size):
                score, lm = max(score, elements.score[at]), max(lm, elements.lm[at])
            prefix = _common(elements.string[begin : begin + size], strings)
            arcs = _written(arcs, num_arcs, elements.string[begin], strings, prefix)
            for at in range(begin, begin + size):
                elements.score[at] -= score
                elements.lm[at] -= lm
                for _ in range(prefix):
                    elements.string[at] = strings.key[elements.string[at]] & _MASK
            _sort_strings(elements, begin, begin + size)
            number = _number(elements, sets, num_sets, begin + size)
            _set_arc(arcs, num_arcs, done, number, read, score, lm)
            num_arcs += 1
            if number == num_sets:
                num_sets += 1
                sets.begin[num_sets] = begin + size
        done += 1
    return True, num_sets, _trimmed(arcs, num_arcs)


@njit(cache=True, nogil=True)
def _ways(
    machine: InputFst,
    elements: SubsetElements,
    begin: int,
    end: int,
    strings: OutputStrings,
    num_strings: int,
) -> tuple[Array, SubsetElements, OutputStrings, int]:
    """The arcs that leave a set: labels, and the elements they lead to (see `_appended`)."""
    total = np.int64(0)
    for at in range(begin, end):
        state = elements.state[at]
        total += machine.first[state + 1] - machine.first[state]
    label, way, k = np.empty(total, np.int32), _elements(total), 0
    for at in range(begin, end):
        state = elements.state[at]
        for arc in range(machine.first[state], machine.first[state + 1]):
            string = elements.string[at]
            low, high = machine.splits[arc], machine.splits[arc + 1]
            if low < high:
                string, strings, num_strings = _appended(
                    string, machine.words[low:high], strings, num_strings
                )
                if num_strings < 0:
                    return label, way, strings, num_strings
            label[k], way.state[k], way.string[k] = machine.label[arc], machine.target[arc], string
            way.score[k] = elements.score[at] + machine.score[arc]
            way.lm[k] = elements.lm[at] + machine.lm[arc]
            k += 1
    return label, way, strings, num_strings


@njit(cache=True, nogil=True)
def _sorted(label: Array, way: SubsetElements) -> Array:
    """The order of ways by label, state and string; the better of equals first."""
    key = ((label.astype(np.int64) + 1) << _LOW) | way.state
    tidy = True
    for k in range(1, len(key)):
        tidy &= key[k - 1] < key[k]
    if tidy:
        return np.arange(len(key))
    order = np.argsort(key, kind="mergesort")
    begin = 0
    for k in range(1, len(key) + 1):
        if k == len(key) or key[order[k]] != key[order[begin]]:
            for i in range(begin + 1, k):
                one, j = order[i], i
                while j > begin and _before(way, one, order[j - 1]):
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = one
            begin = k
    return order


@njit(cache=True, nogil=True)
def _before(way: SubsetElements, one: int, other: int) -> bool:
    if way.string[one] != way.string[other]:
        return way.string[one] < way.string[other]
    if way.score[one] != way.score[other]:
        return way.score[one] > way.score[other]
    return way.lm[one] > way.lm[other]


@njit(cache=True, nogil=True)
def _add(way: SubsetElements, k: int, elements: SubsetElements, begin: int, size: int) -> int:
    """Append a way to the set that begins there, unless its state and string are there."""
    at = begin + size
    if size and elements.state[at - 1] == way.state[k] and elements.string[at - 1] == way.string[k]:
        return size
    elements.state[at], elements.string[at] = way.state[k], way.string[k]
    elements.score[at], elements.lm[at] = way.score[k], way.lm[k]
    return size + 1


@njit(cache=True, nogil=True)
def _sort_strings(elements: SubsetElements, begin: int, end: int) -> None:
    """Sort elements of the same state by string: without their prefix they are others."""
    for at in range(begin + 1, end):
        j = at
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
def _set_key(elements: SubsetElements, begin: int, end: int) -> int:
    key = np.int64(end - begin)
    for at in range(begin, end):
        key = hash_int64(key ^ ((np.int64(elements.string[at]) << _LOW) | elements.state[at]))
        key = hash_int64(key ^ (elements.score[at] * np.int64(31) + elements.lm[at]))
    return key


@njit(cache=True, nogil=True)
def _number(elements: SubsetElements, sets: SubsetTable, count: int, end: int) -> int:
    """The number of the set of the newest elements, which becomes `count` if it is new."""
    begin = sets.begin[count]
    key = _set_key(elements, begin, end)
    slot = hash_int64(key) & (len(sets.slots) - 1)
    while sets.slots[slot] >= 0:
        number = sets.slots[slot]
        if sets.key[number] == key and _same(elements, sets, number, begin, end):
            return number
        slot = (slot + 1) & (len(sets.slots) - 1)
    sets.slots[slot], sets.key[count] = count, key
    return count


@njit(cache=True, nogil=True)
def _same(elements: SubsetElements, sets: SubsetTable, number: int, begin: int, end: int) -> bool:
    shift = begin - sets.begin[number]
    if sets.begin[number + 1] + shift != end:
        return False
    for at in range(begin, end):
        if (
            elements.state[at] != elements.state[at - shift]
            or elements.string[at] != elements.string[at - shift]
            or elements.score[at] != elements.score[at - shift]
            or elements.lm[at] != elements.lm[at - shift]
        ):
            return False
    return True


@njit(cache=True, nogil=True)
def _appended(
    string: int, words: Array, strings: OutputStrings, count: int
) -> tuple[int, OutputStrings, int]:
    """The string with words appended, the strings, and their number; -1 if it is too long."""
    length, rest = 0, string
    while rest:
        length, rest = length + 1, strings.key[rest] & _MASK
    if length > LONGEST:
        return string, strings, -1
    before = np.empty(length, np.int32)
    for k in range(length):
        before[k] = strings.key[string] >> _LOW
        string = strings.key[string] & _MASK
    number = np.int64(0)
    for k in range(length + len(words) - 1, -1, -1):
        head = before[k] if k < length else words[k - length]
        key = (np.int64(head) << _LOW) | number
        slot = find_slot(key, strings.key, strings.slots)
        number = np.int64(strings.slots[slot])
        if number < 0:
            number = np.int64(count)
            strings.slots[slot] = count
            keys = with_capacity(strings.key, count + 1)
            keys[count] = key
            count += 1
            # Key 0, that of the empty string, is never looked up: what precedes it is no word.
            strings = OutputStrings(keys, rehash_if_full(strings.slots, keys, count, count))
    return number, strings, count


@njit(cache=True, nogil=True)
def _common(string: Array, strings: OutputStrings) -> int:
    """The number of words with which all of the strings begin."""
    rests, length = string.copy(), 0
    while True:
        if rests[0] == 0:
            return length
        head = strings.key[rests[0]] >> _LOW
        for k in range(len(rests)):
            if rests[k] == 0 or strings.key[rests[k]] >> _LOW != head:
                return length
        for k in range(len(rests)):
            rests[k] = strings.key[rests[k]] & _MASK
        length += 1


@njit(cache=True, nogil=True)
def _written(arcs: Arcs, number: int, string: int, strings: OutputStrings, length: int) -> Arcs:
    """The arcs, number `number` writing the first words of the string (-1: all)."""
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
    arcs.source[number], arcs.target[number], arcs.label[number] = source, target, label
    arcs.score[number], arcs.lm[number] = score, lm


@njit(cache=True, nogil=True)
def _elements(size: int) -> SubsetElements:
    return SubsetElements(
        np.empty(size, np.int32),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int32),
    )


@njit(cache=True, nogil=True)
def _roomy_elements(elements: SubsetElements, size: int) -> SubsetElements:
    return SubsetElements(
        with_capacity(elements.state, size),
        with_capacity(elements.score, size),
        with_capacity(elements.lm, size),
        with_capacity(elements.string, size),
    )


@njit(cache=True, nogil=True)
def _roomy_sets(sets: SubsetTable, count: int, size: int) -> SubsetTable:
    key = with_capacity(sets.key, size)
    return SubsetTable(
        with_capacity(sets.begin, size + 1), key, rehash_if_full(sets.slots, key, count, size)
    )


@njit(cache=True, nogil=True)
def _arcs(size: int) -> Arcs:
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
def _roomy_arcs(arcs: Arcs, size: int) -> Arcs:
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
    return Arcs(
        arcs.source[:count].copy(),
        arcs.target[:count].copy(),
        arcs.label[:count].copy(),
        arcs.score[:count].copy(),
        arcs.lm[:count].copy(),
        arcs.splits[: count + 1].copy(),
        arcs.words[: arcs.splits[count]].copy(),
    )
