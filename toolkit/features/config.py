"""Settings of features: front ends, extraction, augmentation, microphone arrays."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from toolkit.config.fields import (
    NonNegative,
    Positive,
    PositiveShare,
    ProperShare,
    Range,
    Settings,
    Share,
    ShareBelowOne,
)

Scope = Literal["causal", "whole", "global"]
"""The frames that a frame's normalisation is computed from. `causal`: those up to this frame;
`whole`: all of its file and of earlier files; `global`: only the training data, for features
already adapted to the speaker."""
LOW_RATE_FACTOR = 3
"""Frames of 10 ms per low-rate frame, and number of offsets (C5)."""
DEFAULT_MEL_BINS = {"fbank": 64, "fbank_mfcc": 80, "mfcc": 23, "plp": 23}


def _mel(hertz: float) -> float:
    """Convert a frequency in Hz to Kaldi's mel scale."""
    return 1127 * math.log(1 + hertz / 700)


@dataclass(frozen=True)
class FrontendConfig(Settings):
    """Settings of a front end; Kaldi's defaults apply to everything else."""

    kind: Literal["fbank", "fbank_mfcc", "mfcc", "plp"] = "fbank"
    """`fbank` (natural-log mel energies, C5), `mfcc`, `plp` (C4), or `fbank_mfcc` (A1): natural-log
    mel magnitudes followed by the MFCC computed from them."""
    num_mel_bins: Annotated[int, Range(3, 10_000)] | None = None
    """Number of mel filters. None: 64 for fbank (C5), 80 for fbank_mfcc (A1), 23 (Kaldi's default)
    for mfcc and plp."""
    num_ceps: Annotated[int, Range(1, 10_000)] = 13
    """Number of coefficients of mfcc, plp and fbank_mfcc, C0 included (C4: 13, 39 with deltas; A1:
    13)."""
    frame_length_ms: float = 25.0
    """Window length in milliseconds (C5: 25, A1: 32)."""
    frame_shift_ms: float = 10.0
    """Frame shift in milliseconds (C5, A1: 10)."""
    low_freq: float = 20.0
    """Lower edge of the first mel filter in Hz."""
    high_freq: float = 0.0
    """Upper edge of the last mel filter in Hz; 0 or below counts from the Nyquist frequency."""
    sampling_rate: Annotated[int, Range(1000, 1_000_000)] = 16000
    """Sampling rate in Hz to which audio is resampled for the front end (C5: 16 kHz)."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        max_ceps = 13 if self.kind == "plp" else self.mel_bins  # PLP: linear prediction of order 12
        if self.kind != "fbank" and self.num_ceps > max_ceps:
            raise ValueError(f"`num_ceps` is {self.num_ceps} but must be at most {max_ceps}")
        if not 0 < self.frame_shift_ms <= self.frame_length_ms <= 1000:
            raise ValueError(
                f"`frame_shift_ms` is {self.frame_shift_ms:g} and `frame_length_ms` "
                f"{self.frame_length_ms:g}, but they must be above 0, the shift at most the length,"
                " and the length at most 1000"
            )
        nyquist = self.sampling_rate / 2
        if not 0 <= self.low_freq < self.upper_edge <= nyquist:
            raise ValueError(
                f"the mel filters range from `low_freq` = {self.low_freq:g} to "
                f"{self.upper_edge:g} Hz (`high_freq` = {self.high_freq:g}) but must lie between 0 "
                f"and {nyquist:g} Hz, with the lower edge below the upper one"
            )
        if self._has_empty_filter(self.upper_edge):
            raise ValueError(
                f"`num_mel_bins` is {self.mel_bins}, too many for windows of "
                f"{self.frame_length_ms:g} ms: a filter would contain no bin of the FFT"
            )

    def _has_empty_filter(self, high: float) -> bool:
        """Whether a mel filter contains no FFT bin, which makes kaldifeat abort."""
        window = round(self.frame_length_ms * self.sampling_rate / 1000)
        points = 2 ** (window - 1).bit_length()  # of the FFT
        # Filter m covers left_m to left_m + 2 steps in mel; a bin in it lies strictly inside.
        bins = [_mel(i * self.sampling_rate / points) for i in range(points // 2)]
        low, step = _mel(self.low_freq), (_mel(high) - _mel(self.low_freq)) / (self.mel_bins + 1)
        lefts = [low + i * step for i in range(self.mel_bins)]
        return any(bisect_right(bins, left) >= bisect_left(bins, left + 2 * step) for left in lefts)

    @property
    def upper_edge(self) -> float:
        """Upper edge of the last mel filter in Hz, as a positive frequency."""
        return self.high_freq if self.high_freq > 0 else self.sampling_rate / 2 + self.high_freq

    @property
    def mel_bins(self) -> int:
        """Number of mel filters, after the default is resolved."""
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
"""The benchmark's front end with 93 values per frame (A1), and those that it is compared with (A2):
80 log-mel energies of 25 ms windows, and 40 of 10 ms windows."""


@dataclass(frozen=True)
class ExtractConfig(Settings):
    """Settings of feature extraction and of the division into shards."""

    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    """The front end (C5 by default)."""
    hours_per_shard: Positive = 0.5
    """Approximate hours of audio per shard (C16: 5 h). A speaker is never divided: a speaker with
    more audio has a separate shard. A split of only minutes has smaller shards, see
    `number_of_shards`. A shard is the unit of parallel work and of resuming."""
    max_failed_share: Share = 0.05
    """Largest share of utterances that may fail. If more fail, extraction ends with an error.
    Utterances shorter than a window do not count: the check excludes them from training and warns
    about those in other splits."""


@dataclass(frozen=True)
class AugmentConfig(Settings):
    """Settings of the augmented copies that are added to the training utterances."""

    speeds: tuple[Annotated[float, Range(0.5, 2)], ...] = ()
    """Speed factors. Each one adds a copy of every utterance. (0.9, 1.1) is the usual three-way
    speed perturbation; the paper has none. The factor 1 needs `noise` or `rooms`."""
    noise: Path | None = None
    """Folder of noise recordings, searched with its subfolders; None: no noise."""
    noise_share: Share = 0.8
    """Share of the copies that get noise."""
    snr: tuple[float, float] = (5.0, 20.0)
    """Lowest and highest ratio of speech to noise in dB."""
    rooms: Path | None = None
    """Folder of room impulse responses, searched with its subfolders; None: no reverberation."""
    rooms_share: Share = 0.5
    """Share of the copies that are reverberated."""
    seed: int = 0
    """Random seed; together with a copy's id it determines the copy's room and noise."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"`speeds` are {self.speeds} but must differ from each other")
        if 1 in self.speeds and not self.degrades:
            raise ValueError(
                "`speeds` contains 1, which would only copy the originals: remove it, or set "
                "`noise` or `rooms`"
            )
        if self.degrades and not self.speeds:
            raise ValueError(
                "`noise` and `rooms` need `speeds`: set it to (1.0,) for copies at the original "
                "speed"
            )
        if len(self.snr) != 2 or self.snr[0] > self.snr[1]:
            raise ValueError(
                f"`snr` is {self.snr} but must be two ratios in dB, the lowest and the highest"
            )

    @property
    def degrades(self) -> bool:
        """Whether the copies get noise or reverberation."""
        return self.noise is not None or self.rooms is not None


