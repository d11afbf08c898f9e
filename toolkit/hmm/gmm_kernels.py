"""Compiled loops over the Gaussians of mixtures: scores where asked for, and the E step.

As operators of torch the E step costs some 30 microseconds for each pdf that occurs, which in ten
minutes of speech is most of its time.
"""

from typing import NamedTuple

import numpy as np

from toolkit.kernels import njit

Array = np.ndarray
NEGLIGIBLE = np.float32(20.0)
"""Gaussians this far below the best so far are left out of its sum: 2e-9 of it, which float32 does
not tell from nothing."""
FLUSH = 64
"""Frames that are summed in float32 before they are added to the sums in float64."""


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


@njit(cache=True, nogil=True)
def demanded_score(scores: MixtureArrays, frame: int, column: int) -> float:
    """Compute one score, float32."""
    row, best, total = scores.rows[frame], np.float32(-np.inf), np.float32(0.0)
    for gaussian in range(scores.first[column], scores.behind[column]):
        value = product(row, scores.matrix[gaussian]) + scores.constant[gaussian]
        if value > best:
            total = total * np.exp(best - value) + np.float32(1.0)
            best = value
        elif value > best - NEGLIGIBLE:
            total += np.exp(value - best)
    return scores.scale * (best + np.log(total))


# Sums in any order, so that they are computed many at a time.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def product(a: Array, b: Array) -> float:
    """Return the inner product of two vectors, in float32."""
    total = np.float32(0.0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(cache=True, nogil=True)
def add_frames(
    x: Array,
    order: Array,
    counts: Array,
    matrix: Array,
    constant: Array,
    first: Array,
    sizes: Array,
    occupancy: Array,
    linear: Array,
    squares: Array,
) -> float:
    """Add frames to the statistics of G Gaussians, each to those of the pdf it is aligned to.

    Args:
      x: [T, D] float32.
      order: [T] the frames, sorted by pdf.
      counts: [P] frames of each pdf.
      matrix, constant: [G, 2 D] and [G] float32, see `Gmm.products`.
      first, sizes: [P] the first Gaussian of each pdf, and their number.
      occupancy: [G] float64, added to: sum of posteriors.
      linear, squares: [G, D] float64, added to: sums of posterior * x and posterior * x^2.

    Returns:
      The sum of the frames' log-likelihoods; nan as soon as one is no number, or no Gaussian has
      weight.
    """
    dimension, likelihood, begin = x.shape[1], 0.0, 0
    row = np.empty(2 * dimension, np.float32)
    for pdf in range(len(counts)):
        low, size = first[pdf], sizes[pdf]
        sums = np.zeros((size, 2 * dimension), np.float32)
        posteriors = np.empty(size, np.float32)
        end = begin + counts[pdf]
        for place in range(begin, end):
            for i, value in enumerate(x[order[place]]):
                row[i] = value * value
                row[dimension + i] = value
            best = np.float32(-np.inf)
            for j in range(size):
                posteriors[j] = product(row, matrix[low + j]) + constant[low + j]
                best = max(best, posteriors[j])
                if posteriors[j] != posteriors[j]:
                    return np.nan
            if best == -np.inf:
                return np.nan
            total = np.float32(0.0)
            for j in range(size):
                above = posteriors[j] > best - NEGLIGIBLE
                posteriors[j] = np.exp(posteriors[j] - best) if above else np.float32(0.0)
                total += posteriors[j]
            likelihood += best + np.log(total)
            for j in range(size):
                if posteriors[j] > 0:
                    share = posteriors[j] / total
                    occupancy[low + j] += share
                    for i in range(2 * dimension):
                        sums[j, i] += share * row[i]
            if (place - begin) % FLUSH == FLUSH - 1 or place == end - 1:
                for j in range(size):
                    for i in range(dimension):
                        squares[low + j, i] += sums[j, i]
                        linear[low + j, i] += sums[j, dimension + i]
                sums[:] = 0.0
        begin = end
    return likelihood
