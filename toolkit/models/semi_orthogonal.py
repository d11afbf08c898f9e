"""The semi-orthogonal constraint of factorised layers (Povey et al. 2018)."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

EVERY_STEPS = 4
"""Steps of the optimizer between two updates, as in Kaldi."""
SPEED = 0.125
"""Kaldi's update speed, with which an update converges quadratically."""
FAR, VERY_FAR = 1.02, 1.1
"""Ratios of the eigenvalues' mean square to their squared mean above which it is halved, twice."""


def constrain(model: nn.Module, step: int) -> None:
    """Update the matrices that a model lists as `semi_orthogonal`, every fourth step.

    Args:
      model: of any kind; without such a list nothing is done.
      step: steps taken before, over all epochs.
    """
    constrain_matrices(getattr(model, "semi_orthogonal", ()), step)


def constrain_matrices(matrices: Iterable[Tensor], step: int) -> None:
    """Update matrices as `constrain` does those of a model."""
    if step % EVERY_STEPS == 0:
        for matrix in matrices:
            make_semi_orthogonal(matrix)


@torch.no_grad()
def make_semi_orthogonal(weight: Tensor) -> None:
    """Move a matrix M a step towards M M^T = a^2 I, in place, for the scale a nearest to M's own.

    With P = M M^T and a^2 = tr(P P) / tr(P), the update is M - 4 v / a^2 (P - a^2 I) M with v =
    1/8: a gradient step on ||P - a^2 I||^2. As in Kaldi's floating scale, the norm of M is left to
    the optimizer, and v is lower for a matrix that is far from its aim, where the step would
    overshoot.

    Args:
      weight: [rows, ...], taken as a matrix of `rows` rows; transposed if it has more rows than
        columns.
    """
    matrix = weight.flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.t()
    product = matrix @ matrix.t()
    trace, square = product.diagonal().sum(), product.square().sum()
    scale = square / trace  # a^2
    ratio = square * len(product) / trace.square()
    speed = SPEED * torch.where(ratio > VERY_FAR, 0.25, torch.where(ratio > FAR, 0.5, 1.0))
    product.diagonal().sub_(scale)
    matrix.sub_(4 * speed / scale * (product @ matrix))
