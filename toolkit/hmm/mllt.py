"""MLLT (semi-tied covariance): a global transform that suits diagonal covariances (C4)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.hmm.accumulators import Accumulators
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.symmetric import triangle, unpack, weighted_outer

MIN_FRAMES_PER_DIMENSION = 10
"""Kaldi warns below this number; an estimate from so few frames is of no use."""


ROUNDS = 200
"""Updates of every row (Kaldi: 200)."""


class MlltError(ToolkitError):
    """Too little data to estimate the transform."""


@dataclass
class MlltStatistics(Accumulators):
    """MLLT accumulators over D-dimensional frames, in float64."""

    beta: float  # frames
    scatter: Tensor  # [D, D, D], for each d: sum of posterior / variance_d * (x - m) (x - m)^T

    @classmethod
    def zeros(cls, dimension: int) -> "MlltStatistics":
        """Statistics of no frames."""
        return cls(0.0, torch.zeros(dimension, dimension, dimension, dtype=torch.float64))

    def accumulate(self, gmm: Gmm, x: Tensor, pdfs: Tensor) -> None:
        """Add the frames x[T, D], aligned to pdfs[T] of the model of these features.

        Kaldi accumulates no silence frames. A call has a cost per pdf: pass many utterances at
        once.
        """
        dimension = x.shape[1]
        rows, columns = triangle(dimension)
        total = torch.zeros(dimension, len(rows), dtype=torch.float64)
        for block in gmm.posteriors(x, pdfs):
            posteriors, frames = block.posteriors.double(), block.x.double()
            means = gmm.means[block.gaussians].double()
            # sum g (x - m) (x - m)^T = sum g x x^T - m f^T - f m^T + n m m^T, f = sum g x
            first = posteriors.T @ frames - 0.5 * posteriors.sum(0)[:, None] * means
            cross = means[:, rows] * first[:, columns] + first[:, rows] * means[:, columns]
            scatter = weighted_outer(frames, posteriors) - cross
            total.addmm_(1.0 / gmm.variances[block.gaussians].double().T, scatter)
        self.scatter += unpack(total, dimension)
        self.beta += len(x)


def estimate_mllt(statistics: MlltStatistics) -> tuple[Tensor, float]:
    """The square matrix M that makes the likelihood of M x highest, as Kaldi's MlltAccs::Update.

    Gales, "Semi-tied covariance matrices for hidden Markov models" (1999), eq. 22, row by row:
    no row's update lowers the objective. The means of the model become M m
    (`Gmm.transform_means`); its variances are estimated anew by the iterations of EM that follow.

    Args:
      statistics: of at least 10 frames per dimension.

    Returns:
      [D, D] float64, and the gain in log-likelihood per frame.

    Raises:
      MlltError: too few frames.
    """
    count, scatter = statistics.beta, statistics.scatter
    dimension = len(scatter)
    singular = bool((torch.linalg.cholesky_ex(scatter).info != 0).any())
    if singular or count < MIN_FRAMES_PER_DIMENSION * dimension:
        raise MlltError(
            f"MLLT in {dimension} dimensions: {count:.0f} frames do not determine it: align more"
            " utterances first"
        )
    inverses = torch.linalg.inv(scatter)
    matrix = torch.eye(dimension, dtype=torch.float64)
    start = mllt_objective(statistics, matrix)
    for _ in range(ROUNDS):
        for d in range(dimension):
            update_row(matrix, d, inverses[d], count)
    return matrix, (mllt_objective(statistics, matrix) - start) / count


def mllt_objective(statistics: MlltStatistics, matrix: Tensor) -> float:
    """Log-likelihood of the frames under the matrix [D, D], up to a constant."""
    quadratic = torch.einsum("di,dij,dj->", matrix, statistics.scatter, matrix)
    return statistics.beta * float(matrix.slogdet().logabsdet) - 0.5 * float(quadratic)


def update_row(matrix: Tensor, d: int, inverse: Tensor, count: float) -> None:
    """Replace row d of the matrix [D, D] by its optimum given the other rows.

    Args:
      matrix: changed in place.
      d: the row.
      inverse: [D, D] of the scatter of d.
      count: frames.
    """
    cofactors = torch.linalg.inv(matrix)[:, d]  # up to a factor
    direction = inverse @ cofactors
    matrix[d] = direction * math.sqrt(count / float(cofactors @ direction))
