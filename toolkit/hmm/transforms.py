"""Linear feature transforms: LDA and MLLT for all speakers (C4), fMLLR per speaker.

Statistics are symmetric matrices stored as upper triangles, for half the additions and memory.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.hmm.gmm import Accumulators, Gmm

BLOCK_FRAMES = 256
"""Frames whose outer products are held at a time: 1.7 MB at 40 dimensions, near the caches."""


def triangle(dimension: int) -> Tensor:
    """Return rows and columns of the upper triangle of [D, D]: [2, D(D+1)/2]."""
    return torch.triu_indices(dimension, dimension)


def weighted_outer(x: Tensor, weights: Tensor) -> Tensor:
    """Return sums over frames of weight * x x^T as upper triangles.

    Args:
      x: [T, D].
      weights: [T, J] in the dtype of x: J weights of each frame.

    Returns:
      [J, D(D+1)/2].
    """
    rows, columns = triangle(x.shape[1])
    total = x.new_zeros(weights.shape[1], len(rows))
    for part, weight in zip(x.split(BLOCK_FRAMES), weights.split(BLOCK_FRAMES), strict=True):
        by_dimension = part.T.contiguous()  # [D, frames]
        total += weight.T @ (by_dimension[rows] * by_dimension[columns]).T
    return total


def unpack(triangles: Tensor, dimension: int) -> Tensor:
    """Expand upper triangles to symmetric matrices: [J, D(D+1)/2] to [J, D, D]."""
    rows, columns = triangle(dimension)
    whole = triangles.new_empty(len(triangles), dimension, dimension)
    whole[:, rows, columns] = triangles
    whole[:, columns, rows] = triangles
    return whole


MIN_EIGENVALUE = 1e-8
"""Smallest eigenvalue of the within-class correlation matrix that counts: directions below it vary
by rounding alone. Spliced deltas have such directions, since a delta is a sum of spliced frames."""


class LdaError(ToolkitError):
    """Raised when statistics do not determine as many directions as requested."""


@dataclass
class LdaStatistics(Accumulators):
    """LDA accumulators for D-dimensional frames of C classes, in float64."""

    count: Tensor  # [C], frames
    first: Tensor  # [C, D], sum of x
    second: Tensor  # [D, D], sum of x x^T over all classes

    @classmethod
    def zeros(cls, classes: int, dimension: int) -> "LdaStatistics":
        """Return the statistics of no frames."""
        return cls(
            torch.zeros(classes, dtype=torch.float64),
            torch.zeros(classes, dimension, dtype=torch.float64),
            torch.zeros(dimension, dimension, dtype=torch.float64),
        )

    def accumulate(self, x: Tensor, classes: Tensor) -> None:
        """Add frames x [T, D] of classes [T]; pass speech frames only, as Kaldi does."""
        x = x.double()
        self.count += torch.bincount(classes, minlength=len(self.count))
        self.first.index_add_(0, classes, x)
        self.second.addmm_(x.T, x)


def estimate_lda(statistics: LdaStatistics, dimension: int) -> Tensor:
    """Estimate the directions in which classes differ most, like Kaldi's LdaEstimate.

    The within-class covariance of the transformed features is the identity. Unlike in Kaldi,
    directions without within-class variance are left out, classes without frames do not count, and
    the sign of each row is fixed: its largest coefficient is positive.

    Args:
      statistics: at least `dimension` + 1 classes with frames.
      dimension: number of dimensions of the transformed features.

    Returns:
      [dimension, D] float64, the row with the largest between-class variance first.

    Raises:
      LdaError: there are too few classes, or the features have too few independent dimensions.
    """
    has_frames = statistics.count > 0
    count, first = statistics.count[has_frames], statistics.first[has_frames]
    if len(count) <= dimension:
        raise LdaError(
            f"LDA to {dimension} dimensions needs more than {dimension} classes with frames, but "
            f"there are only {len(count)}. Use a larger tree or more data, or fewer dimensions"
        )
    # Covariances between and within classes: E[x x^T] - mean mean^T = between + within.
    total = count.sum()
    mean = first.sum(0) / total
    between = (first / count[:, None]).T @ (first / total) - torch.outer(mean, mean)
    within = statistics.second / total - torch.outer(mean, mean) - between

    # Eigenvectors of the within-class correlations, which do not depend on the features' units.
    deviation = within.diagonal().clamp(min=0).sqrt()
    scale = torch.where(deviation > 0, 1 / deviation, 0.0)
    correlations = scale[:, None] * within * scale
    values, vectors = torch.linalg.eigh((correlations + correlations.T) / 2)
    varies = values > MIN_EIGENVALUE
    if int(varies.sum()) < dimension:
        raise LdaError(
            f"LDA to {dimension} dimensions: only {int(varies.sum())} dimensions of the features "
            "are linearly independent. Splice more frames or choose fewer dimensions"
        )
    # Whiten the within-class covariance; in that space take the directions of largest between-class
    # variance.
    whitening = (vectors[:, varies] / values[varies].sqrt()).T * scale
    spread = whitening @ between @ whitening.T
    _, directions = torch.linalg.eigh((spread + spread.T) / 2)
    rows = directions.flip(1)[:, :dimension].T @ whitening
    # Fix the sign: the largest coefficient of each row is positive.
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * largest.sign()


MIN_FRAMES_PER_DIMENSION = 10
"""With fewer frames per dimension Kaldi warns; an estimate from them is useless."""


MLLT_ROUNDS = 200
"""Number of updates of every row (Kaldi: 200)."""


class MlltError(ToolkitError):
    """Raised when there is too little data to estimate the transform."""


@dataclass
class MlltStatistics(Accumulators):
    """MLLT accumulators for D-dimensional frames, in float64."""

    beta: float  # frames
    scatter: Tensor  # [D, D, D], for each d: sum of posterior / variance_d * (x - m) (x - m)^T

    @classmethod
    def zeros(cls, dimension: int) -> "MlltStatistics":
        """Return the statistics of no frames."""
        return cls(0.0, torch.zeros(dimension, dimension, dimension, dtype=torch.float64))

    def accumulate(self, gmm: Gmm, x: Tensor, pdfs: Tensor) -> None:
        """Add frames x [T, D] aligned to pdfs [T], given a model of these features.

        Pass speech frames only, as Kaldi does. Each call has a fixed cost per pdf, so pass many
        utterances at once.
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
    """Estimate the matrix M that maximises the likelihood of M x (Kaldi's MlltAccs::Update).

    Gales, "Semi-tied covariance matrices for hidden Markov models" (1999), eq. 22, row by row:
    no row's update lowers the objective. The means of the model become M m
    (`Gmm.transform_means`); the next EM iterations re-estimate its variances.

    Args:
      statistics: statistics of at least 10 frames per dimension.

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
            f"{count:.0f} frames are too few to estimate MLLT in {dimension} dimensions. Align "
            "more utterances first"
        )
    # Gales 1999, eq. 22: row d is c_d G_d^-1 sqrt(beta / (c_d G_d^-1 c_d^T)), c_d its cofactors.
    inverses = torch.linalg.inv(scatter)
    matrix = torch.eye(dimension, dtype=torch.float64)
    start = mllt_objective(statistics, matrix)
    for _ in range(MLLT_ROUNDS):
        for d in range(dimension):
            update_mllt_row(matrix, d, inverses[d], count)
    return matrix, (mllt_objective(statistics, matrix) - start) / count


def mllt_objective(statistics: MlltStatistics, matrix: Tensor) -> float:
    """Return the frames' log-likelihood under a matrix [D, D], up to a constant."""
    quadratic = torch.einsum("di,dij,dj->", matrix, statistics.scatter, matrix)
    return statistics.beta * float(matrix.slogdet().logabsdet) - 0.5 * float(quadratic)


