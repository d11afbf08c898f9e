"""Compiled kernels (numba) of the lattice codec: a walk that writes and reads, and a range coder.

In each frame, the out-arcs of a state that are in use are a subset, never empty, of its out-arcs
ranked by score. It is told by halves: is one of the first half in use, and, if so, one of the
second? Each half in use is told likewise, down to single arcs. The chance of an answer depends on
what reader and writer both know by then: which arcs of the state were in use a frame before, and
where single arcs lead.

The range coder is adaptive and binary. Each context has a chance that its next decision is yes: the
running mean of those before, and after 255 of them one with that memory. A decision of chance p
takes about -log2 p bits. Integers throughout, so that every machine reads what another wrote. The
interval is that of lpaq (Mahoney 2007).
"""

from typing import NamedTuple

import numpy as np

from toolkit.kernels import njit

Array = np.ndarray
_MEMORY = 255  # decisions
# Chances are stored times 2^22, and used times 2^16.
_CHANCE_BITS, _USED_BITS = 22, 16
_WORD = np.int64(0xFFFFFFFF)
_LOW, _HIGH, _CODE, _AT = range(4)
_BYTES = 4


class Coder(NamedTuple):
    """What is coded or decoded, and how far."""

    data: Array
    """uint8: room for what is written, or what is read."""
    interval: Array
    """[4] int64: both ends of the interval, the four bytes at hand when reading, the next byte."""
    chances: Array
    """[contexts] int32."""
    counts: Array
    """[contexts] int32: decisions seen, as many as are remembered at most."""


def make_writer(decisions: int, contexts: int) -> Coder:
    """Return a coder that writes so many decisions at most, none of which takes over four bytes."""
    return _coder(np.zeros(_BYTES * decisions, np.uint8), contexts)


def make_reader(data: bytes, contexts: int) -> Coder:
    """Return a coder that reads; behind the end of the data it reads zeros."""
    coder = _coder(np.frombuffer(bytearray(data), np.uint8), contexts)
    head = data[:_BYTES].ljust(_BYTES, b"\0")
    coder.interval[_CODE:] = int.from_bytes(head, "big"), _BYTES
    return coder


def _coder(data: Array, contexts: int) -> Coder:
    chances = np.full(contexts, 1 << (_CHANCE_BITS - 1), np.int32)
    return Coder(data, np.array([0, _WORD, 0, 0]), chances, np.zeros(contexts, np.int32))


def written_bytes(coder: Coder) -> bytes:
    """Return what was written. The coder cannot go on."""
    # The ends of the interval differ in their first byte: that of the upper end, and zeros, which
    # the reader sees behind the end, lie between them.
    last = int(coder.interval[_HIGH]) >> 24
    return coder.data[: coder.interval[_AT]].tobytes() + bytes([last])


@njit(cache=True, nogil=True)
def code_decision(coder: Coder, context: int, decision: bool, reading: bool) -> bool:
    """Write a decision, or, when reading, return the one that was written in its place."""
    interval = coder.interval
    low, high = interval[_LOW], interval[_HIGH]
    chance = max(1, coder.chances[context] >> (_CHANCE_BITS - _USED_BITS))
    middle = low + ((high - low) * chance >> _USED_BITS)
    if reading:
        decision = interval[_CODE] <= middle
    if decision:
        high = middle
    else:
        low = middle + 1
    _learn(coder, context, decision)
    while (low ^ high) >> 24 == 0:  # the first byte is certain
        if reading:
            at = interval[_AT]
            following = coder.data[at] if at < len(coder.data) else 0
            interval[_CODE] = (interval[_CODE] << 8 & _WORD) | following
        else:
            coder.data[interval[_AT]] = high >> 24
        interval[_AT] += 1
        low, high = low << 8 & _WORD, (high << 8 & _WORD) | 255
    interval[_LOW], interval[_HIGH] = low, high
    return decision


@njit(cache=True, nogil=True)
def _learn(coder: Coder, context: int, decision: bool) -> None:
    """Move the chance towards the decision: by two thirds at first, by 1 / 256 in the end."""
    seen = coder.counts[context]
    goal = (1 << _CHANCE_BITS) - 1 if decision else 0
    coder.chances[context] += 2 * (goal - coder.chances[context]) // (2 * seen + 3)
    if seen < _MEMORY:
        coder.counts[context] = seen + 1


_FIRST, _SECOND, _NEW_STATE = 1, 2, 4
"""Halves in use, a bit each, and what is said instead of a state that the frame before lacked."""
_MANY, _ENDS, _STAYS, _FAR, _NEAR, _REACHED = range(6)
"""What a half is: several arcs; or one, to the final state, to its own state, to another, to one
that has arcs in this frame, to one that arcs of this frame lead to."""
_SIZES, _EDGES, _KNOWN, _KINDS, _QUESTIONS = 3, 2, 5, 6, 2
CONTEXTS = _SIZES * _EDGES * _KNOWN * _KINDS * _KINDS * _QUESTIONS
_DEEPEST = 64  # halves that wait: fewer than positions have bits


