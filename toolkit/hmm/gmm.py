"""Diagonal Gaussian mixtures, one per pdf: maximum-likelihood training and scoring."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import iadd
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.hmm.gmm_kernels import MixtureArrays, add_frames
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading

Self = TypeVar("Self", bound="Accumulators")


class Accumulators:
    """Base of dataclasses with numbers and float64 tensors that are summed over frames."""

    def add(self: Self, other: Self) -> None:
        """Add the statistics of other frames; the same order of additions gives identical sums."""
        for field in fields(self):
            total = iadd(getattr(self, field.name), getattr(other, field.name))
            setattr(self, field.name, total)

    def __reduce__(self) -> tuple:
        """Pickle numpy arrays; torch would send tensors to workers by file descriptors."""
        values = [getattr(self, field.name) for field in fields(self)]
        arrays = (v.numpy() if isinstance(v, Tensor) else v for v in values)
        return _unpickle_accumulators, (type(self), *arrays)


def _unpickle_accumulators(kind: type[Self], *values: object) -> Self:
    """Make accumulators from their pickled arrays."""
    return kind(*(v if isinstance(v, int | float) else torch.from_numpy(v) for v in values))


LOG_2PI = 1.8378770664093453

SPLIT_POWER = 0.25
"""Exponent of a pdf's occupancy in its share of the Gaussians; below one favours rare pdfs."""

# Number of single Gaussians' scores computed at a time: 8 MB, so that they stay in the cache.
MAX_SCORES = 2**21

# Log-likelihoods are clamped to this much below the largest one in their sum, where they make no
# difference (2e-35): MKL's exponential takes 50 times as long where it underflows (12 to 38 ns
# instead of 0.25).
NEGLIGIBLE = -80.0


class GmmError(ToolkitError):
    """Raised for Gaussian mixtures that cannot be read, or do not fit features or senones."""


@dataclass
class GmmStatistics(Accumulators):
    """E-step accumulators for G Gaussians with D dimensions, in float64."""

    occupancy: Tensor  # [G]
    first: Tensor  # [G, D], sum of posterior * x
    second: Tensor  # [G, D], sum of posterior * x^2
    log_likelihood: float = 0.0
    frames: int = 0

    @classmethod
    def zeros(cls, gaussians: int, dimension: int) -> "GmmStatistics":
        """Return the statistics of no frames."""
        matrix = torch.zeros(gaussians, dimension, dtype=torch.float64)
        return cls(torch.zeros(gaussians, dtype=torch.float64), matrix, matrix.clone())


