"""Diagonal Gaussian mixtures, one per pdf, and their maximum-likelihood training."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from toolkit.stages.files import write_atomically

LOG_2PI = 1.8378770664093453


@dataclass
class Statistics:
    """Sums over frames for G Gaussians of D dimensions, in float64."""

    occupancy: Tensor  # [G]
    first: Tensor  # [G, D], sum of posterior * x
    second: Tensor  # [G, D], sum of posterior * x^2
    log_likelihood: float = 0.0
    frames: int = 0

    @classmethod
    def zeros(cls, gaussians: int, dimension: int) -> "Statistics":
        """Statistics of no frames."""
        matrix = torch.zeros(gaussians, dimension, dtype=torch.float64)
        return cls(torch.zeros(gaussians, dtype=torch.float64), matrix, matrix.clone())

    def add(self, other: "Statistics") -> None:
        """Add the statistics of other frames."""
        self.occupancy += other.occupancy
        self.first += other.first
        self.second += other.second
        self.log_likelihood += other.log_likelihood
        self.frames += other.frames


class Gmm:
    """P mixtures of diagonal Gaussians: G Gaussians in all, kept flat and sorted by pdf.

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
        counts = torch.bincount(owner, minlength=self.num_pdfs)
        self._counts = counts.tolist()
        ends = counts.cumsum(0).tolist()
        self._members = [slice(e - n, e) for e, n in zip(ends, self._counts, strict=True)]

    @classmethod
    def flat(cls, num_pdfs: int, mean: Tensor, variance: Tensor) -> "Gmm":
        """One Gaussian per pdf, all equal: the flat start."""
        return cls(
            torch.arange(num_pdfs),
            torch.ones(num_pdfs),
            mean.expand(num_pdfs, -1).clone(),
            variance.expand(num_pdfs, -1).clone(),
        )

    @property
    def num_gaussians(self) -> int:
        """The number of Gaussians of all pdfs together."""
        return len(self.owner)

    def log_likelihoods(self, x: Tensor) -> Tensor:
        """Log-densities of every pdf: x[T, D] -> [T, P]."""
        rows = torch.cat([x * x, x], dim=1)
        by_gaussian = torch.addmm(self._constant[:, None], self._matrix, rows.T)  # [G, T]
        by_pdf = [scores.logsumexp(0) for scores in by_gaussian.split(self._counts)]
        return torch.stack(by_pdf, dim=1)

    def accumulate(self, x: Tensor, pdfs: Tensor, into: Statistics) -> None:
        """Add the frames x[T, D], aligned to pdfs[T], to the statistics of the E step."""
        order = pdfs.argsort(stable=True)
        x = x[order]
        rows = torch.cat([x * x, x], dim=1)
        start = 0
        for pdf, count in enumerate(torch.bincount(pdfs, minlength=self.num_pdfs).tolist()):
            frames, start = slice(start, start + count), start + count
            if not count:
                continue
            mine = self._members[pdf]
            scores = torch.addmm(self._constant[mine], rows[frames], self._matrix[mine].T)
            likelihoods = scores.logsumexp(1, keepdim=True)
            posteriors = (scores - likelihoods).exp_()
            sums = posteriors.T @ rows[frames]
            into.occupancy[mine] += posteriors.sum(0, dtype=torch.float64)
            into.second[mine] += sums[:, : x.shape[1]]
            into.first[mine] += sums[:, x.shape[1] :]
            into.log_likelihood += float(likelihoods.sum(dtype=torch.float64))
        into.frames += len(x)

    def maximise(
        self, statistics: Statistics, min_occupancy: float, variance_floor: Tensor
    ) -> "Gmm":
        """The M step, as Kaldi's `MleDiagGmmUpdate`: starved Gaussians are removed.

        Args:
          statistics: of this model.
          min_occupancy: frames below which a Gaussian is removed, unless it is its pdf's heaviest
            (which then keeps its mean and variance).
          variance_floor: [D].
        """
        occupancy = statistics.occupancy
        heaviest = torch.zeros(self.num_gaussians, dtype=torch.bool)
        for mine in self._members:
            heaviest[mine.start + int(occupancy[mine].argmax())] = True
        fed = occupancy >= min_occupancy
        safe = occupancy.clamp(min=1e-10)[:, None]
        means = statistics.first / safe
        variances = (statistics.second / safe - means**2).float().maximum(variance_floor)
        means = torch.where(fed[:, None], means.float(), self.means)
        variances = torch.where(fed[:, None], variances, self.variances)
        keep = fed | heaviest
        weights = occupancy.clamp(min=1e-3)[keep]
        owner = self.owner[keep]
        totals = torch.zeros(self.num_pdfs, dtype=torch.float64).index_add_(0, owner, weights)
        return Gmm(owner, (weights / totals[owner]).float(), means[keep], variances[keep])

    def split(self, target: int, pdf_occupancy: Tensor, power: float = 0.25) -> "Gmm":
        """Grow to `target` Gaussians, shared among the pdfs by occupancy^power (Kaldi's mix-up).

        Each pdf splits its heaviest Gaussian in two, moved apart by a fifth of its standard
        deviation in random directions, until it has its share. The directions are the same in
        every call, unlike Kaldi's.
        """
        share = pdf_occupancy.clamp(min=1.0) ** power
        wanted = (target * share / share.sum()).floor().long().clamp(min=1)
        generator = torch.Generator().manual_seed(0)
        owner, weights, means, variances = [], [], [], []
        for pdf, mine in enumerate(self._members):
            w, m, v = (list(t[mine]) for t in (self.weights, self.means, self.variances))
            while len(w) < wanted[pdf]:
                i = max(range(len(w)), key=lambda j: w[j])
                step = 0.2 * v[i].sqrt() * torch.randn(v[i].shape, generator=generator)
                w[i] = w[i] / 2
                w.append(w[i].clone())
                m.append(m[i] - step)
                m[i] = m[i] + step
                v.append(v[i].clone())
            owner += [pdf] * len(w)
            weights, means, variances = weights + w, means + m, variances + v
        return Gmm(
            torch.tensor(owner), torch.stack(weights), torch.stack(means), torch.stack(variances)
        )

    def state(self) -> dict[str, Tensor]:
        """The tensors that `from_state` rebuilds the model from."""
        names = ("owner", "weights", "means", "variances")
        return {name: getattr(self, name).contiguous() for name in names}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "Gmm":
        """The model whose `state` this was."""
        return cls(state["owner"], state["weights"], state["means"], state["variances"])

    def __reduce__(self) -> tuple:
        """Pickle as numpy arrays: torch would pass tensors to workers by file descriptors."""
        return _unpickled, tuple(t.numpy() for t in self.state().values())

    def save(self, path: Path) -> None:
        """Write the model as safetensors."""
        write_atomically(path, save(self.state()))

    @classmethod
    def load(cls, path: Path) -> "Gmm":
        """Read a model that `save` wrote."""
        return cls.from_state(load_file(path))


def _unpickled(*arrays: np.ndarray) -> Gmm:
    return Gmm(*map(torch.from_numpy, arrays))