class Codable(NamedTuple):
    """A graph as the kernels see it; its paths begin in state 0."""

    first: Array
    """[S + 1] int64: the first position of each state's arcs."""
    destination: Array
    """[A] int32: the state that the arc at each position leads to."""
    final: int
    """The state in which its paths end."""


@njit(cache=True, nogil=True)
def walk(
    graph: Codable, frames: Array, starts: Array, places: Array, coder: Coder, reading: bool
) -> bool:
    """Write lattices, or read them into `starts` and `places`.

    Args:
      graph: that they were searched in.
      frames: [N] the emitting frames of each lattice.
      starts: [L + 1] int64: where the arcs of each frame begin in `places`, frames + 1 for each
        lattice; the arcs of the last one lead to the final state.
      places: [P] int32: the positions of the arcs in use, ascending in each frame.
      coder: with `CONTEXTS` contexts.
      reading: whether to read.

    Returns:
      Whether these are lattices of so many frames and arcs, each on a path from start to end.
    """
    reached = np.full(len(graph.first) - 1, -1, np.int64)
    task = _Task(graph, coder, reading, reached, np.zeros((_DEEPEST, 2), np.int64))
    row = at = 0
    for lattice in range(len(frames)):
        states = np.zeros(1, np.int32)
        before = at
        for _ in range(frames[lattice] + 1):
            begin = at
            if reading:
                starts[row] = begin
            end = len(places) if reading else starts[row + 1]
            for state in states:
                found = _subset(task, state, row, places[before:begin], places[at:end])
                if found == 0:
                    return False
                at += found
            states = np.unique(graph.destination[places[begin:at]])
            before = begin
            row += 1
        if len(states) != 1 or states[0] != graph.final:
            return False
    starts[row] = at
    return at == len(places)


class _Task(NamedTuple):
    graph: Codable
    coder: Coder
    reading: bool
    reached: Array
    """[S] int64: the last row in which an arc in use led to each state."""
    halves: Array
    """[.., 2] int64: ranges of positions that wait to be halved."""


@njit(cache=True, nogil=True)
def _subset(task: _Task, state: int, row: int, before: Array, places: Array) -> int:
    """Write or read which arcs of a state are in use.

    Args:
      task: what stays the same.
      state: of the graph.
      row: number of the frame, of all lattices.
      before: positions of the arcs in use in the frame before, empty in the first.
      places: those of this state and the rest, or room for them.

    Returns:
      How many there are; 0 where the first of `places` are not those of this state, or too few.
    """
    graph, coder, reading, reached, halves = task
    bottom, top = graph.first[state], graph.first[state + 1]
    past = np.searchsorted(before, bottom)
    new = past == len(before) or before[past] >= top
    halves[0, 0], halves[0, 1] = bottom, top
    waiting, at = 1, 0
    while waiting:
        waiting -= 1
        low, high = halves[waiting]
        if high - low <= 1:
            if at == len(places) or low == high or not (reading or places[at] == low):
                return 0
            places[at] = low
            at += 1
            reached[graph.destination[low]] = row
            continue
        middle = low + 1
        while 2 * middle - low < high:
            middle = 2 * middle - low
        while past < len(before) and before[past] < low:
            past += 1
        known = _NEW_STATE if new else _halves(before, past, middle, high)
        one = _kind(graph, state, low, middle, row, reached)
        other = _kind(graph, state, middle, high, row, reached)
        size = 0 if high - low == 2 else 1 if high - low <= 4 else 2
        context = size * _EDGES + (low == bottom)
        context = ((context * _KNOWN + known) * _KINDS + one) * _KINDS + other
        used = 0 if reading else _halves(places, at, middle, high)
        first = code_decision(coder, context * _QUESTIONS, used & _FIRST != 0, reading)
        second = True
        if first:
            second = code_decision(coder, context * _QUESTIONS + 1, used & _SECOND != 0, reading)
        if second:
            halves[waiting, 0], halves[waiting, 1] = middle, high
            waiting += 1
        if first:
            halves[waiting, 0], halves[waiting, 1] = low, middle
            waiting += 1
    return at


@njit(cache=True, nogil=True)
def _halves(places: Array, at: int, middle: int, high: int) -> int:
    """Tell the halves with arcs, those from `at` on, none of which is before the first half."""
    found = 0
    while at < len(places) and places[at] < middle:
        found = _FIRST
        at += 1
    return found | _SECOND if at < len(places) and places[at] < high else found


@njit(cache=True, nogil=True)
def _kind(graph: Codable, state: int, low: int, high: int, row: int, reached: Array) -> int:
    """Tell what a half is, as far as the arcs that are known by then show it."""
    if high - low > 1:
        return _MANY
    destination = graph.destination[low]
    if destination == graph.final:
        return _ENDS
    if destination == state:
        return _STAYS
    if reached[destination] == row:
        return _REACHED
    return _NEAR if reached[destination] == row - 1 else _FAR