class PdfFrames(NamedTuple):
    """The frames aligned to one pdf, and the posteriors of its Gaussians."""

    gaussians: slice
    """The J Gaussians of the pdf."""
    rows: Tensor
    """[n, 2 D] squares of the frames, then the frames."""
    posteriors: Tensor
    """[n, J] posteriors of the Gaussians; those of a frame sum to one."""
    log_likelihoods: Tensor
    """[n, 1] log-likelihoods of the frames."""

    @property
    def x(self) -> Tensor:
        """The frames of the pdf: [n, D]."""
        return self.rows[:, self.rows.shape[1] // 2 :]


class Gmm:
    """P mixtures of diagonal Gaussians: G Gaussians in total, stored flat and sorted by pdf.

    Args:
      owner: [G] the pdf of each Gaussian, ascending.
      weights: [G] mixture weights; those of one pdf sum to one.
      means, variances: [G, D].
    """

    def __init__(self, owner: Tensor, weights: Tensor, means: Tensor, variances: Tensor) -> None:
        self.owner, self.weights, self.means, self.variances = owner, weights, means, variances
        self.num_pdfs = int(owner.max()) + 1
        # log w - 1/2 (D log 2pi + sum log v + sum (x - m)^2 / v), split into a matrix product over
        # the row (x^2, x) and a constant.
        precision = 1.0 / variances
        self._matrix = torch.cat([-0.5 * precision, means * precision], dim=1)
        self._constant = weights.log() - 0.5 * (
            means.shape[1] * LOG_2PI + variances.log().sum(1) + (means**2 * precision).sum(1)
        )
        self._sizes = torch.bincount(owner, minlength=self.num_pdfs)
        self._first = self._sizes.cumsum(0) - self._sizes
        bounds = zip(self._first.tolist(), self._sizes.tolist(), strict=True)
        self._gaussians_of_pdf = [slice(first, first + size) for first, size in bounds]

    @classmethod
    def from_moments(
        cls, count: Tensor, first: Tensor, second: Tensor, variance_floor: Tensor
    ) -> "Gmm":
        """Make one Gaussian per pdf from the mean and variance of its frames.

        Pdfs without frames get the mean and variance of all frames.

        Args:
          count: [P] frames of each pdf.
          first, second: [P, D] sums of their x and x^2.
          variance_floor: [D].
        """
        count, first, second = count.double()[:, None], first.double(), second.double()
        empty = count <= 0
        count, first, second = (
            torch.where(empty, sums.sum(0), sums) for sums in (count, first, second)
        )
        means = first / count
        variances = (second / count - means**2).float().maximum(variance_floor)
        return cls(torch.arange(len(means)), torch.ones(len(means)), means.float(), variances)

    @property
    def num_gaussians(self) -> int:
        """Total number of Gaussians, G."""
        return len(self.owner)

    def log_likelihoods(self, x: Tensor, pdfs: Tensor | None = None) -> Tensor:
        """Return log-densities [T, P] of frames x [T, D], or [T, len(pdfs)] of some pdfs.

        Only the Gaussians of these pdfs are evaluated.
        """
        if pdfs is None:
            pdfs = torch.arange(self.num_pdfs)
        # Pdfs sorted by their number of Gaussians. `members` are the rows of all their Gaussians,
        # pdf after pdf; a pdf's `shift` is added to a position in `members` to give the row.
        sizes = self._sizes[pdfs]
        order = sizes.argsort(stable=True)
        sizes = sizes[order]
        shift = self._first[pdfs][order] - (sizes.cumsum(0) - sizes)
        members = torch.arange(int(sizes.sum())) + shift.repeat_interleave(sizes)
        matrix, constant = self._matrix[members], self._constant[members, None]
        widths, counts = torch.unique_consecutive(sizes, return_counts=True)
        # Pdfs with the same number of Gaussians are summed together: [count, width, frames].
        shapes = list(zip(counts.tolist(), widths.tolist(), strict=True))
        original_order, blocks = order.argsort(), []
        for frames in x.split(max(1, MAX_SCORES // max(1, len(members)))):
            rows = torch.cat([frames * frames, frames], dim=1)
            scores = torch.addmm(constant, matrix, rows.T)  # [Gaussians, frames]
            groups = scores.split([count * width for count, width in shapes])
            by_pdf = [
                _sum_in_place(group.view(*shape, len(rows)))
                for group, shape in zip(groups, shapes, strict=True)
            ]
            blocks.append(torch.cat(by_pdf).T.index_select(1, original_order))
        return torch.cat(blocks)

    def products(self, pdfs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return precomputed terms of the log-densities of single Gaussians.

        The log-density of Gaussian g at x is matrix[g] (x^2, x) + constant[g].

        Args:
          pdfs: [L] the pdfs whose ranges of Gaussians to return.

        Returns:
          The matrix [G, 2 D] and the constants [G] of all Gaussians; and for each of `pdfs` its
          first Gaussian [L] and the Gaussian after its last [L].
        """
        first = self._first[pdfs]
        return self._matrix, self._constant, first, first + self._sizes[pdfs]

    def posteriors(self, x: Tensor, pdfs: Tensor) -> Iterator[PdfFrames]:
        """Group frames x [T, D] by their pdfs [T], and compute Gaussian posteriors.

        Yields each pdf that occurs, ascending; its frames keep their order. A call costs some
        30 microseconds per pdf, so pass many frames at once.
        """
        x = x[pdfs.argsort(stable=True)]
        rows = torch.cat([x * x, x], dim=1)
        counts = torch.bincount(pdfs).tolist()
        present = [pdf for pdf, count in enumerate(counts) if count]
        blocks = dict(zip(present, rows.split([counts[pdf] for pdf in present]), strict=True))
        size = self._sizes.tolist().__getitem__
        by_pdf = {}
        # Pdfs with the same number of Gaussians are normalised together: fewer operators.
        for width, group in groupby(sorted(present, key=size), key=size):
            same_width = list(group)
            lengths = [counts[pdf] for pdf in same_width]
            scores = rows.new_empty(sum(lengths), width)
            for pdf, part in zip(same_width, scores.split(lengths), strict=True):
                gaussians = self._gaussians_of_pdf[pdf]
                torch.addmm(
                    self._constant[gaussians], blocks[pdf], self._matrix[gaussians].T, out=part
                )
            # Bayes: log gamma(t, j) = log w_j N_j(x_t) - log sum over the pdf's Gaussians.
            likelihoods = scores.logsumexp(1, keepdim=True)
            posteriors = scores.sub_(likelihoods).exp_()
            parts = zip(posteriors.split(lengths), likelihoods.split(lengths), strict=True)
            by_pdf.update(zip(same_width, parts, strict=True))
        for pdf in present:
            yield PdfFrames(self._gaussians_of_pdf[pdf], blocks[pdf], *by_pdf[pdf])

    def accumulate(self, x: Tensor, pdfs: Tensor, into: GmmStatistics) -> None:
        """Add frames x [T, D], aligned to pdfs [T], to the E-step statistics.

        Raises:
          ValueError: the sizes of frames, pdfs, statistics and mixtures do not match.
          GmmError: the likelihood of a frame is NaN.
        """
        counts = torch.bincount(pdfs, minlength=self.num_pdfs)
        fits = len(x) == len(pdfs) and len(counts) == self.num_pdfs
        shapes = {x.shape[1:], *(part.shape[1:] for part in (self.means, into.first, into.second))}
        lengths = {self.num_gaussians, len(into.occupancy), len(into.first), len(into.second)}
        if not (fits and len(shapes) == len(lengths) == 1):  # compiled loops check no bounds
            raise ValueError("the sizes of frames, pdfs, statistics and mixtures do not match")
        likelihood = add_frames(
            x.contiguous().numpy(),
            pdfs.argsort(stable=True).numpy(),
            counts.numpy(),
            self._matrix.numpy(),
            self._constant.numpy(),
            self._first.numpy(),
            self._sizes.numpy(),
            into.occupancy.numpy(),
            into.first.numpy(),
            into.second.numpy(),
        )
        if math.isnan(likelihood):
            raise GmmError("the likelihood of a frame is NaN: features or mixtures are damaged")
        into.log_likelihood += likelihood
        into.frames += len(x)

    def maximise(
        self, statistics: GmmStatistics, min_occupancy: float, variance_floor: Tensor
    ) -> "Gmm":
        """Perform the M step like Kaldi's `MleDiagGmmUpdate`; drop Gaussians with too few frames.

        The number of dropped Gaussians is the difference in `num_gaussians`.

        Args:
          statistics: accumulated with this model.
          min_occupancy: a Gaussian with fewer frames is removed. The heaviest Gaussian of a pdf is
            never removed; with fewer frames it keeps its mean and variance.
          variance_floor: [D].
        """
        # Means and variances from the moments; Gaussians with too few frames keep theirs.
        occupancy = statistics.occupancy
        heaviest = torch.zeros(self.num_gaussians, dtype=torch.bool)
        for gaussians in self._gaussians_of_pdf:
            heaviest[gaussians.start + int(occupancy[gaussians].argmax())] = True
        enough = occupancy >= min_occupancy
        safe_occupancy = occupancy.clamp(min=1e-10)[:, None]
        means = statistics.first / safe_occupancy
        variances = (statistics.second / safe_occupancy - means**2).float().maximum(variance_floor)
        means = torch.where(enough[:, None], means.float(), self.means)
        variances = torch.where(enough[:, None], variances, self.variances)
        # Remove Gaussians, normalise the weights of each pdf.
        is_kept = enough | heaviest
        weights = occupancy.clamp(min=1e-3)[is_kept]
        owner = self.owner[is_kept]
        totals = torch.zeros(self.num_pdfs, dtype=torch.float64).index_add_(0, owner, weights)
        return Gmm(owner, (weights / totals[owner]).float(), means[is_kept], variances[is_kept])

    def split(self, target: int, pdf_occupancy: Tensor, min_count: float = 0.0) -> "Gmm":
        """Split Gaussians up to `target`, allotted to pdfs by occupancy^0.25 (Kaldi's mix-up).

        Each pdf splits its heaviest Gaussian in two until it has its share. The two means move a
        fifth of the standard deviation each, in opposite random directions. The directions are the
        same in every call, unlike Kaldi's.

        Args:
          target: total number of Gaussians; fewer where there are too few frames.
          pdf_occupancy: [P] frames of each pdf.
          min_count: frames that a pdf must have for each Gaussian (Kaldi: 20).
        """
        num_gaussians = _shares(target, pdf_occupancy.clamp(min=1.0), min_count).tolist()
        generator = torch.Generator().manual_seed(0)
        weights, means, variances = [], [], []
        for pdf, gaussians in enumerate(self._gaussians_of_pdf):
            w, m, v = (
                self.weights[gaussians].tolist(),
                self.means[gaussians],
                self.variances[gaussians],
            )
            if len(w) < num_gaussians[pdf]:
                m, v = list(m), list(v)
                # w_i / 2 each, means apart by +-0.2 sigma in a random direction (Kaldi's perturb).
                while len(w) < num_gaussians[pdf]:
                    i = max(range(len(w)), key=w.__getitem__)
                    step = 0.2 * v[i].sqrt() * torch.randn(v[i].shape, generator=generator)
                    w[i] /= 2
                    w.append(w[i])
                    m.append(m[i] - step)
                    m[i] = m[i] + step
                    v.append(v[i])
                m, v = torch.stack(m), torch.stack(v)
            weights.append(torch.tensor(w))
            means.append(m)
            variances.append(v)
        sizes = torch.tensor([len(w) for w in weights])
        owner = torch.arange(self.num_pdfs).repeat_interleave(sizes)
        return Gmm(owner, torch.cat(weights), torch.cat(means), torch.cat(variances))

    def transform_means(self, matrix: Tensor) -> "Gmm":
        """Multiply the means by a matrix [D, D], like Kaldi's gmm-transform-means after MLLT.

        The variances stay; the next EM iterations re-estimate them.
        """
        means = (self.means.double() @ matrix.double().T).float()
        return Gmm(self.owner, self.weights, means, self.variances)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors from which `from_state` rebuilds the model."""
        names = ("owner", "weights", "means", "variances")
        return {name: getattr(self, name).contiguous() for name in names}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "Gmm":
        """Rebuild a model from the tensors of `state`.

        Raises:
          ValueError, KeyError: the tensors do not describe mixtures.
        """
        owner, weights = state["owner"], state["weights"]
        means, variances = state["means"], state["variances"]
        sizes = {len(owner), len(weights), len(means)}
        if owner.dtype != torch.int64 or len(sizes) != 1 or means.shape != variances.shape:
            raise ValueError("the sizes of its tensors do not match")
        steps = owner.diff(prepend=owner.new_zeros(1))
        if not (steps.ge(0).all() and steps.le(1).all() and owner[0] == 0):
            raise ValueError("its pdfs are not numbered consecutively")
        if not (weights.ge(0).all() and means.isfinite().all() and variances.gt(0).all()):
            raise ValueError("weights, means or variances are out of range")
        gmm = cls(owner, weights, means, variances)
        # A weight of 0 does no harm while its pdf has another Gaussian.
        finite = gmm._matrix.isfinite().all() and (gmm._constant.isfinite() | weights.eq(0)).all()
        if not (finite and torch.bincount(owner, weights).gt(0).all()):
            raise ValueError(
                "all weights of a pdf are 0, or its densities are beyond the range of float32"
            )
        return gmm

    def __reduce__(self) -> tuple:
        """Pickle numpy arrays; torch would send tensors to workers by file descriptors."""
        return _unpickle_gmm, tuple(t.numpy() for t in self.state().values())

    def save(self, path: Path) -> None:
        """Write the model as safetensors."""
        write_atomically(path, save(self.state()))

    @classmethod
    def load(cls, path: Path) -> "Gmm":
        """Read a model that `save` wrote.

        Raises:
          GmmError: the file cannot be read, or holds no mixtures; names the file.
        """
        shapes = {"owner": ("I64", 1), "weights": ("F32", 1)}
        shapes |= {"means": ("F32", 2), "variances": ("F32", 2)}
        with reading(path, GmmError, "train it again", "no Gaussian mixtures"):
            return cls.from_state(read_tensors(path, shapes)[0])


def _sum_in_place(scores: Tensor) -> Tensor:
    """Compute `scores.logsumexp(1)` of [n, J, T] in half the time; overwrites the scores."""
    top = scores.amax(1)
    return scores.sub_(top[:, None]).clamp_(min=NEGLIGIBLE).exp_().sum(1).log_().add_(top)


def _unpickle_gmm(*arrays: np.ndarray) -> Gmm:
    """Make a model from its pickled arrays."""
    return Gmm(*map(torch.from_numpy, arrays))


def _shares(target: int, occupancy: Tensor, min_count: float) -> Tensor:
    """Divide `target` Gaussians among pdfs by their occupancy: [P] to [P] int64.

    Gaussians that a pdf has too few frames for are allotted to the other pdfs.
    """
    share = occupancy**SPLIT_POWER
    limit = (occupancy / min_count).floor().clamp(min=1.0)  # infinite without a minimum
    is_full = torch.zeros(len(share), dtype=torch.bool)
    while True:
        # Allot to the other pdfs, in proportion, what the full pdfs leave; pdfs that exceed their
        # limit become full.
        remaining = target - float(limit[is_full].sum())
        allotted = torch.where(is_full, limit, remaining * share / share[~is_full].sum())
        now_full = is_full | (allotted > limit)
        if torch.equal(now_full, is_full) or now_full.all():
            return allotted.minimum(limit).floor().long().clamp(min=1)
        is_full = now_full


@dataclass(frozen=True)
class LazyGmmScores:
    """Scores [T, L] of T frames, computed on demand for searches that read only a few of them.

    A forced alignment reads a tenth of an utterance's scores: those of the states within its beam.
    Matrix products for all scores would take four fifths of its time. Like the tensor that it
    replaces, this class has a length and a shape, and can be multiplied by a number.

    Raises:
      GmmError: frames and mixtures have different dimensions, or a pdf does not exist; compiled
        loops would read beyond the arrays.
    """

    gmm: Gmm
    """The mixtures."""
    frames: Tensor
    """[T, D] the features."""
    pdfs: Tensor
    """[L] the pdf of each column."""
    scale: float = 1.0
    """Factor on the log-likelihoods."""

    def __post_init__(self) -> None:
        if self.frames.shape[1] != self.gmm.means.shape[1]:
            raise GmmError(
                f"the frames have {self.frames.shape[1]} values, but the Gaussian mixtures have "
                f"{self.gmm.means.shape[1]} dimensions: front end and mixtures come from "
                "different systems. Restore the model or train it again"
            )
        if len(self.pdfs) and not 0 <= int(self.pdfs.min()) <= int(self.pdfs.max()) < (
            self.gmm.num_pdfs
        ):
            raise GmmError(
                f"the senones contain pdf {int(self.pdfs.max())}, but the mixtures model only "
                f"{self.gmm.num_pdfs} pdfs: senones and mixtures come from different systems. "
                "Restore the model or train it again"
            )

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of frames T and of columns L."""
        return len(self.frames), len(self.pdfs)

    def __mul__(self, scale: float) -> "LazyGmmScores":
        return replace(self, scale=self.scale * scale)

    def dense(self) -> Tensor:
        """Compute all scores: [T, L]."""
        return self.gmm.log_likelihoods(self.frames, self.pdfs) * self.scale

    def arrays(self) -> MixtureArrays:
        """Return the arrays from which kernels compute scores, without copying the mixtures."""
        products = self.gmm.products(self.pdfs)
        rows = np.concatenate([self.frames.numpy() ** 2, self.frames.numpy()], axis=1)
        return MixtureArrays(
            rows, *(part.numpy() for part in products), scale=np.float32(self.scale)
        )
