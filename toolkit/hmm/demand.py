"""Scores of Gaussian mixtures that are computed where a search asks for them.

A forced alignment reads a tenth of the scores of its utterance: those of the states that its beam
reaches in a frame. Matrix products of all of them took it four fifths of its time.
"""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from toolkit.hmm.gmm import Gmm, GmmError
from toolkit.hmm.gmm_kernels import MixtureArrays


@dataclass(frozen=True)
class DemandedScores:
    """The scores [T, L] of T frames, for searches that read a few of them.

    It has the length, the shape and the product by a number of the tensor that it stands for.

    Raises:
      GmmError: frames and mixtures have different dimensions, or there is no such pdf: compiled
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
                f"frames of {self.frames.shape[1]} values for Gaussian mixtures of"
                f" {self.gmm.means.shape[1]} dimensions: front end and mixtures come from"
                " different systems; restore the model or train it again"
            )
        if len(self.pdfs) and not 0 <= int(self.pdfs.min()) <= int(self.pdfs.max()) < (
            self.gmm.num_pdfs
        ):
            raise GmmError(
                f"pdf {int(self.pdfs.max())} of {self.gmm.num_pdfs}: senones and mixtures come"
                " from different systems; restore the model or train it again"
            )

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def shape(self) -> tuple[int, int]:
        """T and L."""
        return len(self.frames), len(self.pdfs)

    def __mul__(self, scale: float) -> "DemandedScores":
        return replace(self, scale=self.scale * scale)

    def dense(self) -> Tensor:
        """Compute all of them: [T, L]."""
        return self.gmm.log_likelihoods(self.frames, self.pdfs) * self.scale

    def arrays(self) -> MixtureArrays:
        """Return what kernels compute them from; nothing of the mixtures is copied."""
        products = self.gmm.products(self.pdfs)
        rows = np.concatenate([self.frames.numpy() ** 2, self.frames.numpy()], axis=1)
        return MixtureArrays(
            rows, *(part.numpy() for part in products), scale=np.float32(self.scale)
        )
