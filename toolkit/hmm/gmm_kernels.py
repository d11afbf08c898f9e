"""Compiled loops over Gaussians of mixtures: scores on demand, and the E step.

With torch operators the E step would cost some 30 microseconds per pdf that occurs: for ten minutes
of speech, most of its time.
"""

from typing import NamedTuple

import numpy as np

from toolkit.kernels import njit

Array = np.ndarray
NEGLIGIBLE = np.float32(20.0)
"""Gaussians whose log-density is this far below the best one so far are left out of the sum: they
are 2e-9 of it, below the resolution of float32."""
FLUSH = 64
"""Frames that are summed in float32 before they are added to the sums in float64."""


class MixtureArrays(NamedTuple):
    """Frames and mixtures in the form that kernels take."""

    rows: Array
    """[T, 2 D] float32: squares of a frame's values, then the values."""
    matrix: Array
    """[G, 2 D] float32: the factors by which each Gaussian multiplies a row."""
    constant: Array
    """[G] float32: the constants added to that product."""
    first: Array
    """[L] int64: the first Gaussian of each column's pdf."""
    behind: Array
    """[L] int64: the Gaussian after the last one of each column's pdf."""
    scale: np.float32
    """Factor on the log-likelihoods."""


@njit(cache=True, nogil=True)
def demanded_score(scores: MixtureArrays, frame: int, column: int) -> float:
    """Compute the score of one column in one frame, float32."""
    row, best, total = scores.rows[frame], np.float32(-np.inf), np.float32(0.0)
    # Log-sum-exp in one pass: `total` counts in multiples of the best Gaussian so far.
    for gaussian in range(scores.first[column], scores.behind[column]):
        value = product(row, scores.matrix[gaussian]) + scores.constant[gaussian]
        if value > best:
            total = total * np.exp(best - value) + np.float32(1.0)
            best = value
        elif value > best - NEGLIGIBLE:
            total += np.exp(value - best)
    return scores.scale * (best + np.log(total))


# The order of the sum is free (`fastmath`), so that many terms are added at a time.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def product(a: Array, b: Array) -> float:
    """Return the inner product of two vectors in float32."""
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
    """Add frames to the statistics of G Gaussians, each frame to its aligned pdf's Gaussians.

    Args:
      x: [T, D] float32.
      order: [T] the frames, sorted by pdf.
      counts: [P] frames of each pdf.
      matrix, constant: [G, 2 D] and [G] float32, see `Gmm.products`.
      first, sizes: [P] the first Gaussian of each pdf, and their number.
      occupancy: [G] float64, added to: sum of posteriors.
      linear, squares: [G, D] float64, added to: sums of posterior * x and posterior * x^2.

    Returns:
      The sum of the frames' log-likelihoods; NaN if one is NaN, or no Gaussian has a weight.
    """
    dimension, likelihood, begin = x.shape[1], 0.0, 0
    row = np.empty(2 * dimension, np.float32)
    for pdf in range(len(counts)):
        first_gaussian, size = first[pdf], sizes[pdf]
        sums = np.zeros((size, 2 * dimension), np.float32)
        posteriors = np.empty(size, np.float32)
        end = begin + counts[pdf]
        for position in range(begin, end):
            # The row (x^2, x), as in `Gmm.products`.
            for i, value in enumerate(x[order[position]]):
                row[i] = value * value
                row[dimension + i] = value
            # Log-densities of the pdf's Gaussians; nan where a value is not a number.
            best = np.float32(-np.inf)
            for j in range(size):
                posteriors[j] = (
                    product(row, matrix[first_gaussian + j]) + constant[first_gaussian + j]
                )
                best = max(best, posteriors[j])
                if posteriors[j] != posteriors[j]:
                    return np.nan
            if best == -np.inf:
                return np.nan
            # Densities relative to the best one; negligible ones are 0.
            total = np.float32(0.0)
            for j in range(size):
                above = posteriors[j] > best - NEGLIGIBLE
                posteriors[j] = np.exp(posteriors[j] - best) if above else np.float32(0.0)
                total += posteriors[j]
            likelihood += best + np.log(total)
            # Posteriors, and their sums with x^2 and x.
            for j in range(size):
                if posteriors[j] > 0:
                    posterior = posteriors[j] / total
                    occupancy[first_gaussian + j] += posterior
                    for i in range(2 * dimension):
                        sums[j, i] += posterior * row[i]
            # Move the float32 sums to the float64 ones every `FLUSH` frames.
            if (position - begin) % FLUSH == FLUSH - 1 or position == end - 1:
                for j in range(size):
                    for i in range(dimension):
                        squares[first_gaussian + j, i] += sums[j, i]
                        linear[first_gaussian + j, i] += sums[j, dimension + i]
                sums[:] = 0.0
        begin = end
    return likelihood
