"""Beamforming to one channel (C1): MVDR, and delay and sum as its reference."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MIN_SPEECH = 0.01
"""Lowest value of the speech mask, so that a direction is found at all frequencies."""
SMALLEST_LOADING = 1e-8
"""Added where nothing but zeros was recorded."""
METHODS = ("mvdr", "delay-and-sum", "none")


@dataclass(frozen=True)
class BeamformingConfig:
    """How the microphones of an utterance become one channel."""

    method: str = "mvdr"
    """`mvdr`, `delay-and-sum`, or `none`: the first microphone."""
    window: int = 512
    """Samples per frame of the spectra (512: 32 ms at 16 kHz)."""
    shift: int = 128
    """Samples from frame to frame."""
    quiet_share: float = 0.15
    """Share of the frames, the quietest, that are taken as noise only: every utterance has pauses,
    at least before and after it."""
    oversubtraction: float = 8.0
    """Factor on that noise before it is subtracted from a frame's power; the rest is speech."""
    loading: float = 1e-3
    """Diagonal loading of the noise's covariance, relative to its trace: it limits the
    amplification of the microphones' own noise."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}: one of {', '.join(METHODS)}")
        if self.window < 16 or not 0 < self.shift <= self.window // 2:
            raise ValueError("window must be at least 16, shift at most half of it")
        if not 0 < self.quiet_share < 1:
            raise ValueError("quiet_share must be between 0 and 1")
        if self.oversubtraction <= 0 or self.loading < 0:
            raise ValueError("oversubtraction must be positive, loading not negative")


def beamform_weights(microphones: Tensor, config: BeamformingConfig) -> Tensor:
    """Estimate the beamforming weights of an utterance.

    Args:
      microphones: [M, S] float, echo removed.

    Returns:
      [F, M] complex, to be conjugated in the sum over microphones; the first microphone is the
      one whose speech the beam leaves as it is.
    """
    spectra = stft(microphones / _rms(microphones), config)
    if config.method == "none" or len(microphones) == 1:
        weights = torch.zeros(spectra.shape[1], len(microphones), dtype=spectra.dtype)
        weights[:, 0] = 1.0
        return weights
    speech, noise = masks(spectra, config)
    if config.method == "delay-and-sum":
        return delay_and_sum_weights(spectra, speech)
    return mvdr_weights(spectra, speech, noise, config.loading)


def _rms(microphones: Tensor) -> Tensor:
    """Return the root mean square: `SMALLEST_LOADING` supposes a certain scale."""
    return microphones.square().mean().sqrt().clamp_min(1e-9)


def apply_weights(microphones: Tensor, weights: Tensor, config: BeamformingConfig) -> Tensor:
    """Apply weights [F, M] to microphones [M, S], or to a component of them: [S] float32."""
    spectra = stft(microphones, config)
    beam = torch.einsum("fm,mft->ft", weights.conj(), spectra)
    window = torch.hann_window(config.window, dtype=torch.float64)
    samples = torch.istft(
        beam, config.window, config.shift, window=window, length=microphones.shape[1]
    )
    return samples.float()


def stft(microphones: Tensor, config: BeamformingConfig) -> Tensor:
    """Return the short-time Fourier transform of [M, S]: [M, F, T] complex128."""
    window = torch.hann_window(config.window, dtype=torch.float64)
    return torch.stft(
        microphones.double(), config.window, config.shift, window=window, return_complex=True
    )


def masks(spectra: Tensor, config: BeamformingConfig) -> tuple[Tensor, Tensor]:
    """Estimate which bins hold speech, and which frames contain only noise.

    The quietest frames, by the mean of their log power from a sixteenth to half of the band, are
    noise. Power of a bin above the mean power of those frames at its frequency is speech.

    Args:
      spectra: [M, F, T] complex.

    Returns:
      Share of speech in each bin, [F, T] from `MIN_SPEECH` to 1, and 1 for frames of noise and 0
      for others, [F, T].
    """
    power = spectra.abs().square().mean(dim=0)
    bins, frames = power.shape
    loudness = power[bins // 16 : bins // 2].clamp_min(1e-12).log().mean(dim=0)
    quiet = loudness.argsort()[: max(1, int(config.quiet_share * frames))]
    floor = config.oversubtraction * power[:, quiet].mean(dim=1, keepdim=True)
    speech = (1 - floor / power.clamp_min(1e-20)).clamp(MIN_SPEECH, 1.0)
    noise = torch.zeros_like(power)
    noise[:, quiet] = 1.0
    return speech, noise


def mvdr_weights(spectra: Tensor, speech: Tensor, noise: Tensor, loading: float) -> Tensor:
    """Minimise the noise and leave the first microphone's speech as it is.

    The speech's transfer to the microphones, relative to the first, is the principal eigenvector
    of its covariance: a covariance of rank one, or frequencies of many paths would be attenuated.
    These are the weights of torchaudio's `mvdr_weights_rtf` for the transfer of its `rtf_evd`.

    Args:
      spectra: [M, F, T] complex.
      speech, noise: [F, T], see `masks`.
      loading: see `BeamformingConfig`.

    Returns:
      [F, M] complex.
    """
    transfer = torch.linalg.eigh(_covariance(spectra, speech)).eigenvectors[..., -1]  # [F, M]
    covariance = _covariance(spectra, noise)
    power = covariance.diagonal(dim1=-2, dim2=-1).real.sum(dim=-1)  # [F]
    loads = loading * power + SMALLEST_LOADING
    covariance += loads[:, None, None] * torch.eye(len(spectra), dtype=covariance.dtype)
    whitened = torch.linalg.solve(covariance, transfer[..., None]).squeeze(-1)
    response = (transfer.conj() * whitened).sum(dim=-1).real + SMALLEST_LOADING
    return whitened / response[:, None] * transfer[:, :1].conj()


def _covariance(spectra: Tensor, weights: Tensor) -> Tensor:
    """Return the covariance of the microphones over weighted frames: [F, M, M] complex.

    Args:
      spectra: [M, F, T] complex.
      weights: [F, T], of any sum.
    """
    channels = spectra.transpose(0, 1)  # [F, M, T]
    shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-10)
    return channels * shares[:, None] @ channels.conj().transpose(1, 2)


def delay_and_sum_weights(spectra: Tensor, speech: Tensor) -> Tensor:
    """Undo the delays of the speech to the first microphone, and average.

    A delay is where the cross correlation of the whitened speech (GCC-PHAT) is highest, to an
    eighth of a sample.

    Args:
      spectra: [M, F, T] complex.
      speech: [F, T], share of speech.

    Returns:
      [F, M] complex.
    """
    finer = 8
    cross = (speech * spectra * spectra[:1].conj()).sum(dim=2)  # [M, F]
    bins = cross.shape[1]
    length = finer * 2 * (bins - 1)
    correlation = torch.fft.irfft(cross / cross.abs().clamp_min(1e-20), length)
    longest = finer * 16
    lags = torch.cat([torch.arange(longest + 1), torch.arange(-longest, 0)])
    near = torch.cat([correlation[:, : longest + 1], correlation[:, -longest:]], dim=1)
    delays = lags[near.argmax(dim=1)] / finer  # samples
    turns = torch.arange(bins)[:, None] / (2 * (bins - 1)) * delays
    phase = -2 * np.pi * turns
    return torch.polar(torch.full_like(phase, 1 / len(spectra)), phase).to(spectra.dtype)