def update_mllt_row(matrix: Tensor, d: int, inverse: Tensor, count: float) -> None:
    """Replace row d of a matrix [D, D] by its optimum given the other rows.

    Args:
      matrix: changed in place.
      d: number of the row, from 0.
      inverse: [D, D] the inverse of the scatter of d.
      count: number of frames.
    """
    cofactors = torch.linalg.inv(matrix)[:, d]  # up to a factor
    direction = inverse @ cofactors
    matrix[d] = direction * math.sqrt(count / float(cofactors @ direction))


MIN_FRAMES = 500
"""Speech frames below which a speaker's transform is the identity (Kaldi: 500)."""


@dataclass
class FmllrStatistics(Accumulators):
    """fMLLR accumulators for a speaker's D-dimensional frames, in float64; x' is (x, 1)."""

    beta: float  # sum of the frames' weights
    linear: Tensor  # [D, D+1], sum of posterior * mean_d / variance_d * x'^T
    quadratic: Tensor  # [D, D+1, D+1], for each d: sum of posterior / variance_d * x' x'^T

    @classmethod
    def zeros(cls, dimension: int) -> "FmllrStatistics":
        """Return the statistics of no frames."""
        size = dimension + 1
        return cls(
            0.0,
            torch.zeros(dimension, size, dtype=torch.float64),
            torch.zeros(dimension, size, size, dtype=torch.float64),
        )

    def accumulate(self, gmm: Gmm, x: Tensor, pdfs: Tensor, weights: Tensor | None = None) -> None:
        """Add frames with their pdfs; Kaldi gives silence a small weight or none.

        To refine a transform, pass frames to which it has been applied; then apply the new
        transform after it.

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
            by_pdf = weights.double()[pdfs.argsort(stable=True), None]  # as in `posteriors`
            precision, target = by_pdf * precision, by_pdf * target
        self.linear.addmm_(target.T, extended)
        triangles = weighted_outer(extended, precision)
        self.quadratic += unpack(triangles, extended.shape[1])
        self.beta += len(x) if weights is None else float(weights.sum(dtype=torch.float64))


def estimate_fmllr(
    statistics: FmllrStatistics, min_count: float = MIN_FRAMES, iterations: int = 20
) -> tuple[Tensor, float]:
    """Estimate the affine transform that maximises the likelihood of a speaker's frames.

    Mirrors Kaldi's ComputeFmllrMatrixDiagGmmFull (Gales 1998, row by row: no row's update lowers
    the objective).

    Args:
      statistics: statistics of one speaker.
      min_count: with fewer frames, or singular statistics, the transform is the identity.
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
        square = np.linalg.inv(rows[:, :-1])  # computed again, as rounding errors of updates add up
        for d in range(dimension):
            update_fmllr_row(rows, square, d, inverses[d], linear[d], count)
    transform = torch.from_numpy(rows)
    gain = fmllr_objective(statistics, transform) - fmllr_objective(statistics, identity)
    return (transform, gain / count) if gain > 0 else (identity, 0.0)


def fmllr_objective(statistics: FmllrStatistics, transform: Tensor) -> float:
    """Return the frames' log-likelihood under a transform [D, D+1], up to a constant."""
    quadratic = torch.einsum("di,dij,dj->", transform, statistics.quadratic, transform)
    linear = (transform * statistics.linear).sum()
    volume = transform[:, :-1].slogdet().logabsdet
    return statistics.beta * float(volume) + float(linear) - 0.5 * float(quadratic)


def update_fmllr_row(
    transform: np.ndarray,
    square: np.ndarray,
    d: int,
    inverse: np.ndarray,
    linear: np.ndarray,
    count: float,
) -> None:
    """Replace row d of a transform [D, D+1] by its optimum given the other rows.

    Args:
      transform: changed in place.
      square: [D, D], the inverse of the transform without its offsets; changed in place.
      d: number of the row, from 0.
      inverse: [D+1, D+1], the inverse of the quadratic statistics of d.
      linear: [D+1], the linear statistics of d.
      count: number of frames.
    """
    # The best row is i (a c + l), where i = inverse, l = linear, c are the cofactors of the other
    # rows, and the number a solves a^2 c'ic + a c'il = count.
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