@dataclass(frozen=True)
class EchoConfig(Settings):
    """Settings of the adaptive filters that cancel the loudspeaker's echo."""

    taps: Annotated[int, Range(16, 1 << 24)] = 2048
    """Length of the filter in samples, a multiple of `block` (2048: 128 ms at 16 kHz)."""
    block: Annotated[int, Range(16, 1 << 24)] = 256
    """Samples per update of the filter."""
    stability: Annotated[float, Range(0.9, 1.0)] = 0.999
    """Share of the echo path that persists from one block to the next; below 1 the filter can track
    a changing path."""
    smoothing: ShareBelowOne = 0.6
    """Weight of earlier blocks in the running mean of the power of everything except the echo."""
    first_power: PositiveShare = 0.03
    """Initial estimate of the echo's share of the microphones' power. If it is too high, the filter
    adapts to the speech too."""
    passes: Annotated[int, Range(1, 1000)] = 2
    """Number of passes of the filter over an utterance. The filter of a device has already adapted
    to the playback when an utterance begins. For single utterances, the earlier passes adapt it."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if self.taps % self.block:
            raise ValueError(
                f"`taps` is {self.taps} but must be a multiple of `block`, {self.block}"
            )


@dataclass(frozen=True)
class BeamformingConfig(Settings):
    """Settings of the beamformer that combines an utterance's microphones."""

    method: Literal["mvdr", "delay-and-sum", "none"] = "mvdr"
    """`mvdr`, `delay-and-sum`, or `none`, which takes the first microphone."""
    window: Annotated[int, Range(16, 1 << 24)] = 512
    """Samples per frame of the spectra (512: 32 ms at 16 kHz)."""
    shift: Annotated[int, Range(1, 1 << 24)] = 128
    """Samples from frame to frame."""
    quiet_share: ProperShare = 0.15
    """Share of frames that count as noise without speech. These are the quietest frames: every
    utterance has pauses, at least before and after it."""
    oversubtraction: Positive = 8.0
    """Factor by which the noise power, the mean power of the frames of `quiet_share`, is
    multiplied. The product is subtracted from the power of each time-frequency bin; the rest is
    speech."""
    loading: NonNegative = 1e-3
    """Diagonal loading of the noise's covariance, relative to its trace: it limits the
    amplification of the microphones' own noise."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if self.shift > self.window // 2:
            raise ValueError(
                f"`shift` is {self.shift} but must be at most half of `window`, {self.window}"
            )


@dataclass(frozen=True)
class EnhanceConfig(Settings):
    """Settings of the far-field front end."""

    cancel_echo: bool = True
    """Whether to cancel the echo of the playback at every microphone."""
    echo: EchoConfig = EchoConfig()
    """Settings of the adaptive filter."""
    beamforming: BeamformingConfig = BeamformingConfig()
    """Settings of the beamformer."""


@dataclass(frozen=True)
class SelectionConfig(Settings):
    """Settings for selecting the beam with the talker; times in seconds."""

    band_hertz: tuple[float, float] = (300.0, 4000.0)
    """Frequencies whose power is compared."""
    smoothing: Positive = 0.1
    """Time constant of the smoothing of the power."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if not 0 <= self.band_hertz[0] < self.band_hertz[1]:
            raise ValueError(
                f"`band_hertz` is {self.band_hertz} but must be two frequencies, the lowest and "
                "the highest"
            )


