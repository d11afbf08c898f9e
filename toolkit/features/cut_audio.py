"""Reads the audio of lhotse cuts, and applies their transforms, rooms and noise included."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lhotse.audio.backend import LibsndfileBackend, set_current_audio_backend
from lhotse.augmentation import AudioTransform
from lhotse.cut import Cut, MixedCut
from lhotse.utils import compute_num_samples
from torch import Tensor

import toolkit.features.cut_audio  # noqa: F401 - registers its transforms with lhotse
from toolkit.corpus.audio import absence, open_at, open_audio
from toolkit.corpus.manifest import FEATURE_MATRIX, UnsafeCutError, check_audio
from toolkit.features.audio import AudioError, check_samples, load_audio, resample
from toolkit.storage.reading import reason


class PlainFile(NamedTuple):
    """The file of a cut that is a part of one file, and the channel."""

    path: Path
    channel: int | None
    """Counted from 0; None: the mean of all."""


def load_cut_audio(cut: Cut, sampling_rate: int = 16000) -> Tensor:
    """Read a cut's audio: its time span, and its channel or the mean of all channels.

    A MonoCut has one channel, unless its manifest says `mix_channels`.

    Parts of files are read directly. Lhotse reads mixed cuts, and recordings in memory or with
    transforms; from then on it opens files with `LocalFiles`.

    Returns:
      [S] float32 within [-1, 1] at `sampling_rate` Hz.

    Raises:
      AudioError: as in `load_audio`; or the cut names shell commands or addresses, which are never
        run or fetched, or needs a filter that `check_resampling` refuses.
    """
    if not cut.has_recording:
        raise AudioError(f"{cut.id}: the cut has no recording")
    if not isinstance(cut, MixedCut) and FEATURE_MATRIX in (cut.custom or {}):
        raise AudioError(f"{cut.id}: its corpus has features instead of audio")
    if file := plain_file(cut):
        return load_audio(file.path, sampling_rate, cut.start, cut.duration, file.channel)
    try:
        check_audio(cut)
        check_resampling(cut)
        set_current_audio_backend(LOCAL_FILES)
        if not isinstance(cut, MixedCut) and (cut.custom or {}).get("mix_channels"):
            samples = cut.recording.load_audio(offset=cut.start, duration=cut.duration)
        else:
            samples = np.atleast_2d(cut.load_audio())
    except UnsafeCutError as error:
        raise AudioError(str(error)) from error
    except Exception as error:  # lhotse's back ends raise exceptions of many unrelated classes
        raise AudioError(f"{cut.id}: {reason(error)}") from error
    mono = samples.mean(axis=0, dtype=np.float32)
    return torch.from_numpy(resample(check_samples(mono, cut.id), cut.sampling_rate, sampling_rate))


def plain_file(cut: Cut) -> PlainFile | None:
    """Return the file of a cut that is a part of one local file without transforms; else None."""
    # A mixed cut looks up its attributes in its tracks.
    recording = None if isinstance(cut, MixedCut) else getattr(cut, "recording", None)
    if recording is None or recording.transforms or len(recording.sources) != 1:
        return None
    source = recording.sources[0]
    if source.type != "file" or recording.sampling_rate != cut.sampling_rate:
        return None
    mixed = not isinstance(cut.channel, int) or (cut.custom or {}).get("mix_channels")
    return PlainFile(Path(source.source), None if mixed else cut.channel)


class LocalFiles(LibsndfileBackend):
    """Audio backend for lhotse that reads local files only, as `toolkit.corpus.audio` does.

    Lhotse's own back ends are unsafe for other people's manifests: they pass file names to a shell
    (`.sph`), to sox (which runs a name that begins with `|`) and to ffmpeg (which fetches URLs).
    """

    def read_audio(
        self,
        path_or_fd: Any,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> tuple[np.ndarray, int]:
        """Read samples [channels, S] float32 and their rate, like lhotse's libsndfile backend."""
        if isinstance(path_or_fd, str | Path) and (fault := absence(Path(path_or_fd))):
            raise AudioError(f"{path_or_fd}: {fault}")
        with open_audio(path_or_fd, in_order=True) as file:
            rate = file.samplerate
            start = compute_num_samples(offset, rate) if offset > 0 else 0
            remaining = max(0, file.frames - start)
            frames = remaining if duration is None else compute_num_samples(duration, rate)
            with open_at(path_or_fd, file, start) as part:
                return part.read(frames, dtype="float32", always_2d=True).T, rate


LOCAL_FILES = LocalFiles()


