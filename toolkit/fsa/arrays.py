"""Growing arrays and hash tables inside compiled kernels (numba), and scores in fixed point."""

import numpy as np

from toolkit.kernels import njit

Array = np.ndarray
SCORE_UNIT = 2.0**-22
"""The unit of exact scores: as fine as float32 is at 4, which is where scores of words lie."""


def to_fixed_point(scores: np.ndarray) -> np.ndarray:
    """Scores as int64 multiples of `SCORE_UNIT`, whose sums depend on no order."""
    return np.rint(scores.astype(np.float64) / SCORE_UNIT).astype(np.int64)


def from_fixed_point(scores: np.ndarray) -> np.ndarray:
    """Exact scores as float32."""
    return (scores * SCORE_UNIT).astype(np.float32)


@njit(cache=True, nogil=True)
def with_capacity(values: Array, size: int) -> Array:
    """The array itself if it has room for `size` entries, else a larger copy."""
    if size <= len(values):
        return values
    larger = np.empty(max(size, len(values) + len(values) // 2), values.dtype)
    larger[: len(values)] = values
    return larger


@njit(cache=True, nogil=True)
def hash_int64(key: int) -> int:
    """A hash of an int64, not negative."""
    key = (key ^ (key >> 29)) * np.int64(-4658895280553007687)
    key = (key ^ (key >> 32)) * np.int64(-7723592293110705685)
    return (key ^ (key >> 30)) & np.int64(0x7FFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def find_slot(key: int, keys: Array, slots: Array) -> int:
    """The slot with the number of a key, or the free one (below 0) in which it belongs.

    Args:
      key: int64.
      keys: by number.
      slots: [a power of 2] int32.
    """
    slot = hash_int64(key) & (len(slots) - 1)
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@njit(cache=True, nogil=True)
def rehash_if_full(slots: Array, keys: Array, count: int, size: int) -> Array:
    """The slots of the first `count` keys with room for `size`: larger ones if half are taken."""
    if 2 * size <= len(slots):
        return slots
    room = len(slots)
    while room < 4 * size:
        room *= 2
    slots = np.full(room, -1, np.int32)
    for number in range(count):
        slot = hash_int64(keys[number]) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    return slots
