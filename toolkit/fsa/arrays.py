"""Tools for compiled kernels (numba): ragged and growing arrays, hash tables, fixed point."""

import numpy as np

from toolkit.kernels import njit

Array = np.ndarray
SCORE_UNIT = 2.0**-22
"""Unit of fixed-point scores: the resolution of float32 at 4, the magnitude of word scores."""


def to_fixed_point(scores: np.ndarray) -> np.ndarray:
    """Round scores to int64 multiples of `SCORE_UNIT`, whose sums do not depend on the order."""
    return np.rint(scores.astype(np.float64) / SCORE_UNIT).astype(np.int64)


def from_fixed_point(scores: np.ndarray) -> np.ndarray:
    """Convert fixed-point scores to float32."""
    return (scores * SCORE_UNIT).astype(np.float32)


def ragged_rows(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the concatenated entries of rows of different lengths.

    Args:
      counts: [N] number of entries of each row.

    Returns:
      For each of the M entries: [M] its row, ascending; and [M] its place in the row: 0, 1, ...
    """
    row = np.repeat(np.arange(len(counts)), counts)
    # An entry's place is its index among all entries, minus the number of entries of earlier rows.
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def ragged_ranges(begin: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all entries `begin[r]` to `begin[r + 1] - 1` of some rows, e.g. arcs out of states.

    Args:
      begin: [R + 1] where each of R rows begins, as in a compressed sparse matrix.
      rows: [N] some of these rows, in any order.

    Returns:
      [M] the position in `rows` of each entry's row, ascending; and [M] the entries.
    """
    position, offset = ragged_rows(begin[rows + 1] - begin[rows])
    return position, begin[rows][position] + offset


@njit(cache=True, nogil=True)
def with_capacity(values: Array, size: int) -> Array:
    """Return the array if it has room for `size` entries, else a larger copy."""
    if size <= len(values):
        return values
    larger = np.empty(max(size, len(values) + len(values) // 2), values.dtype)
    larger[: len(values)] = values
    return larger


@njit(cache=True, nogil=True)
def hash_int64(key: int) -> int:
    """Return a non-negative hash of an int64: xor-shift and multiply, as SplitMix64's finaliser."""
    # The constants are 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB, written as signed numbers.
    key = (key ^ (key >> 29)) * np.int64(-4658895280553007687)
    key = (key ^ (key >> 32)) * np.int64(-7723592293110705685)
    return (key ^ (key >> 30)) & np.int64(0x7FFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def find_slot(key: int, keys: Array, slots: Array) -> int:
    """Return the slot that holds a key's number, or the free slot where the key belongs.

    Args:
      key: int64.
      keys: int64, the key of each number.
      slots: [a power of 2] int32, the number of the key in each slot; below 0 if it is free.
    """
    slot = hash_int64(key) & (len(slots) - 1)
    # Open addressing with linear probing.
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@njit(cache=True, nogil=True)
def rehash_if_full(slots: Array, keys: Array, count: int, size: int) -> Array:
    """Return the hash table, made larger if `size` keys would use more than half of its slots.

    Args:
      slots, keys: see `find_slot`.
      count: keys in the table.
      size: keys that it must have room for.
    """
    if 2 * size <= len(slots):
        return slots
    num_slots = len(slots)
    while num_slots < 4 * size:  # so that at most a quarter is in use afterwards
        num_slots *= 2
    slots = np.full(num_slots, -1, np.int32)
    for number in range(count):
        slot = hash_int64(keys[number]) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    return slots
