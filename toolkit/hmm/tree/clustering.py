"""Single Gaussians of pooled statistics: likelihood, and bottom-up clustering by least loss."""

import math
from collections.abc import Iterator

import numpy as np

VARIANCE_FLOOR = 0.01
"""Share of the global variance of each dimension; Kaldi's floor of 0.01 is absolute."""


def variance_floor(sums: np.ndarray) -> np.ndarray:
    """The lowest variance that a Gaussian may have.

    Args:
      sums: [N, 1 + 2D] frames, sum of x, sum of x^2 of each of N parts of the data.

    Returns:
      [D]; positive.
    """
    count, first, second = _split(sums.sum(0))
    return np.maximum(VARIANCE_FLOOR * (second / count - (first / count) ** 2), 1e-10)


def log_likelihood(sums: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """The log-likelihood of frames under one diagonal Gaussian fitted to them.

    The variance is the most likely one that is not below the floor, so that taking a set of frames
    apart never lowers their likelihood.

    Args:
      sums: [..., 1 + 2D] frames, sum of x, sum of x^2.
      floor: [D] the least variance.

    Returns:
      [...] float64; 0 for no frames.
    """
    count, first, second = _split(sums)
    safe = np.maximum(count, 1e-10)
    scatter = np.maximum(second / safe - (first / safe) ** 2, 0.0)
    variance = np.maximum(scatter, floor)
    constant = len(floor) * math.log(2 * math.pi)
    return -0.5 * count[..., 0] * (constant + (np.log(variance) + scatter / variance).sum(-1))


def agglomerate(
    sums: np.ndarray, floor: np.ndarray, threshold: float = math.inf
) -> Iterator[tuple[int, int]]:
    """Cluster bottom-up: repeatedly merge the two clusters that lose the least likelihood.

    Args:
      sums: [N, 1 + 2D] frames, sum of x, sum of x^2 of N clusters.
      floor: [D] the least variance.
      threshold: stop before a merge that loses this much.

    Yields:
      (i, j), i < j: cluster j goes into cluster i and is no more.
    """
    sums = sums.copy()
    alone = log_likelihood(sums, floor)
    loss = np.full((len(sums), len(sums)), np.inf)  # of merging row and column; row < column
    for i in range(len(sums) - 1):
        loss[i, i + 1 :] = (
            alone[i] + alone[i + 1 :] - log_likelihood(sums[i] + sums[i + 1 :], floor)
        )
    alive = np.ones(len(sums), dtype=bool)
    for _ in range(len(sums) - 1):
        i, j = divmod(int(loss.argmin()), len(sums))
        if not loss[i, j] < threshold:
            return
        yield i, j
        sums[i] += sums[j]
        alone[i] = log_likelihood(sums[i], floor)
        alive[j] = False
        loss[j, :] = loss[:, j] = np.inf
        others = np.flatnonzero(alive)
        others = others[others != i]
        changed = alone[i] + alone[others] - log_likelihood(sums[i] + sums[others], floor)
        loss[np.minimum(i, others), np.maximum(i, others)] = changed


def _split(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dimension = (sums.shape[-1] - 1) // 2
    return sums[..., :1], sums[..., 1 : 1 + dimension], sums[..., 1 + dimension :]
