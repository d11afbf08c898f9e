"""Symmetric matrices stored as their upper triangles: half the additions, half the memory."""

import torch
from torch import Tensor

BLOCK_FRAMES = 256
"""Frames whose outer products are held at a time: 1.7 MB at 40 dimensions, near the caches."""


def triangle(dimension: int) -> Tensor:
    """[2, D(D+1)/2] rows and columns of the entries of an upper triangle of [D, D]."""
    return torch.triu_indices(dimension, dimension)


def weighted_outer(x: Tensor, weights: Tensor) -> Tensor:
    """Sums over frames of weight * x x^T, as upper triangles.

    Args:
      x: [T, D].
      weights: [T, J], of x's type.

    Returns:
      [J, D(D+1)/2].
    """
    rows, columns = triangle(x.shape[1])
    total = x.new_zeros(weights.shape[1], len(rows))
    for part, weight in zip(x.split(BLOCK_FRAMES), weights.split(BLOCK_FRAMES), strict=True):
        by_dimension = part.T.contiguous()
        total += weight.T @ (by_dimension[rows] * by_dimension[columns]).T
    return total


def unpack(triangles: Tensor, dimension: int) -> Tensor:
    """Whole matrices from their upper triangles: [J, D(D+1)/2] -> [J, D, D]."""
    rows, columns = triangle(dimension)
    whole = triangles.new_empty(len(triangles), dimension, dimension)
    whole[:, rows, columns] = triangles
    whole[:, columns, rows] = triangles
    return whole
