"""Scores of Gaussian mixtures that are computed where a search asks for them.

A forced alignment reads a tenth of the scores of its utterance: those of the states that its beam
reaches in a frame. Matrix products of all of them took it four fifths of its time.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from toolkit.hmm.gmm import Gmm

Array = np.ndarray
NEGLIGIBLE = np.float32(20.0)
"""Gaussians this far below the best so far are left out of its sum: 2e-9 of it, which float32 does
not tell from nothing."""


class MixtureArrays(NamedTuple):
    """Frames and mixtures as kernels take them."""

    rows: Array
    """[T, 2 D] float32: squares of a frame's values, then the values."""
    matrix: Array
    """[G, 2 D] float32: the factors on a row of each Gaussian."""
    constant: Array
    """[G] float32: what is added to that product."""
    first: Array
    """[L] int64: the first Gaussian of each column."""
    behind: Array
    """[L] int64: the one behind its last."""
    scale: np.float32
    """Factor on the log-likelihoods."""


@dataclass(frozen=True)
class DemandedScores:
    """The scores [T, L] of T frames, for searches that read a few of them.

    It has the length, the shape and the product by a number of the tensor that it stands for.
    """

    gmm: Gmm
    """The mixtures."""
    frames: Tensor
    """[T, D] the features."""
    pdfs: Tensor
    """[L] the pdf of each column."""
    scale: float = 1.0
    """Factor on the log-likelihoods."""

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def shape(self) -> tuple[int, int]:
        """T and L."""
        return len(self.frames), len(self.pdfs)

    def __mul__(self, scale: float) -> "DemandedScores":
        return replace(self, scale=self.scale * scale)

    def dense(self) -> Tensor:
        """Compute all of them: [T, L]."""
        return self.gmm.log_likelihoods(self.frames, self.pdfs) * self.scale

    def arrays(self) -> MixtureArrays:
        """Return what kernels compute them from; nothing of the mixtures is copied."""
        products = self.gmm.products(self.pdfs)
        rows = np.concatenate([self.frames.numpy() ** 2, self.frames.numpy()], axis=1)
        return MixtureArrays(
            rows, *(part.numpy() for part in products), scale=np.float32(self.scale)
        )


@njit(cache=True, nogil=True)
def demanded_score(scores: MixtureArrays, frame: int, column: int) -> float:
    """Compute one score, float32."""
    row, best, total = scores.rows[frame], np.float32(-np.inf), np.float32(0.0)
    for gaussian in range(scores.first[column], scores.behind[column]):
        value = _product(row, scores.matrix[gaussian]) + scores.constant[gaussian]
        if value > best:
            total = total * np.exp(best - value) + np.float32(1.0)
            best = value
        elif value > best - NEGLIGIBLE:
            total += np.exp(value - best)
    return scores.scale * (best + np.log(total))


# Sums in any order, so that they are computed many at a time.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _product(a: Array, b: Array) -> float:
    total = np.float32(0.0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total
