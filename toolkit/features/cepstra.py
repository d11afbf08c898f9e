"""Cepstra of mel energies in torch alone, as Kaldi computes them: MFCC by a DCT, and PLP."""

import math

import torch
from torch import Tensor, nn

from toolkit.features.filterbank import hertz

LIFTER = 22  # this and the following are Kaldi's
LPC_ORDER = 12
COMPRESSION = 0.33333
SMALLEST_GAIN = 1e-5


def lifter(num_ceps: int) -> Tensor:
    """Return the factors of the cepstral coefficients: [num_ceps] float64."""
    orders = torch.arange(num_ceps, dtype=torch.float64)
    return 1 + LIFTER / 2 * torch.sin(math.pi * orders / LIFTER)


def cepstral_transform(mel_bins: int, num_ceps: int) -> Tensor:
    """Return the matrix of Kaldi's MFCC on log-mel values: DCT-II, orthonormal, then lifter.

    Returns:
      [mel_bins, num_ceps] float64.
    """
    filters = torch.arange(mel_bins, dtype=torch.float64) + 0.5
    orders = torch.arange(num_ceps, dtype=torch.float64)
    matrix = math.sqrt(2 / mel_bins) * torch.cos(math.pi / mel_bins * filters[:, None] * orders)
    matrix[:, 0] = math.sqrt(1 / mel_bins)
    return matrix * lifter(num_ceps)


class CepstralTransform(nn.Module):
    """MFCC of log-mel values: `cepstral_transform` in float32.

    Args:
      mel_bins: M, the number of filters.
      num_ceps: coefficients to compute, C0 included.
    """

    def __init__(self, mel_bins: int, num_ceps: int) -> None:
        super().__init__()
        self.register_buffer("_matrix", cepstral_transform(mel_bins, num_ceps).float())

    def forward(self, log_mel: Tensor) -> Tensor:
        """Transform log-mel values [T, M]; return [T, num_ceps]."""
        return log_mel @ self._matrix


class PerceptualLinearPrediction(nn.Module):
    """PLP of mel energies (Hermansky 1990): loudness, its autocorrelation, prediction, cepstrum.

    From the autocorrelation on in float64: where a spectrum has a high peak, the recursion
    amplifies roundings. C0 is the logarithm of the residual, at least 2^-23 as in kaldifeat.
    Frames without energy are not numbers.

    Args:
      points: [M + 2] of `toolkit.features.filterbank.mel_points`.
      num_ceps: coefficients to compute, C0 included; at most 13.
    """

    def __init__(self, points: Tensor, num_ceps: int) -> None:
        super().__init__()
        square = hertz(points[1:-1]) ** 2  # of Hz
        loudness = (square / (square + 1.6e5)) ** 2 * (square + 1.44e6) / (square + 9.61e6)
        self.register_buffer("_loudness", loudness.float())
        # The inverse DFT of a spectrum [M + 2] and its mirror image: [order + 1, M + 2].
        steps = len(points) - 1
        angles = torch.arange(LPC_ORDER + 1)[:, None] * torch.arange(steps + 1).double()
        cosines = torch.cos(math.pi / steps * angles) / steps
        cosines[:, [0, -1]] /= 2
        self.register_buffer("_cosines", cosines)
        self.register_buffer("_lifter", lifter(num_ceps))

    def forward(self, energies: Tensor) -> Tensor:
        """Transform mel energies [T, M] float32; return [T, num_ceps] float32."""
        loudness = (energies * self._loudness).pow_(COMPRESSION).double()
        spectrum = torch.cat([loudness[:, :1], loudness, loudness[:, -1:]], dim=1)
        predictor, residual = durbin(self._cosines @ spectrum.T)
        c0 = residual.log().clamp(min=torch.finfo(torch.float32).eps)
        cepstra = torch.cat([c0[None], cepstrum(predictor)])[: len(self._lifter)]
        return (cepstra.T * self._lifter).float()


def durbin(autocorrelation: Tensor) -> tuple[Tensor, Tensor]:
    """Find the linear predictors of frames by the Levinson-Durbin recursion.

    Args:
      autocorrelation: [P + 1, T].

    Returns:
      `a` [P, T] of the inverse filter 1 + a_1 z^-1 + ..., and the energy [T] of what it leaves. As
      in Kaldi an order lowers that by a factor of 1e-5 at most.
    """
    order = len(autocorrelation) - 1
    predictor = torch.empty_like(autocorrelation[1:])
    energy = autocorrelation[0]
    for i in range(order):
        known = predictor[:i]
        later = autocorrelation[1 : i + 1].flip(0)
        reflection = (autocorrelation[i + 1] + (known * later).sum(dim=0)) / energy
        energy = energy * (1 - reflection.square()).clamp(min=SMALLEST_GAIN)
        predictor[:i] = known - reflection * known.flip(0)
        predictor[i] = -reflection
    return predictor, energy


def cepstrum(predictor: Tensor) -> Tensor:
    """Return the cepstral coefficients 1 to P [P, T] of the filters 1 / (1 + a_1 z^-1 + ...).

    Args:
      predictor: a, [P, T].
    """
    cepstra = torch.empty_like(predictor)
    for n in range(len(predictor)):
        weights = torch.arange(n, 0, -1, dtype=predictor.dtype, device=predictor.device) / (n + 1)
        products = predictor[:n] * cepstra[:n].flip(0) * weights[:, None]
        cepstra[n] = -predictor[n] - products.sum(dim=0)
    return cepstra
