"""Reads audio block by block: files of any length, and raw samples from a pipe."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import torch
from torch import Tensor

from toolkit.corpus.audio_file import absence, open_at, open_audio, unread_end
from toolkit.corpus.sample_scale import FLOATS, SECONDS, SampleScale
from toolkit.features.audio import AudioError, check_rate, undecodable
from toolkit.features.resample import Resampler

logger = logging.getLogger(__name__)

CANCELLED = 0.01
"""Energy of the mean of all channels, as a share of theirs in the mean, below which they cancel:
20 dB. Of n channels that have nothing in common it is 1 / n."""


def audio_blocks(
    path: Path,
    sampling_rate: int,
    seconds: float,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    called: str | None = None,
) -> Iterator[Tensor]:
    """Yield the samples that `load_audio` returns, in blocks.

    Args:
      path, sampling_rate, offset, duration, channel: see `load_audio`.
      seconds: length of a block, at most.
      called: its name in messages; None: `path`.

    Yields:
      [S] float32 within [-1, 1].

    Raises:
      AudioError: see `load_audio`; for a truncated file only when its end is reached.
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
                    f"{name}: {offset + duration:.3f} s asked for, but the file ends at "
                    f"{file.frames / rate:.3f} s"
                )
        if length <= 0:
            raise AudioError(f"{name}: no samples")
        if channel is not None and channel >= file.channels:
            raise AudioError(f"{name}: has {file.channels} channels, no channel {channel + 1}")
        if duration is None and (fault := unread_end(path, file)):
            logger.warning("%s: %s", name, fault)
        with open_at(path, file, start) as part:
            blocks = _file_blocks(part, name, length, seconds, channel)
            yield from _resampled(blocks, rate, sampling_rate)


@contextmanager
def _reading(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise undecodable(name, path, error) from error


def _file_blocks(
    file: soundfile.SoundFile, name: str, length: int, seconds: float, channel: int | None
) -> Iterator[np.ndarray]:
    size, done = max(1, round(seconds * file.samplerate)), 0
    energy = own = 0.0  # of the mean of all channels, and of the channels in the mean
    scale = SampleScale() if file.subtype in FLOATS else None
    while done < length:
        samples = file.read(min(size, length - done), dtype="float32", always_2d=True)
        if not len(samples):
            raise AudioError(
                f"{name}: truncated, {done} of {length} samples could be decoded; "
                "fetch the file again"
            )
        done += len(samples)
        mixed = channel is None and samples.shape[1] > 1
        mono = samples.mean(axis=1) if mixed else samples[:, channel or 0]
        if not np.isfinite(mono).all():
            raise AudioError(f"{name}: holds values that are not numbers")
        if scale is not None:
            scale.add(mono)
            enough = scale.count >= SECONDS * file.samplerate or done >= length
            if enough and (fault := scale.fault):
                raise AudioError(f"{name}: {fault}")
        if mixed:
            energy += float(np.vdot(mono, mono))
            own += float(np.vdot(samples, samples)) / samples.shape[1]
        yield mono
    if energy < CANCELLED * own:
        logger.warning(
            "%s: its channels cancel when they are mixed (one has the opposite sign of another):"
            " take one of them with --channel",
            name,
        )


def pcm_blocks(file: BinaryIO, rate: int, sampling_rate: int, seconds: float) -> Iterator[Tensor]:
    """Yield the samples of a pipe as they come: 16 bits, signed, little-endian, one channel.

    Ctrl-C while waiting for samples ends the stream.

    Args:
      file: the pipe.
      rate: sampling rate of the pipe, in Hz.
      sampling_rate: rate to resample to, in Hz.
      seconds: length of a block.

    Raises:
      AudioError: the rate is no audio's.
    """
    check_rate(rate, "standard input")
    return _resampled(_pcm(file, 2 * max(1, round(seconds * rate))), rate, sampling_rate)


def _pcm(file: BinaryIO, size: int) -> Iterator[np.ndarray]:
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
    if rate == new_rate:
        yield from (torch.from_numpy(np.ascontiguousarray(block)) for block in blocks)
        return
    resampler = Resampler(rate, new_rate)
    for block in blocks:
        yield torch.from_numpy(resampler.push(block))
    yield torch.from_numpy(resampler.finish())
