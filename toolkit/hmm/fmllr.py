"""Feature-space MLLR: an affine transform of a speaker's features (SAT)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.hmm.accumulators import Accumulators
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.symmetric import unpack, weighted_outer

MIN_FRAMES = 500
"""Frames of speech below which a speaker's transform is the identity (Kaldi: 500)."""


@dataclass
class FmllrStatistics(Accumulators):
    """fMLLR accumulators over a speaker's D-dimensional frames, in float64; x' is (x, 1)."""

    beta: float  # frames, each by its weight
    linear: Tensor  # [D, D+1], sum of posterior * mean_d / variance_d * x'^T
    quadratic: Tensor  # [D, D+1, D+1], for each d: sum of posterior / variance_d * x' x'^T

    @classmethod
    def zeros(cls, dimension: int) -> "FmllrStatistics":
        """Statistics of no frames."""
        size = dimension + 1
        return cls(
            0.0,
            torch.zeros(dimension, size, dtype=torch.float64),
            torch.zeros(dimension, size, size, dtype=torch.float64),
        )

    def accumulate(self, gmm: Gmm, x: Tensor, pdfs: Tensor, weights: Tensor | None = None) -> None:
        """Add frames with their pdfs; Kaldi accumulates silence with a small weight or none.

        To refine a transform, pass frames that it has already been applied to: the new transform
        is then to be applied after it.

        Args:
          gmm: the mixtures of the pdfs.
          x: [T, D]; a frame may occur with several pdfs.
          pdfs: [T].
          weights: [T], such as the posteriors of the pdfs; by default 1.
        """
        if not len(x):
            return
        frames, precisions, targets = [], [], []
        for block in gmm.posteriors(x, pdfs):
            posteriors = block.posteriors.double()
            precision = 1.0 / gmm.variances[block.gaussians].double()
            frames.append(block.x)
            precisions.append(posteriors @ precision)
            targets.append(posteriors @ (gmm.means[block.gaussians] * precision))
        extended = _extend(torch.cat(frames).double())
        precision, target = torch.cat(precisions), torch.cat(targets)
        if weights is not None:
            by_pdf = weights.double()[pdfs.argsort(stable=True), None]  # as `posteriors` has them
            precision, target = by_pdf * precision, by_pdf * target
        self.linear.addmm_(target.T, extended)
        triangles = weighted_outer(extended, precision)
        self.quadratic += unpack(triangles, extended.shape[1])
        self.beta += len(x) if weights is None else float(weights.sum(dtype=torch.float64))


def estimate_fmllr(
    statistics: FmllrStatistics, min_count: float = MIN_FRAMES, iterations: int = 20
) -> tuple[Tensor, float]:
    """The affine transform that makes a speaker's frames most likely.

    Mirrors Kaldi's ComputeFmllrMatrixDiagGmmFull (Gales 1998, row by row: no row's update lowers
    the objective).

    Args:
      statistics: of one speaker.
      min_count: frames below which the transform is the identity; it is the identity also where the
        statistics are singular.
      iterations: rounds over all rows (Kaldi: 40).

    Returns:
      [D, D+1] float64, the last column is the offset; and the gain in log-likelihood per frame.
    """
    dimension = len(statistics.linear)
    identity = torch.eye(dimension, dimension + 1, dtype=torch.float64)
    count, quadratic = statistics.beta, statistics.quadratic
    if count < min_count or bool((torch.linalg.cholesky_ex(quadratic).info != 0).any()):
        return identity, 0.0
    inverses, linear = torch.linalg.inv(quadratic).numpy(), statistics.linear.numpy()
    rows = identity.numpy().copy()
    for _ in range(iterations):
        square = np.linalg.inv(rows[:, :-1])  # anew, as updates add up their rounding
        for d in range(dimension):
            update_row(rows, square, d, inverses[d], linear[d], count)
    transform = torch.from_numpy(rows)
    gain = fmllr_objective(statistics, transform) - fmllr_objective(statistics, identity)
    return (transform, gain / count) if gain > 0 else (identity, 0.0)


def fmllr_objective(statistics: FmllrStatistics, transform: Tensor) -> float:
    """Log-likelihood of the frames under the transform [D, D+1], up to a constant."""
    quadratic = torch.einsum("di,dij,dj->", transform, statistics.quadratic, transform)
    linear = (transform * statistics.linear).sum()
    volume = transform[:, :-1].slogdet().logabsdet
    return statistics.beta * float(volume) + float(linear) - 0.5 * float(quadratic)


def update_row(
    transform: np.ndarray,
    square: np.ndarray,
    d: int,
    inverse: np.ndarray,
    linear: np.ndarray,
    count: float,
) -> None:
    """Replace row d of the transform [D, D+1] by its optimum given the other rows.

    Args:
      transform: changed in place.
      square: [D, D], the inverse of the transform without its offsets; changed in place.
      d: the row.
      inverse: [D+1, D+1] of the quadratic statistics of d.
      linear: [D+1], those of d.
      count: frames.
    """
    # The best row is inverse (a c + linear), where the cofactors c are those of the other rows
    # and the number a solves a^2 c'ic + a c'il = count.
    cofactors = square[:, d].copy()  # up to a factor
    direction = inverse[:, :-1] @ cofactors
    curvature, slope = float(direction[:-1] @ cofactors), float(direction @ linear)
    root = math.sqrt(slope**2 + 4 * curvature * count)

    def objective(a: float) -> float:
        return count * math.log(abs(a * curvature + slope)) - 0.5 * a**2 * curvature

    steps = [(sign * root - slope) / (2 * curvature) for sign in (1, -1)]
    row = max(steps, key=objective) * direction + inverse @ linear
    change = (row - transform[d])[:-1] @ square  # Sherman and Morrison's formula
    square -= np.outer(cofactors, change / (1 + change[d]))
    transform[d] = row


def _extend(x: Tensor) -> Tensor:
    """Append a one to each row: [T, D] -> [T, D+1]."""
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)