TELEPHONE_RATE = 8000
"""Sampling rate of telephones in Hz, to and from which `Narrowband` resamples."""
MAX_FILTER_VALUES = 1 << 24
"""Largest number of values in a filter; lhotse takes some 32 bytes for each. Speed 0.9 at a usual
rate needs a hundred values, 44.1 to 16 kHz 71,000, speed 1.00001 at 384 kHz nine billion."""


def check_resampling(cut: Cut) -> None:
    """Check that none of the cut's transforms resamples with a huge filter.

    With d the greatest common divisor of the two rates, lhotse's filter has a row for each of
    new / d samples and a column for each of rate / d.

    Raises:
      UnsafeCutError: a filter has more than `MAX_FILTER_VALUES` values.
    """
    for rate, new in _resamplings(cut):
        if is_costly(rate, new):
            raise UnsafeCutError(
                f"{cut.id}: a transform resamples from {rate} to {new} Hz, whose greatest common"
                f" divisor is {math.gcd(rate, new)}: the filter would take gigabytes. Choose"
                " another factor, or store the resampled audio as a file"
            )


def is_costly(rate: int, new: int) -> bool:
    """Whether resampling between two rates needs a filter of over `MAX_FILTER_VALUES` values."""
    return rate * new > MAX_FILTER_VALUES * math.gcd(rate, new) ** 2


def _resamplings(cut: Cut) -> Iterator[tuple[int, int]]:
    """Yield (old rate, new rate) in Hz of each resampling among the cut's transforms."""
    cuts = [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    for recording in (track_cut.recording for track_cut in cuts if track_cut.has_recording):
        for transform in recording.transforms or ():
            if isinstance(transform, dict):
                name, settings = transform["name"], transform["kwargs"]
            else:
                name, settings = type(transform).__name__, vars(transform)
            if name == "Resample":
                yield settings["source_sampling_rate"], settings["target_sampling_rate"]
            elif name == "Narrowband":
                yield settings["source_sampling_rate"], TELEPHONE_RATE
            elif name == "Speed":  # at the rate of the recording, in any position
                yield round(recording.sampling_rate * settings["factor"]), recording.sampling_rate


class _InPlace(AudioTransform):
    """Base of transforms that do not move samples in time."""

    def reverse_timestamps(
        self, offset: float, duration: float | None, sampling_rate: int
    ) -> tuple[float, float | None]:
        """Return the same time span; see lhotse's AudioTransform."""
        return offset, duration


@dataclass
class Reverberate(_InPlace):
    """Convolves audio with a room impulse response, aligned at its highest peak.

    The power of each channel stays the same, so that levels remain comparable.
    """

    path: str
    """Audio file of the impulse response."""
    channel: int
    """Index of the channel of the impulse response."""

    def __call__(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Convolve [channels, S] samples."""
        response = load_audio(self.path, sampling_rate, channel=self.channel).numpy()
        delay = int(np.abs(response).argmax())  # the direct sound
        length = samples.shape[1]
        from scipy.signal import fftconvolve

        wet = fftconvolve(samples, response[None], axes=1)[:, delay : delay + length]
        # g = sqrt(P_dry / P_wet) by channel; silence stays as it is.
        power = _power(wet)
        gain = np.sqrt(np.divide(_power(samples), power, out=np.ones_like(power), where=power > 0))
        return (wet * gain).astype(np.float32)


@dataclass
class AddNoise(_InPlace):
    """Adds noise to each channel at a given signal-to-noise ratio over the utterance."""

    path: str
    """Audio file of the noise, which is repeated if it is too short."""
    start: float
    """Start of the excerpt of the noise, in seconds."""
    snr: float
    """Signal-to-noise ratio in dB."""

    def __call__(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Add the noise to [channels, S] samples."""
        noise = self._noise(samples.shape[1], sampling_rate)
        power = float(_power(noise[None])[0, 0])
        if power == 0:
            return samples
        # P_speech / (g^2 P_noise) = 10^(snr / 10)
        gain = np.sqrt(_power(samples) / (power * 10 ** (self.snr / 10)))
        return (samples + gain * noise).astype(np.float32)

    def _noise(self, length: int, rate: int) -> np.ndarray:
        """Return the noise [length] from `start`, repeated if it is too short."""
        whole = load_audio(self.path, rate).numpy()
        first = min(round(self.start * rate), len(whole) - 1)
        return np.resize(np.roll(whole, -first), length)


def _power(samples: np.ndarray) -> np.ndarray:
    """Return the mean square [channels, 1] of samples [channels, S]."""
    return np.mean(np.square(samples, dtype=np.float64), axis=1, keepdims=True)
