"""Compiled kernels (numba) of an adaptive binary range coder: decisions in contexts, as bytes.

Each context has a chance that its next decision is yes, learned from those before: their running
mean, and after 255 of them one with that memory. A decision of chance p takes about -log2 p bits.
Integers throughout, so that every machine reads what another wrote. The interval is that of lpaq
(Mahoney 2007), whose contexts are of bytes and mixed.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

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


def writer(decisions: int, contexts: int) -> Coder:
    """Return a coder that writes so many decisions at most, none of which takes over four bytes."""
    return _coder(np.zeros(_BYTES * decisions, np.uint8), contexts)


def reader(data: bytes, contexts: int) -> Coder:
    """Return a coder that reads; behind the end of the data it reads zeros."""
    coder = _coder(np.frombuffer(bytearray(data), np.uint8), contexts)
    head = data[:_BYTES].ljust(_BYTES, b"\0")
    coder.interval[_CODE:] = int.from_bytes(head, "big"), _BYTES
    return coder


def _coder(data: Array, contexts: int) -> Coder:
    chances = np.full(contexts, 1 << (_CHANCE_BITS - 1), np.int32)
    return Coder(data, np.array([0, _WORD, 0, 0]), chances, np.zeros(contexts, np.int32))


def written(coder: Coder) -> bytes:
    """Return what was written. The coder cannot go on."""
    # The ends of the interval differ in their first byte: that of the upper end, and zeros, which
    # the reader sees behind the end, lie between them.
    last = int(coder.interval[_HIGH]) >> 24
    return coder.data[: coder.interval[_AT]].tobytes() + bytes([last])


@njit(cache=True, nogil=True)
def code(coder: Coder, context: int, decision: bool, reading: bool) -> bool:
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
