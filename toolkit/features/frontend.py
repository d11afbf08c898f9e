"""Kaldi's front ends (log-mel, MFCC, PLP) by kaldifeat."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.errors import ToolkitError

DEFAULT_MEL_BINS = {"fbank": 64, "mfcc": 23, "plp": 23}


class FrontendError(ToolkitError):
    """The front end is not installed, or gave nothing usable for an utterance."""


@dataclass(frozen=True)
class FrontendConfig:
    """What is computed from the samples; everything else is Kaldi's default."""

    kind: str = "fbank"
    """`fbank` (natural-log mel energies, C5), `mfcc` or `plp` (C4)."""
    num_mel_bins: int | None = None
    """Mel filters; None: 64 for fbank (C5), 23 (Kaldi's default) for mfcc and plp."""
    num_ceps: int = 13
    """Coefficients of mfcc and plp, C0 included (C4: 13, 39 with deltas)."""
    frame_length_ms: float = 25.0
    """Window in milliseconds (C5: 25)."""
    frame_shift_ms: float = 10.0
    """Step in milliseconds (C5: 10)."""
    low_freq: float = 20.0
    """Lower edge of the first mel filter in Hz."""
    high_freq: float = 0.0
    """Upper edge of the last mel filter in Hz; zero or below counts from the Nyquist frequency."""
    sampling_rate: int = 16000
    """Rate in Hz at which the front end runs (C5: 16 kHz); audio is resampled to it."""

    def __post_init__(self) -> None:
        if self.kind not in DEFAULT_MEL_BINS:
            raise ValueError(f"kind is {self.kind!r}, not one of {sorted(DEFAULT_MEL_BINS)}")
        if self.mel_bins < 3:
            raise ValueError(f"num_mel_bins is {self.num_mel_bins}, needs to be 3 or more")
        most = 13 if self.kind == "plp" else self.mel_bins  # PLP: linear prediction of order 12
        if self.kind != "fbank" and not 1 <= self.num_ceps <= most:
            raise ValueError(f"num_ceps is {self.num_ceps}, needs to be 1 to {most}")
        if not 0 < self.frame_shift_ms <= self.frame_length_ms:
            raise ValueError("needs 0 < frame_shift_ms <= frame_length_ms")
        nyquist = self.sampling_rate / 2
        high = self.high_freq if self.high_freq > 0 else nyquist + self.high_freq
        if not 0 <= self.low_freq < high <= nyquist:
            raise ValueError(f"needs 0 <= low_freq < high_freq <= {nyquist:g} Hz")

    @property
    def mel_bins(self) -> int:
        """Number of mel filters, the default resolved."""
        return DEFAULT_MEL_BINS[self.kind] if self.num_mel_bins is None else self.num_mel_bins

    @property
    def dimension(self) -> int:
        """F, the number of values per frame."""
        return self.mel_bins if self.kind == "fbank" else self.num_ceps


class Frontend:
    """The computer of one `FrontendConfig`.

    As in Kaldi with `--snip-edges=false --dither=0 --use-energy=false`: T = round(S / step), so
    that frame t of every kind covers the same time and alignments carry over between kinds.
    One difference: PLP of digital silence is not a number without dither, so that such frames
    alone get Kaldi's dither of one 16-bit step, from a fixed seed.
    """

    def __init__(self, config: FrontendConfig) -> None:
        try:
            import kaldifeat
        except ImportError as error:
            raise FrontendError(
                f"kaldifeat cannot be imported ({error}); `make setup` builds it"
            ) from error
        self.config = config
        options = {
            "fbank": kaldifeat.FbankOptions,
            "mfcc": kaldifeat.MfccOptions,
            "plp": kaldifeat.PlpOptions,
        }[config.kind]()
        options.device = torch.device("cpu")
        options.frame_opts.samp_freq = float(config.sampling_rate)
        options.frame_opts.frame_length_ms = config.frame_length_ms
        options.frame_opts.frame_shift_ms = config.frame_shift_ms
        options.frame_opts.snip_edges = False
        options.frame_opts.dither = 0.0
        options.mel_opts.num_bins = config.mel_bins
        options.mel_opts.low_freq = config.low_freq
        options.mel_opts.high_freq = config.high_freq
        options.use_energy = False
        if config.kind != "fbank":
            options.num_ceps = config.num_ceps
        computers = {"fbank": kaldifeat.Fbank, "mfcc": kaldifeat.Mfcc, "plp": kaldifeat.Plp}
        self._compute = computers[config.kind](options)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute the features of one utterance.

        Args:
          samples: [S] float32 within [-1, 1] at the config's rate; scaled by 32768 as Kaldi's are.

        Returns:
          [T, F] float32, T = round(S / step).

        Raises:
          FrontendError: fewer samples than one window, or features that are not numbers.
        """
        window = round(self.config.frame_length_ms * self.config.sampling_rate / 1000)
        if samples.numel() < window:
            raise FrontendError(f"{samples.numel()} samples, fewer than one window of {window}")
        scaled = samples * 32768
        features = self._compute(scaled)
        if not math.isfinite(features.sum().item()):
            bad = ~torch.isfinite(features).all(dim=1)
            dither = torch.randn(len(scaled), generator=torch.Generator().manual_seed(0))
            features[bad] = self._compute(scaled + dither)[bad]
            if not torch.isfinite(features).all():
                raise FrontendError("features that are not finite numbers")
        return features
