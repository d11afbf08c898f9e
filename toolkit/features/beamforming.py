"""Several microphones to one channel (C1): MVDR by torchaudio, delay and sum as its reference."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError

METHODS = ("mvdr", "delay-and-sum", "none")


class BeamformingError(ToolkitError):
    """What beamforming needs is missing."""


@dataclass(frozen=True)
class BeamformingConfig:
    """How the microphones of an utterance become one channel."""

    method: str = "mvdr"
    """`mvdr`, `delay-and-sum`, or `none`: the first microphone."""
    window: int = 512
    """Samples per frame of the spectra (512: 32 ms at 16 kHz)."""
    shift: int = 128
    """Samples from frame to frame."""
    quiet_share: float = 0.25
    """Share of the frames, at each frequency the quietest, that are taken for noise alone: every
    utterance has pauses, before and after it at least."""
    oversubtraction: float = 2.0
    """Factor on that noise before it is compared with a frame: higher asks for more before a frame
    counts as speech."""
    loading: float = 1e-3
    """Added to the diagonal of the noise's covariance, relative to its mean: for a white noise gain
    that microphones stand."""

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
    """Find the weights of an utterance's beam.

    Args:
      microphones: [M, S] float, echo removed.

    Returns:
      [F, M] complex, to be conjugated in the sum over microphones (as torchaudio has them); the
      first microphone is the one whose speech the beam leaves as it is.

    Raises:
      BeamformingError: MVDR is asked for and torchaudio is missing.
    """
    spectra = spectra_of(microphones / _loudness(microphones), config)
    if config.method == "none" or len(microphones) == 1:
        weights = torch.zeros(spectra.shape[1], len(microphones), dtype=spectra.dtype)
        weights[:, 0] = 1.0
        return weights
    mask = speech_mask(spectra, config)
    if config.method == "delay-and-sum":
        return delay_and_sum_weights(spectra, mask)
    return mvdr_weights(spectra, mask, config.loading)


def _loudness(microphones: Tensor) -> Tensor:
    """Give the root of the mean power: torchaudio adds constants that mind the scale."""
    return microphones.square().mean().sqrt().clamp_min(1e-9)


def apply_weights(microphones: Tensor, weights: Tensor, config: BeamformingConfig) -> Tensor:
    """Sum microphones [M, S] or a part of what they hear with weights [F, M]: [S] float32."""
    spectra = spectra_of(microphones, config)
    beam = torch.einsum("fm,mft->ft", weights.conj(), spectra)
    window = torch.hann_window(config.window, dtype=torch.float64)
    samples = torch.istft(
        beam, config.window, config.shift, window=window, length=microphones.shape[1]
    )
    return samples.float()


def spectra_of(microphones: Tensor, config: BeamformingConfig) -> Tensor:
    """Give short-time spectra [M, F, T] complex128 of [M, S]."""
    window = torch.hann_window(config.window, dtype=torch.float64)
    return torch.stft(
        microphones.double(), config.window, config.shift, window=window, return_complex=True
    )


def speech_mask(spectra: Tensor, config: BeamformingConfig) -> Tensor:
    """Guess the share of speech in each bin, from 0 to 1: [F, T] for spectra [M, F, T].

    The noise at a frequency is the mean power of its quietest frames; what a bin, smoothed over
    three frames, has beyond it counts as speech.
    """
    power = spectra.abs().square().mean(dim=0)
    smooth = torch.nn.functional.avg_pool1d(power, 3, stride=1, padding=1, count_include_pad=False)
    quiet = max(1, int(config.quiet_share * power.shape[1]))
    noise = smooth.sort(dim=1).values[:, :quiet].mean(dim=1, keepdim=True)
    return (1 - config.oversubtraction * noise / smooth.clamp_min(1e-20)).clamp(0.0, 1.0)


def mvdr_weights(spectra: Tensor, mask: Tensor, loading: float) -> Tensor:
    """Minimise the noise and leave the first microphone's speech as it is (Souden et al., 2010).

    Args:
      spectra: [M, F, T] complex.
      mask: [F, T], share of speech; the rest is noise.
      loading: see `BeamformingConfig`.

    Returns:
      [F, M] complex.
    """
    try:
        from torchaudio import functional
    except ImportError as error:
        raise BeamformingError(
            "MVDR needs torchaudio: pip install torchaudio, or choose delay-and-sum"
        ) from error
    speech = functional.psd(spectra, mask)
    noise = functional.psd(spectra, 1 - mask)
    return functional.mvdr_weights_souden(speech, noise, 0, diag_eps=loading)


def delay_and_sum_weights(spectra: Tensor, mask: Tensor) -> Tensor:
    """Undo the delays of the speech to the first microphone, and average.

    A delay is where the cross correlation of the whitened speech (GCC-PHAT) is highest, to an
    eighth of a sample.

    Args:
      spectra: [M, F, T] complex.
      mask: [F, T], share of speech.

    Returns:
      [F, M] complex.
    """
    finer = 8
    cross = (mask * spectra * spectra[:1].conj()).sum(dim=2)  # [M, F]
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
