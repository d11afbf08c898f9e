"""Linear discriminant analysis: the first transform of the tree's front end (C4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.hmm.accumulators import Accumulators

MIN_EIGENVALUE = 1e-8
"""Smallest eigenvalue of the within-class correlation matrix that counts: directions below it vary
by rounding alone. Spliced deltas have such directions, since a delta is a sum of spliced frames."""


class LdaError(ToolkitError):
    """The statistics do not determine as many directions as requested."""


@dataclass
class LdaStatistics(Accumulators):
    """LDA accumulators over D-dimensional frames of C classes, in float64."""

    count: Tensor  # [C], frames
    first: Tensor  # [C, D], sum of x
    second: Tensor  # [D, D], sum of x x^T over all classes

    @classmethod
    def zeros(cls, classes: int, dimension: int) -> "LdaStatistics":
        """Statistics of no frames."""
        return cls(
            torch.zeros(classes, dtype=torch.float64),
            torch.zeros(classes, dimension, dtype=torch.float64),
            torch.zeros(dimension, dimension, dtype=torch.float64),
        )

    def accumulate(self, x: Tensor, classes: Tensor) -> None:
        """Add frames x[T, D] of the classes [T]; Kaldi accumulates no silence frames."""
        x = x.double()
        self.count += torch.bincount(classes, minlength=len(self.count))
        self.first.index_add_(0, classes, x)
        self.second.addmm_(x.T, x)


def estimate_lda(statistics: LdaStatistics, dimension: int) -> Tensor:
    """The directions in which the classes differ most, as Kaldi's LdaEstimate.

    The within-class covariance of the transformed features is the identity. Unlike Kaldi's,
    directions without within-class variance are left out, classes without frames do not count,
    and the sign of each row is fixed: its largest coefficient is positive.

    Args:
      statistics: at least `dimension` + 1 classes with frames.
      dimension: of the transformed features.

    Returns:
      [dimension, D] float64, rows by falling between-class variance.

    Raises:
      LdaError: too few classes, or features with too few independent dimensions.
    """
    seen = statistics.count > 0
    count, first = statistics.count[seen], statistics.first[seen]
    if len(count) <= dimension:
        raise LdaError(
            f"LDA to {dimension} dimensions needs more than {dimension} classes with frames, and"
            f" there are {len(count)}: use a larger tree or more data, or fewer dimensions"
        )
    total = count.sum()
    mean = first.sum(0) / total
    between = (first / count[:, None]).T @ (first / total) - torch.outer(mean, mean)
    within = statistics.second / total - torch.outer(mean, mean) - between

    deviation = within.diagonal().clamp(min=0).sqrt()
    scale = torch.where(deviation > 0, 1 / deviation, 0.0)
    correlations = scale[:, None] * within * scale
    values, vectors = torch.linalg.eigh((correlations + correlations.T) / 2)
    kept = values > MIN_EIGENVALUE
    if int(kept.sum()) < dimension:
        raise LdaError(
            f"LDA to {dimension} dimensions: the features have only {int(kept.sum())} independent"
            " ones: splice more frames or ask for fewer dimensions"
        )
    whitening = (vectors[:, kept] / values[kept].sqrt()).T * scale
    spread = whitening @ between @ whitening.T
    _, directions = torch.linalg.eigh((spread + spread.T) / 2)
    rows = directions.flip(1)[:, :dimension].T @ whitening
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * largest.sign()
