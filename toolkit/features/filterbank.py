"""Mel energies of overlapping windows in torch alone, as Kaldi computes them."""

import math

import torch
from torch import Tensor, nn

PREEMPHASIS = 0.97  # Kaldi's
BLOCK = 256
"""Frames computed at a time on a CPU: what lies between samples and energies stays in its cache."""


def mel(hertz: Tensor) -> Tensor:
    """Return frequencies in Hz on Kaldi's mel scale, rounded as Kaldi's: [...] float32.

    The logarithm is correctly rounded (as the C library's, but not torch's own, is): at 2,840 mel
    the last bit is worth 2.4e-4 mel, and narrow filters show it in their energies.
    """
    return 1127 * (1 + hertz.float() / 700).double().log().float()


def hertz(mels: Tensor) -> Tensor:
    """Return points of the mel scale in Hz: [...] float64."""
    return 700 * ((mels.double() / 1127).exp() - 1)


def mel_points(num_bins: int, low: float, high: float) -> Tensor:
    """Return where the filters begin, peak and end in mel: [M + 2] float32.

    Filter m rises from point m to point m + 1, where the next begins, and falls to point m + 2.

    Args:
      num_bins: M, the number of filters.
      low: lower edge of the first in Hz.
      high: upper edge of the last in Hz.
    """
    first, last = mel(torch.tensor([low, high]))
    return first + torch.arange(num_bins + 2) * ((last - first) / (num_bins + 1))


def mel_filters(points: Tensor, size: int, rate: float) -> Tensor:
    """Return Kaldi's mel filters, triangles on the mel scale whose peaks are 1.

    Args:
      points: [M + 2] of `mel_points`.
      size: N, of the FFT.
      rate: sampling rate in Hz.

    Returns:
      [N / 2, M] float32; as in Kaldi the bin of the Nyquist frequency is left out.
    """
    left, peak, right = points[:-2], points[1:-1], points[2:]
    bins = mel(torch.arange(size // 2) * (rate / size))[:, None]
    rising, falling = (bins - left) / (peak - left), (right - bins) / (right - peak)
    return torch.minimum(rising, falling).clamp(min=0)


class FilterBank(nn.Module):
    """Mel energies of frames, in Kaldi's order of operations.

    Of each frame the mean is subtracted, then 0.97 of the sample before; Povey's window and zeros
    up to a power of two follow. The order matters beyond the last bit: where a narrow filter holds
    a thousandth of the amplitude, one rounding of a sample is seen in its logarithm (noise, 80
    filters: 8e-4 with one rounding fewer in the pre-emphasis, 2e-5 without). Frames lie as with
    `--snip-edges=false`: the signal is mirrored at both ends.

    Args:
      filters: [N / 2, M] of `mel_filters`, N a power of two.
      window: W, the window's length in samples, W <= N.
      step: samples from frame to frame.
      power: whether to sum the power of the spectrum, or its magnitude.
    """

    def __init__(self, filters: Tensor, window: int, step: int, power: bool = True) -> None:
        super().__init__()
        self._step, self._power = step, power
        angles = 2 * math.pi / (window - 1) * torch.arange(window, dtype=torch.float64)
        self.register_buffer("_window", (0.5 - 0.5 * angles.cos()).pow(0.85).float())
        self.register_buffer("_filters", filters)

    def forward(self, *utterances: Tensor) -> Tensor:
        """Compute the energies of one utterance or several.

        Args:
          utterances: [S] float32 each, S >= W, on the module's device.

        Returns:
          [T, M] float32, the utterances' frames one after the other; each has round(S / step).
        """
        first, *others = (self._frames(samples) for samples in utterances)
        frames = torch.cat([first, *others]) if others else first
        if frames.device.type != "cpu":
            return self._energies(frames)
        return torch.cat([self._energies(block) for block in frames.split(BLOCK)])

    def _frames(self, samples: Tensor) -> Tensor:
        """Return the overlapping windows [T, W], which share their memory."""
        size = len(self._window)
        count = (len(samples) + self._step // 2) // self._step
        left = (size - self._step) // 2
        right = max(0, (count - 1) * self._step + size - left - len(samples))
        mirrored = [samples[:left].flip(0), samples, samples[len(samples) - right :].flip(0)]
        return torch.cat(mirrored).as_strided((count, size), (self._step, 1))

    def _energies(self, frames: Tensor) -> Tensor:
        padded = frames.new_zeros(len(frames), 2 * len(self._filters))
        windowed = padded[:, : frames.shape[1]]
        centred = frames - frames.mean(dim=1, keepdim=True)
        # Not `torch.sub(..., alpha=PREEMPHASIS)`: that rounds once where Kaldi rounds twice.
        torch.sub(centred[:, 1:], PREEMPHASIS * centred[:, :-1], out=windowed[:, 1:])
        torch.mul(centred[:, 0], 1 - PREEMPHASIS, out=windowed[:, 0])
        windowed *= self._window
        spectrum = torch.fft.rfft(padded)[:, :-1].abs()
        return (spectrum.square_() if self._power else spectrum) @ self._filters


class FlooredLog(nn.Module):
    """Natural logarithms of energies; Kaldi's floor, 2^-23, stands for nothing."""

    def forward(self, energies: Tensor) -> Tensor:
        """Return the logarithms in the place of `energies`."""
        return energies.clamp_(min=torch.finfo(torch.float32).eps).log_()
