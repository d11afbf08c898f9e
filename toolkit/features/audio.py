"""Audio files and cuts as one-channel float samples at the wanted rate."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile
import torch
from scipy.signal import resample_poly
from torch import Tensor

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from lhotse.cut import Cut


class AudioError(ToolkitError):
    """Audio that cannot be read whole."""


def load_audio(
    path: str | Path,
    sampling_rate: int = 16000,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> Tensor:
    """Read a file or a part of it, at any rate and number of channels libsndfile knows.

    Resampling is scipy's polyphase filter; S samples at rate r become round(S * rate / r).

    Args:
      path: WAV, FLAC, OGG, MP3, NIST SPHERE, ...
      sampling_rate: wanted rate in Hz.
      offset: start in seconds.
      duration: length in seconds; None reads to the end.
      channel: the channel to keep, from 0; None takes the mean of all.

    Returns:
      [S] float32 within [-1, 1].

    Raises:
      AudioError: the file is missing, unreadable, truncated, shorter than offset + duration,
        lacks the channel, or holds values that are not numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise AudioError(f"{path}: no such audio file")
    try:
        with soundfile.SoundFile(path) as file:
            start = round(offset * file.samplerate)
            wanted = file.frames - start
            if duration is not None:
                wanted = min(wanted, round(duration * file.samplerate))
                if offset + duration > (file.frames + 1) / file.samplerate:
                    raise AudioError(
                        f"{path}: {offset + duration:.3f} s asked for, "
                        f"but the file ends at {file.frames / file.samplerate:.3f} s"
                    )
            if wanted <= 0:
                raise AudioError(f"{path}: no samples")
            file.seek(start)
            samples = file.read(wanted, dtype="float32", always_2d=True)
            rate = file.samplerate
    except (soundfile.SoundFileError, OSError, MemoryError, ValueError) as error:
        raise AudioError(
            f"{path}: {error} (truncated or not audio; `ffmpeg -i` may repair it)"
        ) from error
    if len(samples) < wanted:
        raise AudioError(
            f"{path}: truncated, {len(samples)} of {wanted} samples could be decoded; "
            "fetch the file again"
        )
    if channel is None:
        mono = samples.mean(axis=1)
    elif channel < samples.shape[1]:
        mono = samples[:, channel]
    else:
        raise AudioError(f"{path}: has {samples.shape[1]} channels, no channel {channel}")
    return torch.from_numpy(_resample(_finite(mono, path), rate, sampling_rate))


def load_cut_audio(cut: "Cut", sampling_rate: int = 16000) -> Tensor:
    """Read the audio of a cut: its span, and its one channel or the mean of all.

    A MonoCut has one channel, unless its manifest says `mix_channels`.

    Files are read directly; recordings in memory, in shards or with transforms through lhotse.

    Returns:
      [S] float32 within [-1, 1] at `sampling_rate` Hz.

    Raises:
      AudioError: as in `load_audio`, or the recording is a shell command, which is never run.
    """
    if not cut.has_recording:
        raise AudioError(f"{cut.id}: the cut has no recording")
    recording = getattr(cut, "recording", None)  # a MixedCut has several
    sources = recording.sources if recording is not None else []
    if any(source.type == "command" for source in sources):
        raise AudioError(
            f"{cut.id}: the recording is the shell command `{sources[0].source}`, which is not "
            "run; write its output to a file and name that"
        )
    plain = len(sources) == 1 and sources[0].type == "file" and not recording.transforms
    if plain and recording.sampling_rate == cut.sampling_rate:
        mixed = not isinstance(cut.channel, int) or (cut.custom or {}).get("mix_channels")
        channel = None if mixed else cut.channel
        return load_audio(sources[0].source, sampling_rate, cut.start, cut.duration, channel)
    import toolkit.features.degrade  # noqa: F401 - tells lhotse of its transforms

    try:
        if recording is not None and (cut.custom or {}).get("mix_channels"):
            samples = recording.load_audio(offset=cut.start, duration=cut.duration)
        else:
            samples = np.atleast_2d(cut.load_audio())
    except Exception as error:  # lhotse's back ends raise exceptions of many unrelated classes
        raise AudioError(f"{cut.id}: {error}") from error
    mono = samples.mean(axis=0, dtype=np.float32)
    return torch.from_numpy(_resample(_finite(mono, cut.id), cut.sampling_rate, sampling_rate))


def _finite(samples: np.ndarray, name: str | Path) -> np.ndarray:
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: holds values that are not numbers")
    return samples


def _resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return np.ascontiguousarray(samples)
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    resampled = resample_poly(samples, up, down)
    length = (2 * len(samples) * up + down) // (2 * down)  # half up, as lhotse counts
    return np.ascontiguousarray(resampled[:length], dtype=np.float32)
