"""Reads audio as one-channel float samples at a given rate, from files and pipes."""

import io
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import torch
from torch import Tensor

from toolkit.corpus.audio import (
    FLOATS,
    SECONDS,
    SampleScale,
    absence,
    open_at,
    open_audio,
    rate_fault,
    scale_fault,
    unread_end,
)
from toolkit.errors import ToolkitError
from toolkit.storage.paths import encoding_error

logger = logging.getLogger(__name__)


class AudioError(ToolkitError):
    """Raised when audio cannot be read completely."""


def load_audio(
    path: str | Path,
    sampling_rate: int = 16000,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> Tensor:
    """Read an audio file, or a part of it, as one channel at a given sampling rate.

    Scipy's polyphase filter resamples: S samples at the file's rate r become
    round(S * sampling_rate / r).

    Args:
      path: WAV, FLAC, OGG, MP3, NIST SPHERE, ...
      sampling_rate: rate to resample to, in Hz.
      offset: start in seconds.
      duration: length in seconds; None reads to the end.
      channel: the channel to keep, counted from 0; None takes the mean of all.

    Returns:
      [S] float32 within [-1, 1].

    Raises:
      AudioError: the file is missing, unreadable, truncated, shorter than offset + duration,
        lacks the channel, or holds samples that are not numbers or are scaled to integers.
    """
    path = Path(path)
    if reason := absence(path):
        raise AudioError(f"{path}: {reason}")
    samples, rate = _read(path, path, offset, duration)
    check_rate(rate, path)
    return torch.from_numpy(resample(_to_mono(samples, path, channel), rate, sampling_rate))


@dataclass(frozen=True)
class Decoded:
    """The samples of a whole audio file and its properties."""

    samples: Tensor
    """[S] float32 within [-1, 1] at the requested rate, or int16, see `decode_audio`."""
    sampling_rate: int
    """Sampling rate of the file, in Hz."""
    num_samples: int
    """Samples per channel of the file."""
    channels: int
    """Channels of the file."""


def decode_audio(
    content: bytes, name: str, sampling_rate: int = 16000, int16: bool = False
) -> Decoded:
    """Read a whole audio file from memory; otherwise like `load_audio`.

    Args:
      content: bytes of the file.
      name: the file's name in messages.
      sampling_rate: rate to resample to, in Hz.
      int16: return 16-bit samples unchanged if they need no mixing or resampling. A `Frontend`
        accepts them, which saves two passes over them.
    """
    samples, rate = pcm16(content) or _read(io.BytesIO(content), name)
    check_rate(rate, name)
    if int16 and samples.dtype == np.int16 and samples.shape[1] == 1 and rate == sampling_rate:
        # torch wants writable memory, and bytes are read-only.
        writeable = samples if samples.flags.writeable else samples.copy()
        return Decoded(torch.from_numpy(writeable[:, 0]), rate, *samples.shape)
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
    # A RIFF file is a sequence of chunks: 4 bytes name, 4 bytes size, content, padding to 2 bytes.
    # `layout` is WAVEFORMAT: format tag, channels, rate, bytes per second, bytes per frame, bits.
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
            # Format tag 1 is linear PCM.
            if kind != 1 or bits != 16 or block != 2 * channels or not size or size % block:
                return None
            samples = np.frombuffer(content, "<i2", size // 2, position)
            samples_and_rate = samples.reshape(-1, channels), rate
        position += size + size % 2
    return samples_and_rate


def undecodable(path: str | Path, source: Path | BinaryIO, error: Exception) -> AudioError:
    """Make the error that says why audio cannot be read.

    Args:
      path: name of the audio in the message.
      source: its file, or the open content.
      error: the exception that reading it raised.
    """
    if unwritable := encoding_error(error):
        return AudioError(str(unwritable))
    if isinstance(source, Path) and source.is_file() and not source.stat().st_size:
        return AudioError(f"{path}: is an empty file")
    if type(error) is soundfile.SoundFileRuntimeError:  # raised by `open_audio`
        return AudioError(f"{path}: {error}")
    reason = getattr(error, "error_string", error)  # without the name of what was opened
    return AudioError(
        f"{path}: {reason} (the file is truncated or not audio; `ffmpeg -i` may repair it)"
    )


def _read(
    source: Path | BinaryIO, path: str | Path, offset: float = 0.0, duration: float | None = None
) -> tuple[np.ndarray, int]:
    """Read samples [S, channels] and their rate; int16 if the file has 16-bit samples."""
    try:
        with open_audio(source, in_order=True) as file:
            start = round(offset * file.samplerate)
            length = file.frames - start
            if duration is not None:
                length = min(length, round(duration * file.samplerate))
                # One sample of tolerance: times in manifests are rounded.
                if offset + duration > (file.frames + 1) / file.samplerate:
                    raise AudioError(
                        f"{path}: the segment ends at {offset + duration:.3f} s, but the file "
                        f"ends at {file.frames / file.samplerate:.3f} s"
                    )
            if length <= 0:
                raise AudioError(f"{path}: no samples")
            # 16-bit samples stay integers: libsndfile's conversion to float32 takes longer than
            # reading.
            kind = "int16" if file.subtype == "PCM_16" else "float32"
            with open_at(source, file, start) as part:
                samples = part.read(length, dtype=kind, always_2d=True)
            rate = file.samplerate
    except (soundfile.SoundFileError, OSError, MemoryError, ValueError) as error:
        raise undecodable(path, source, error) from error
    if len(samples) < length:
        raise AudioError(
            f"{path}: truncated: only {len(samples)} of {length} samples could be decoded; "
            "fetch the file again"
        )
    return samples, rate


def check_rate(rate: int, path: str | Path) -> None:
    """Raise an error for an implausible rate, whose resampling filter would be huge.

    Raises:
      AudioError: no audio has this rate in Hz.
    """
    if fault := rate_fault(rate):
        raise AudioError(f"{path}: {fault}")


def _to_mono(samples: np.ndarray, path: str | Path, channel: int | None = None) -> np.ndarray:
    """Return one channel of samples [S, channels], or the mean of all, as float32."""
    num_channels = samples.shape[1]
    if channel is not None and channel >= num_channels:
        raise AudioError(
            f"{path}: has {num_channels} channels, so there is no channel {channel + 1}"
        )
    mixed = channel is None and num_channels > 1
    if samples.dtype != np.int16:
        return check_samples(samples.mean(axis=1) if mixed else samples[:, channel or 0], path)
    chosen = samples if mixed else samples[:, channel or 0]
    # int16 to [-1, 1): divided by 2^15, which float32 does without rounding
    scaled = np.multiply(chosen, np.float32(1 / 32768), dtype=np.float32)
    return scaled.mean(axis=1) if mixed else scaled


def check_samples(samples: np.ndarray, name: str | Path) -> np.ndarray:
    """Return the `samples` [S] of one channel, or raise an error if they are invalid.

    Raises:
      AudioError: a sample is infinite or not a number, or the samples are scaled to integers.
    """
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: some samples are NaN or infinite")
    if fault := scale_fault(samples):
        raise AudioError(f"{name}: {fault}")
    return samples


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Resample [S] float32 with scipy's polyphase filter; the length is rounded half up."""
    if rate == new_rate:
        return np.ascontiguousarray(samples)
    from scipy.signal import resample_poly

    up, down = resampling_factors(rate, new_rate)
    resampled = resample_poly(samples, up, down, window=lowpass(up, down))
    length = (2 * len(samples) * up + down) // (2 * down)  # floor(S up / down + 1 / 2)
    return np.ascontiguousarray(resampled[:length], dtype=np.float32)


CANCELLED = 0.01
"""Channels cancel if the energy of their mean is below this share of their mean energy (20 dB).
For n uncorrelated channels the share is 1 / n."""


def audio_blocks(
    path: Path,
    sampling_rate: int,
    seconds: float,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    called: str | None = None,
) -> Iterator[Tensor]:
    """Yield the samples of `load_audio` in blocks.

    Args:
      path, sampling_rate, offset, duration, channel: see `load_audio`.
      seconds: largest length of a block.
      called: name of the audio in messages; None: `path`.

    Yields:
      [S] float32 within [-1, 1].

    Raises:
      AudioError: see `load_audio`; for a truncated file only once its end is reached.
    """
    name = called or str(path)
    if reason := absence(path):
        raise AudioError(f"{name}: {reason}")
    with _reading(path, name), open_audio(path, in_order=True) as file:
        rate = file.samplerate
        check_rate(rate, name)
        start = round(offset * rate)
        length = file.frames - start
        if duration is not None:
            length = min(length, round(duration * rate))
            if offset + duration > (file.frames + 1) / rate:
                raise AudioError(
                    f"{name}: the segment ends at {offset + duration:.3f} s, but the file ends at "
                    f"{file.frames / rate:.3f} s"
                )
        if length <= 0:
            raise AudioError(f"{name}: no samples")
        if channel is not None and channel >= file.channels:
            raise AudioError(
                f"{name}: has {file.channels} channels, so there is no channel {channel + 1}"
            )
        if duration is None and (fault := unread_end(path, file)):
            logger.warning("%s: %s", name, fault)
        with open_at(path, file, start) as part:
            blocks = _file_blocks(part, name, length, seconds, channel)
            yield from _resampled(blocks, rate, sampling_rate)


@contextmanager
def _reading(path: Path, name: str) -> Iterator[None]:
    """Return a context that turns errors of reading a file into an `AudioError`."""
    try:
        yield
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise undecodable(name, path, error) from error


def _file_blocks(
    file: soundfile.SoundFile, name: str, length: int, seconds: float, channel: int | None
) -> Iterator[np.ndarray]:
    """Yield checked blocks [S] float32 of one channel, or of the mean of all."""
    size, done = max(1, round(seconds * file.samplerate)), 0
    # Energy of the mean of all channels, and mean of the channels' energies
    mixed_energy = channel_energy = 0.0
    scale = SampleScale() if file.subtype in FLOATS else None
    while done < length:
        samples = file.read(min(size, length - done), dtype="float32", always_2d=True)
        if not len(samples):
            raise AudioError(
                f"{name}: truncated: only {done} of {length} samples could be decoded; "
                "fetch the file again"
            )
        done += len(samples)
        mixed = channel is None and samples.shape[1] > 1
        mono = samples.mean(axis=1) if mixed else samples[:, channel or 0]
        if not np.isfinite(mono).all():
            raise AudioError(f"{name}: some samples are NaN or infinite")
        if scale is not None:
            scale.add(mono)
            # The scale is judged once enough samples, or all, have been read.
            enough = scale.count >= SECONDS * file.samplerate or done >= length
            if enough and (fault := scale.fault):
                raise AudioError(f"{name}: {fault}")
        if mixed:
            mixed_energy += float(np.vdot(mono, mono))
            channel_energy += float(np.vdot(samples, samples)) / samples.shape[1]
        yield mono
    if mixed_energy < CANCELLED * channel_energy:
        logger.warning(
            "%s: its channels cancel when they are mixed (one has the opposite sign of another)."
            " Choose one with --channel",
            name,
        )


def pcm_blocks(file: BinaryIO, rate: int, sampling_rate: int, seconds: float) -> Iterator[Tensor]:
    """Yield a pipe's samples as they arrive: one channel of signed 16-bit little-endian samples.

    Ctrl-C while waiting for samples ends the stream.

    Args:
      file: the pipe.
      rate: sampling rate of the pipe, in Hz.
      sampling_rate: rate to resample to, in Hz.
      seconds: length of a block.

    Raises:
      AudioError: no audio has this rate.
    """
    check_rate(rate, "standard input")
    return _resampled(_pcm(file, 2 * max(1, round(seconds * rate))), rate, sampling_rate)


def _pcm(file: BinaryIO, size: int) -> Iterator[np.ndarray]:
    """Yield a pipe's samples in blocks [S] float32 of at most `size` bytes."""
    while True:
        try:
            content = file.read(size)
        except KeyboardInterrupt:
            return
        if not content:
            return
        whole = content[: len(content) // 2 * 2]  # the last sample may be incomplete
        yield np.frombuffer(whole, "<i2").astype(np.float32) / np.float32(32768)


def _resampled(blocks: Iterator[np.ndarray], rate: int, new_rate: int) -> Iterator[Tensor]:
    """Yield a stream of blocks [S] float32, resampled."""
    if rate == new_rate:
        yield from (torch.from_numpy(np.ascontiguousarray(block)) for block in blocks)
        return
    resampler = Resampler(rate, new_rate)
    for block in blocks:
        yield torch.from_numpy(resampler.push(block))
    yield torch.from_numpy(resampler.finish())


MAX_DOWN_FACTOR = 100_000
"""Largest downsampling factor, see `resampling_factors`."""
HALF_FILTER = 10
"""Half the filter's length, in samples of the lower rate; scipy's default, as in `load_audio`."""


def resampling_factors(rate: int, new_rate: int) -> tuple[int, int]:
    """Return integers (up, down) with new_rate / rate = up / down.

    The ratio is approximated where `down` would be above `MAX_DOWN_FACTOR`, since designing the
    filter would take seconds. At 1 MHz the error is 3e-9: one sample in hours.
    """
    ratio = Fraction(new_rate, rate).limit_denominator(MAX_DOWN_FACTOR)
    return max(1, ratio.numerator), ratio.denominator


@lru_cache(maxsize=8)
def lowpass(up: int, down: int) -> np.ndarray:
    """Design the filter of `resample_poly`; cached, since scipy designs it in every call.

    For two rates without a common divisor the filter has millions of coefficients. Its design takes
    over ten times as long as filtering a second of audio.

    Returns:
      [20 * max(up, down) + 1] float32, read-only.
    """
    from scipy.signal import firwin

    # Cutoff at the lower of the two Nyquist frequencies, relative to that of the rate `up` * rate
    larger = max(up, down)
    coefficients = firwin(2 * HALF_FILTER * larger + 1, 1 / larger, window=("kaiser", 5.0))
    coefficients = coefficients.astype(np.float32)
    coefficients.setflags(write=False)
    return coefficients


class Resampler:
    """Resamples a stream chunk by chunk; the result equals resampling the whole signal.

    Args:
      rate: rate of the input, in Hz.
      new_rate: rate of the output, in Hz; not the same.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        self._up, self._down = resampling_factors(rate, new_rate)
        larger = max(self._up, self._down)
        self._filter = lowpass(self._up, self._down)
        # Number of input samples on either side that an output sample depends on: half the filter
        # has HALF_FILTER * larger taps at the rate up * rate.
        self._reach = -(-HALF_FILTER * larger // self._up) + 1
        self._kept = np.zeros(0, np.float32)
        # Index of the first sample of `_kept`: a multiple of _down, where an output sample lies.
        self._begin = 0
        self._returned = 0  # output samples so far

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples [S] float32; return the resampled samples that are final."""
        self._kept = np.concatenate([self._kept, samples])
        received = self._begin + len(self._kept)
        # 1. An output is final once its input samples, up to `_reach` later, have all arrived.
        resampled = self._until(max(0, (received - self._reach) * self._up // self._down))
        # 2. Drop samples that the next output does not depend on, in multiples of _down.
        needed = self._returned * self._down // self._up - self._reach
        drop = max(0, needed // self._down * self._down - self._begin)
        self._kept, self._begin = self._kept[drop:], self._begin + drop
        return resampled

    def finish(self) -> np.ndarray:
        """Return the remaining samples; S samples become round(S * new_rate / rate), half up."""
        received = self._begin + len(self._kept)
        return self._until((2 * received * self._up + self._down) // (2 * self._down))

    def _until(self, end: int) -> np.ndarray:
        """Return the output samples up to index `end` that have not been returned yet."""
        if end <= self._returned:
            return np.zeros(0, np.float32)
        from scipy.signal import resample_poly

        converted = resample_poly(self._kept, self._up, self._down, window=self._filter)
        # Output samples before those of `_kept`; exact, as _begin is a multiple of _down
        num_dropped = self._begin // self._down * self._up
        resampled = converted[self._returned - num_dropped : end - num_dropped].astype(np.float32)
        self._returned = end
        return resampled
