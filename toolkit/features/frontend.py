"""Kaldi's front ends (log-mel, MFCC, PLP, log-mel beside MFCC), by kaldifeat or by torch."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.features.cepstra import CepstralTransform, PerceptualLinearPrediction
from toolkit.features.engine import usable_engine
from toolkit.features.filterbank import FilterBank, FlooredLog, mel_filters, mel_points
from toolkit.features.silence import PLP_MARK
from toolkit.processes.devices import to_device

if TYPE_CHECKING:
    import kaldifeat

SMALLEST_STEP = 1e-3
"""Of a 16-bit step: where no two neighbouring samples differ by more there is digital silence."""
DEFAULT_MEL_BINS = {"fbank": 64, "fbank_mfcc": 80, "mfcc": 23, "plp": 23}


class FrontendError(ToolkitError):
    """The front end cannot compute the features of an utterance."""


class TooShortError(FrontendError):
    """The audio of an utterance is shorter than one window."""


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
        if not 0 <= self.low_freq < self.upper_edge <= nyquist:
            raise ValueError(f"needs 0 <= low_freq < high_freq <= {nyquist:g} Hz")
        if self._has_empty_filter(self.upper_edge):
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
    def upper_edge(self) -> float:
        """Upper edge of the last mel filter in Hz, counted from 0."""
        return self.high_freq if self.high_freq > 0 else self.sampling_rate / 2 + self.high_freq

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


class Frontend:
    """Computes the features of one `FrontendConfig`.

    As in Kaldi with `--snip-edges=false --dither=0 --use-energy=false`: T = round(S / step), so
    that frame t covers the same time in every kind, and alignments are valid for all of them.
    One difference: PLP of digital silence is not a number without dither, so such frames, and only
    these, get Kaldi's dither of one 16-bit step, from a fixed seed, and a C0 of -2^-10, just below
    what other frames can have, by which `toolkit.features.silence` knows them. In `fbank_mfcc` the
    spectrum's magnitude is taken as in A1, in all others its power as in Kaldi.

    Args:
      config: the settings.
      engine: "kaldifeat", or "torch": the same in torch's operations, on the device of the
        samples. None: as `toolkit.engines.frontend_engine` says. They differ by rounding.
      device: where the samples will be; kaldifeat needs to know.
    """

    def __init__(
        self, config: FrontendConfig, engine: str | None = None, device: str = "cpu"
    ) -> None:
        self.config = config
        self.engine = engine or usable_engine()
        self._device = torch.device(device)
        if self.engine == "kaldifeat":
            self._base = _by_kaldifeat(config, self._device)
        else:
            self._base = _by_torch(config)
        if config.kind == "fbank_mfcc":
            self._cepstra = CepstralTransform(config.mel_bins, config.num_ceps)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute the features of one utterance.

        Args:
          samples: [S] float32 within [-1, 1] at the config's rate, scaled by 32768 as Kaldi's are;
            or int16, which are so scaled already and give the same bits. On any device.

        Returns:
          [T, F] float32 on the device of the samples, T = round(S / step).

        Raises:
          TooShortError: fewer samples than one window.
          FrontendError: features that are not numbers.
        """
        self._check_length(samples)
        scaled = _scaled(samples)
        features = self._compute(scaled)
        if self._may_be_silent(features):
            silent = self._silent(scaled, len(features))
            if silent.any():
                dither = torch.randn(len(scaled), generator=torch.Generator().manual_seed(0))
                features[silent] = self._compute(scaled + dither.to(scaled.device))[silent]
                features[silent, 0] = PLP_MARK
        if not math.isfinite(features.sum().item()):
            raise FrontendError("the features are not finite numbers")
        return features

    def _may_be_silent(self, features: Tensor) -> bool:
        """Whether some frame of PLP may be digital silence: C0 is at its floor or no number."""
        if self.config.kind != "plp":
            return False
        return not bool((features[:, 0] > torch.finfo(torch.float32).eps).all())

    def _silent(self, scaled: Tensor, num_frames: int) -> Tensor:
        """Return the frames whose windows hold a constant voltage alone: samples [S] to [T]."""
        config = self.config
        step = int(config.frame_shift_ms * config.sampling_rate / 1000)
        window = int(config.frame_length_ms * config.sampling_rate / 1000)
        changes = ~(scaled.diff().abs() <= SMALLEST_STEP)  # samples that are no numbers change
        # Up to sample i there are num_changes[i].
        num_changes = torch.nn.functional.pad(changes.cumsum(0), (1, 0))
        # What is mirrored beyond the ends lies within the window, too.
        begin = torch.arange(num_frames, device=scaled.device) * step - (window - step) // 2
        last = (begin + window - 1).clamp(max=len(scaled) - 1)
        return num_changes[last] == num_changes[begin.clamp(min=0)]

    def batch(self, utterances: Sequence[Tensor]) -> list[Tensor | FrontendError]:
        """Compute the features of several utterances together, on the device of this front end.

        Args:
          utterances: [S] each on the CPU, see `__call__`.

        Returns:
          For each [T, F] float32 on the CPU, or the error that `__call__` would raise.
        """
        found: list[Tensor | FrontendError | None] = [None] * len(utterances)
        for row, samples in enumerate(utterances):
            try:
                self._check_length(samples)
            except FrontendError as error:
                found[row] = error
        rows = [row for row, result in enumerate(found) if result is None]
        if not rows:
            return found
        step = int(self.config.frame_shift_ms * self.config.sampling_rate / 1000)
        sizes = [len(utterances[row]) for row in rows]
        samples = to_device(torch.cat([utterances[row] for row in rows]), self._device)
        features = self._compute(*_scaled(samples).split(sizes)).cpu()
        parts = features.split([(size + step // 2) // step for size in sizes])
        for row, part in zip(rows, parts, strict=True):
            whole = math.isfinite(part.sum().item()) and not self._may_be_silent(part)
            found[row] = part if whole else self._alone(utterances[row])
        return found

    def _alone(self, samples: Tensor) -> Tensor | FrontendError:
        try:
            return self(samples.to(self._device)).cpu()
        except FrontendError as error:
            return error

    def _check_length(self, samples: Tensor) -> None:
        window = round(self.config.frame_length_ms * self.config.sampling_rate / 1000)
        if samples.numel() < window:
            raise TooShortError(f"{samples.numel()} samples, fewer than one window of {window}")

    def _compute(self, *scaled: Tensor) -> Tensor:
        """Features of utterances [S] each, the frames one after the other: [T, F]."""
        features = self._base(*scaled).contiguous()  # torch's cepstra come column by column
        if self.config.kind != "fbank_mfcc":
            return features
        return torch.cat([features, self._cepstra.to(features.device)(features)], dim=1)


def _scaled(samples: Tensor) -> Tensor:
    """Samples as Kaldi's: from -32768 to 32767."""
    return samples.float() if samples.dtype == torch.int16 else samples * 32768


def kaldifeat_computer(
    config: FrontendConfig, device: torch.device | str = "cpu"
) -> "kaldifeat.OfflineFeature":
    """Return kaldifeat's object for a config; `fbank_mfcc` without its cepstra."""
    import kaldifeat

    options = {
        "fbank": kaldifeat.FbankOptions,
        "fbank_mfcc": kaldifeat.FbankOptions,
        "mfcc": kaldifeat.MfccOptions,
        "plp": kaldifeat.PlpOptions,
    }[config.kind]()
    options.device = torch.device(device)
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
    elif config.kind != "fbank":
        options.num_ceps = config.num_ceps
    classes = {"mfcc": kaldifeat.Mfcc, "plp": kaldifeat.Plp}
    return classes.get(config.kind, kaldifeat.Fbank)(options)


def _by_kaldifeat(config: FrontendConfig, device: torch.device) -> Callable[..., Tensor]:
    kaldi = kaldifeat_computer(config, device)

    def compute(*utterances: Tensor) -> Tensor:
        # As `kaldi(samples)`, which copies the overlapping frames once more.
        first, *others = map(kaldi.convert_samples_to_frames, utterances)
        return kaldi.compute(torch.cat([first, *others]) if others else first)

    return compute


def _by_torch(config: FrontendConfig) -> Callable[..., Tensor]:
    # Kaldi rounds down.
    window = int(config.frame_length_ms * config.sampling_rate / 1000)
    step = int(config.frame_shift_ms * config.sampling_rate / 1000)
    points = mel_points(config.mel_bins, config.low_freq, config.upper_edge)
    filters = mel_filters(points, 2 ** (window - 1).bit_length(), config.sampling_rate)
    bank = FilterBank(filters, window, step, power=config.kind != "fbank_mfcc")
    if config.kind == "plp":
        rest = nn.Sequential(PerceptualLinearPrediction(points, config.num_ceps))
    elif config.kind == "mfcc":
        cepstra = CepstralTransform(config.mel_bins, config.num_ceps)
        rest = nn.Sequential(FlooredLog(), cepstra)
    else:
        rest = nn.Sequential(FlooredLog())

    def compute(*utterances: Tensor) -> Tensor:
        device = utterances[0].device
        return rest.to(device)(bank.to(device)(*utterances))

    return compute
