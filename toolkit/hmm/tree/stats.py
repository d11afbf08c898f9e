"""Tree statistics: sums over the frames of every HMM state in phonetic context."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FIELD_BITS = 20
"""A context is one integer: 20 bits each for state id, left phone, right phone."""
FIELD_MASK = (1 << FIELD_BITS) - 1


class ContextStatistics(NamedTuple):
    """N distinct states in context and their sums, sorted by (state, left, right)."""

    left: np.ndarray
    """[N] phone ids."""
    states: np.ndarray
    """[N] state ids."""
    right: np.ndarray
    """[N] phone ids."""
    sums: np.ndarray
    """[N, 1 + 2D] float64: number of frames, sum of x, sum of x^2."""


class TreeStatistics:
    """Frames, sum and sum of squares, in float64, of every (left, state id, right) seen.

    Kaldi's acc-tree-stats. Memory is bounded by the number of distinct contexts. Sums of parts of a
    corpus, added in any order, equal the sums of the whole up to rounding.

    Args:
      dimension: D, of the features.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._row_of: dict[int, int] = {}
        self._sums = np.zeros((0, 1 + 2 * dimension))

    def __len__(self) -> int:
        """The number of distinct contexts."""
        return len(self._row_of)

    @property
    def frames(self) -> int:
        """The number of frames."""
        return int(self._sums[:, 0].sum())

    def accumulate(self, left: Tensor, states: Tensor, right: Tensor, x: Tensor) -> None:
        """Add frames.

        Args:
          left: [T] the phone before each frame's phone.
          states: [T] state ids.
          right: [T] the phone after each frame's phone.
          x: [T, D] features.
        """
        if x.ndim != 2 or x.shape[1] != self.dimension:
            raise ValueError(f"expected features [T, {self.dimension}], got {list(x.shape)}")
        if not len(states) == len(left) == len(right) == len(x):
            raise ValueError(f"{len(states)} states, but {len(x)} frames of features")
        keys = np.zeros(len(states), dtype=np.int64)
        for ids in (states, left, right):
            keys = keys << FIELD_BITS | np.asarray(ids, dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        distinct, first = np.unique(keys[order], return_index=True)
        rows = np.asarray(x, dtype=np.float64)[order]
        rows = np.concatenate([np.ones((len(rows), 1)), rows, rows * rows], axis=1)
        self._add(distinct, np.add.reduceat(rows, first) if len(rows) else rows)

    def add(self, other: "TreeStatistics") -> None:
        """Add the statistics of other frames of the same features."""
        if other.dimension != self.dimension:
            raise ValueError(f"cannot add {other.dimension} dimensions to {self.dimension}")
        self._add(*other._sorted())

    def _add(self, keys: np.ndarray, sums: np.ndarray) -> None:
        rows = [self._row_of.setdefault(key, len(self._row_of)) for key in keys.tolist()]
        missing = len(self._row_of) - len(self._sums)
        if missing > 0:
            room = np.zeros((max(missing, len(self._sums)), self._sums.shape[1]))
            self._sums = np.concatenate([self._sums, room])
        self._sums[rows] += sums

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        keys = np.fromiter(self._row_of, dtype=np.int64, count=len(self))
        order = np.argsort(keys)
        return keys[order], self._sums[: len(self)][order]

    def contexts(self) -> ContextStatistics:
        """The sums of every context."""
        keys, sums = self._sorted()
        states, left = keys >> 2 * FIELD_BITS, keys >> FIELD_BITS & FIELD_MASK
        return ContextStatistics(left, states, keys & FIELD_MASK, sums)

    def sum_by_pdf(self, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums by pdf, from which a GMM of single Gaussians starts (Kaldi's gmm-init-model).

        Args:
          table: [S, P+1, P+1] the pdf of (state id, left, right), as `Tree.table` makes it.

        Returns:
          Of every pdf the frames [pdfs], the sum [pdfs, D] and the sum of squares [pdfs, D] of x,
          float64.
        """
        left, states, right, sums = (torch.from_numpy(array) for array in self.contexts())
        size = int(table.max()) + 1
        pooled = torch.zeros(size, sums.shape[1], dtype=torch.float64)
        pooled.index_add_(0, table[states, left, right].long(), sums)
        count, first, second = pooled.split([1, self.dimension, self.dimension], dim=1)
        return count[:, 0], first, second

    def __reduce__(self) -> tuple:
        """Pickle as two arrays."""
        return _rebuilt, self._sorted()


def _rebuilt(keys: np.ndarray, sums: np.ndarray) -> TreeStatistics:
    statistics = TreeStatistics((sums.shape[1] - 1) // 2)
    statistics._add(keys, sums)
    return statistics