@dataclass(frozen=True)
class BeamsConfig(Settings):
    """Settings of a device's fixed beams."""

    beams: Annotated[int, Range(1, 1000)] = 6
    """Number of directions, equally spaced around the device."""
    # Gain in the ratio of speech to noise, mean of 20 utterances at five placements: 1.4 dB at 0
    # degrees, 1.7 at 20, 2.1 at 40.
    elevation_degrees: Annotated[float, Range(-90, 90)] = 30.0
    """Elevation of the directions above the plane of the device, for talkers who stand or sit."""
    taps: Annotated[int, Range(3, 1 << 24)] = 257
    """Length of the filters in samples, odd; they delay by half their length."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if self.taps % 2 == 0:
            raise ValueError(f"`taps` is {self.taps} but must be odd")

    @property
    def delay(self) -> int:
        """Delay of the beams in samples."""
        return self.taps // 2


@dataclass(frozen=True)
class DeviceConfig(Settings):
    """Settings of a device's front end."""

    beams: BeamsConfig = BeamsConfig()
    """Settings of the fixed beams."""
    # Echo left at the output of nine scenes with music or speech, 2 s before the utterance: -14.5
    # dB with a smoothing of 0.6 and a first power of 0.03, -16.7 dB with these values, -16.8 dB
    # with a smoothing of 0.95.
    echo: EchoConfig = EchoConfig(smoothing=0.9, first_power=0.1, passes=1)
    """The echo canceller of each beam; its `block` is also that of the front end."""
    selection: SelectionConfig = SelectionConfig()
    """Settings of the choice of a beam."""
    first_seconds: Positive = 0.2
    """Duration of playback before the echo cancellers begin to adapt. From this playback they
    estimate how loud the echo may be."""

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if self.echo.passes != 1:
            raise ValueError("`echo.passes` must be 1: a device records each sample only once")
        if self.beams.taps > self.echo.block + 1:
            raise ValueError(
                f"`beams.taps` is {self.beams.taps} but must be at most `echo.block` + 1, "
                f"{self.echo.block + 1}"
            )
