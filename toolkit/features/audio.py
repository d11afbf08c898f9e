"""Reads audio files as one-channel float samples at a given sampling rate."""

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import torch
from torch import Tensor

from toolkit.corpus.audio_file import absence, open_at, open_audio, rate_fault
from toolkit.corpus.sample_scale import scale_fault
from toolkit.errors import ToolkitError
from toolkit.features.resample import lowpass, steps
from toolkit.storage.paths import encoding_error


class AudioError(ToolkitError):
    """Audio that cannot be read completely."""


def load_audio(
    path: str | Path,
    sampling_rate: int = 16000,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> Tensor:
    """Read a file or a part of it, in any format, rate and number of channels of libsndfile.

    Resampling is scipy's polyphase filter; S samples at rate r become round(S * rate / r).

    Args:
      path: WAV, FLAC, OGG, MP3, NIST SPHERE, ...
      sampling_rate: rate to resample to, in Hz.
      offset: start in seconds.
      duration: length in seconds; None reads to the end.
      channel: the channel to keep, from 0; None takes the mean of all.

    Returns:
      [S] float32 within [-1, 1].

    Raises:
      AudioError: the file is missing, unreadable, truncated, shorter than offset + duration,
        lacks the channel, or holds values that are not numbers or are scaled to integers.
    """
    path = Path(path)
    if reason := absence(path):
        raise AudioError(f"{path}: {reason}")
    samples, rate = _read(path, path, offset, duration)
    check_rate(rate, path)
    return torch.from_numpy(resample(_to_mono(samples, path, channel), rate, sampling_rate))


@dataclass(frozen=True)
class Decoded:
    """A whole audio file."""

    samples: Tensor
    """[S] float32 within [-1, 1] at the rate asked for, or int16, see `decode_audio`."""
    sampling_rate: int
    """Sampling rate of the file, in Hz."""
    num_samples: int
    """Samples per channel of the file."""
    channels: int
    """Channels of the file."""


def decode_audio(
    content: bytes, name: str, sampling_rate: int = 16000, int16: bool = False
) -> Decoded:
    """Read a whole audio file that is in memory; otherwise as `load_audio`.

    Args:
      content: bytes of the file.
      name: its name in messages.
      sampling_rate: rate to resample to, in Hz.
      int16: leave samples of 16 bits as they are where nothing has to be mixed or resampled; a
        `Frontend` takes them too, which saves two passes over them.
    """
    samples, rate = pcm16(content) or _read(io.BytesIO(content), name)
    check_rate(rate, name)
    if int16 and samples.dtype == np.int16 and samples.shape[1] == 1 and rate == sampling_rate:
        own = samples if samples.flags.writeable else samples.copy()  # torch wants writable memory
        return Decoded(torch.from_numpy(own[:, 0]), rate, *samples.shape)
    mono = torch.from_numpy(resample(_to_mono(samples, name), rate, sampling_rate))
    return Decoded(mono, rate, *samples.shape)


def pcm16(content: bytes) -> tuple[np.ndarray, int] | None:
    """Return samples [S, channels] int16 and rate of a 16-bit PCM WAV file, without copying.

    libsndfile reads from memory by calling back into Python, which takes several times as long.

    Returns:
      None for any other kind of file, and for a damaged one.
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    position, layout = 12, (0, 0, 0, 0, 0, 0)
    samples_and_rate: tuple[np.ndarray, int] | None = None
    while position + 8 <= len(content):
        chunk, size = struct.unpack_from("<4sI", content, position)
        position += 8
        if samples_and_rate is not None and chunk in (b"data", b"RIFF"):
            return None  # more samples follow, see `wav_pieces`
        if position + size > len(content):
            return samples_and_rate
        if chunk == b"fmt " and size >= 16:
            layout = struct.unpack_from("<HHIIHH", content, position)
        elif chunk == b"data":
            kind, channels, rate, _, block, bits = layout
            if kind != 1 or bits != 16 or block != 2 * channels or not size or size % block:
                return None
            samples = np.frombuffer(content, "<i2", size // 2, position)
            samples_and_rate = samples.reshape(-1, channels), rate
        position += size + size % 2
    return samples_and_rate


def undecodable(path: str | Path, source: Path | BinaryIO, error: Exception) -> AudioError:
    """Return the error that says why audio cannot be read.

    Args:
      path: how it is called.
      source: its file, or the open content.
      error: that reading it ended with.
    """
    if unwritable := encoding_error(error):
        return AudioError(str(unwritable))
    if isinstance(source, Path) and source.is_file() and not source.stat().st_size:
        return AudioError(f"{path}: is an empty file")
    if type(error) is soundfile.SoundFileRuntimeError:  # not libsndfile's, see `open_audio`
        return AudioError(f"{path}: {error}")
    reason = getattr(error, "error_string", error)  # without the name of what was opened
    return AudioError(f"{path}: {reason} (truncated or not audio; `ffmpeg -i` may repair it)")


def _read(
    source: Path | BinaryIO, path: str | Path, offset: float = 0.0, duration: float | None = None
) -> tuple[np.ndarray, int]:
    """Read samples [S, channels], of 16 bits where the file has those, and their rate."""
    try:
        with open_audio(source, in_order=True) as file:
            start = round(offset * file.samplerate)
            length = file.frames - start
            if duration is not None:
                length = min(length, round(duration * file.samplerate))
                if offset + duration > (file.frames + 1) / file.samplerate:
                    raise AudioError(
                        f"{path}: {offset + duration:.3f} s asked for, "
                        f"but the file ends at {file.frames / file.samplerate:.3f} s"
                    )
            if length <= 0:
                raise AudioError(f"{path}: no samples")
            # libsndfile's own conversion to float32 takes longer than the reading
            kind = "int16" if file.subtype == "PCM_16" else "float32"
            with open_at(source, file, start) as part:
                samples = part.read(length, dtype=kind, always_2d=True)
            rate = file.samplerate
    except (soundfile.SoundFileError, OSError, MemoryError, ValueError) as error:
        raise undecodable(path, source, error) from error
    if len(samples) < length:
        raise AudioError(
            f"{path}: truncated, {len(samples)} of {length} samples could be decoded; "
            "fetch the file again"
        )
    return samples, rate


def check_rate(rate: int, path: str | Path) -> None:
    """Refuse implausible rates: the resampling filter, 20 times the rates' ratio, would be huge.

    Raises:
      AudioError: the rate, in Hz, is no audio's.
    """
    if fault := rate_fault(rate):
        raise AudioError(f"{path}: {fault}")


def _to_mono(samples: np.ndarray, path: str | Path, channel: int | None = None) -> np.ndarray:
    """Take one channel of samples [S, channels], or the mean of all, as float32."""
    num_channels = samples.shape[1]
    if channel is not None and channel >= num_channels:
        raise AudioError(f"{path}: has {num_channels} channels, no channel {channel + 1}")
    mixed = channel is None and num_channels > 1
    if samples.dtype != np.int16:
        return check_samples(samples.mean(axis=1) if mixed else samples[:, channel or 0], path)
    chosen = samples if mixed else samples[:, channel or 0]
    scaled = np.multiply(chosen, np.float32(1 / 32768), dtype=np.float32)
    return scaled.mean(axis=1) if mixed else scaled


def check_samples(samples: np.ndarray, name: str | Path) -> np.ndarray:
    """Return `samples` [S] of one channel.

    Raises:
      AudioError: one is infinite or not a number, or they are scaled to integers.
    """
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: holds values that are not numbers")
    if fault := scale_fault(samples):
        raise AudioError(f"{name}: {fault}")
    return samples


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Resample [S] float32 by scipy's polyphase filter; the length is rounded half up."""
    if rate == new_rate:
        return np.ascontiguousarray(samples)
    from scipy.signal import resample_poly

    up, down = steps(rate, new_rate)
    resampled = resample_poly(samples, up, down, window=lowpass(up, down))
    length = (2 * len(samples) * up + down) // (2 * down)
    return np.ascontiguousarray(resampled[:length], dtype=np.float32)
