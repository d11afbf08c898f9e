"""Kaldi's front ends (log-mel, MFCC, PLP, log-mel beside MFCC) by kaldifeat."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.errors import ToolkitError

DEFAULT_MEL_BINS = {"fbank": 64, "fbank_mfcc": 80, "mfcc": 23, "plp": 23}
LIFTER = 22  # Kaldi's


class FrontendError(ToolkitError):
    """The front end is not installed, or cannot compute the features of an utterance."""


def _mel(hertz: float) -> float:
    return 1127 * math.log(1 + hertz / 700)


@dataclass(frozen=True)
class FrontendConfig:
    """Settings of the front end; all others have Kaldi's defaults."""

    kind: str = "fbank"
    """`fbank` (natural-log mel energies, C5), `mfcc`, `plp` (C4), or `fbank_mfcc` (A1): natural-log
    mel magnitudes followed by the MFCC computed from them."""
    num_mel_bins: int | None = None
    """Mel filters; None: 64 for fbank (C5), 80 for fbank_mfcc (A1), 23 (Kaldi's default) for mfcc
    and plp."""
    num_ceps: int = 13
    """Coefficients of mfcc, plp and fbank_mfcc, C0 included (C4: 13, 39 with deltas; A1: 13)."""
    frame_length_ms: float = 25.0
    """Window in milliseconds (C5: 25, A1: 32)."""
    frame_shift_ms: float = 10.0
    """Step in milliseconds (C5, A1: 10)."""
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
        if not 0 < self.frame_shift_ms <= self.frame_length_ms <= 1000:
            raise ValueError("needs 0 < frame_shift_ms <= frame_length_ms <= 1000")
        if not 1000 <= self.sampling_rate <= 1_000_000:
            raise ValueError(f"sampling_rate is {self.sampling_rate}, needs 1,000 to 1,000,000 Hz")
        nyquist = self.sampling_rate / 2
        high = self.high_freq if self.high_freq > 0 else nyquist + self.high_freq
        if not 0 <= self.low_freq < high <= nyquist:
            raise ValueError(f"needs 0 <= low_freq < high_freq <= {nyquist:g} Hz")
        if self._has_empty_filter(high):
            raise ValueError(
                f"num_mel_bins is {self.mel_bins}, too many for windows of "
                f"{self.frame_length_ms:g} ms: a filter would contain no bin of the FFT"
            )

    def _has_empty_filter(self, high: float) -> bool:
        """Whether some mel filter contains no bin of the FFT, in which case kaldifeat aborts."""
        window = round(self.frame_length_ms * self.sampling_rate / 1000)
        points = 2 ** (window - 1).bit_length()  # of the FFT
        bins = [_mel(i * self.sampling_rate / points) for i in range(points // 2)]
        low, step = _mel(self.low_freq), (_mel(high) - _mel(self.low_freq)) / (self.mel_bins + 1)
        lefts = [low + i * step for i in range(self.mel_bins)]
        return any(bisect_right(bins, left) >= bisect_left(bins, left + 2 * step) for left in lefts)

    @property
    def mel_bins(self) -> int:
        """Number of mel filters, the default resolved."""
        return DEFAULT_MEL_BINS[self.kind] if self.num_mel_bins is None else self.num_mel_bins

    @property
    def dimension(self) -> int:
        """F, the number of values per frame."""
        if self.kind == "fbank_mfcc":
            return self.mel_bins + self.num_ceps
        return self.mel_bins if self.kind == "fbank" else self.num_ceps


PRESETS = {
    "fbank80-mfcc13": FrontendConfig("fbank_mfcc", frame_length_ms=32.0),
    "fbank80": FrontendConfig("fbank", num_mel_bins=80),
    "fbank40": FrontendConfig("fbank", num_mel_bins=40, frame_length_ms=10.0),
}
"""The benchmark's 93 values per frame (A1), and what it compares them with: 80 log-mel of 25 ms
windows and 40 of 10 ms windows (A2)."""


def cepstral_transform(mel_bins: int, num_ceps: int) -> Tensor:
    """Return the matrix of Kaldi's MFCC on log-mel values: DCT-II, orthonormal, then lifter.

    Returns:
      [mel_bins, num_ceps] float64.
    """
    filters = torch.arange(mel_bins, dtype=torch.float64) + 0.5
    orders = torch.arange(num_ceps, dtype=torch.float64)
    matrix = math.sqrt(2 / mel_bins) * torch.cos(math.pi / mel_bins * filters[:, None] * orders)
    matrix[:, 0] = math.sqrt(1 / mel_bins)
    return matrix * (1 + LIFTER / 2 * torch.sin(math.pi * orders / LIFTER))


class Frontend:
    """Computes the features of one `FrontendConfig`.

    As in Kaldi with `--snip-edges=false --dither=0 --use-energy=false`: T = round(S / step), so
    that frame t covers the same time in every kind, and alignments are valid for all of them.
    One difference: PLP of digital silence is not a number without dither, so such frames, and only
    these, get Kaldi's dither of one 16-bit step, from a fixed seed. In `fbank_mfcc` the spectrum's
    magnitude is taken as in A1, in all others its power as in Kaldi.
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
            "fbank_mfcc": kaldifeat.FbankOptions,
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
        if config.kind == "fbank_mfcc":
            options.use_power = False
            self._to_cepstra = cepstral_transform(config.mel_bins, config.num_ceps).float()
        elif config.kind != "fbank":
            options.num_ceps = config.num_ceps
        classes = {"mfcc": kaldifeat.Mfcc, "plp": kaldifeat.Plp}
        self._kaldifeat = classes.get(config.kind, kaldifeat.Fbank)(options)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute the features of one utterance.

        Args:
          samples: [S] float32 within [-1, 1] at the config's rate, scaled by 32768 as Kaldi's are;
            or int16, which are so scaled already and give the same bits.

        Returns:
          [T, F] float32, T = round(S / step).

        Raises:
          FrontendError: fewer samples than one window, or features that are not numbers.
        """
        window = round(self.config.frame_length_ms * self.config.sampling_rate / 1000)
        if samples.numel() < window:
            raise FrontendError(f"{samples.numel()} samples, fewer than one window of {window}")
        scaled = samples.float() if samples.dtype == torch.int16 else samples * 32768
        features = self._compute(scaled)
        if not math.isfinite(features.sum().item()):
            bad = ~torch.isfinite(features).all(dim=1)
            dither = torch.randn(len(scaled), generator=torch.Generator().manual_seed(0))
            features[bad] = self._compute(scaled + dither)[bad]
            if not torch.isfinite(features).all():
                raise FrontendError("the features are not finite numbers")
        return features

    def _compute(self, scaled: Tensor) -> Tensor:
        # As `self._kaldifeat(scaled)`, which copies the overlapping frames once more.
        frames = self._kaldifeat.convert_samples_to_frames(scaled)
        features = self._kaldifeat.compute(frames)
        if self.config.kind != "fbank_mfcc":
            return features
        return torch.cat([features, features @ self._to_cepstra], dim=1)
