"""Properties of audio files, found by decoding them from the first sample to the last."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import soundfile

from toolkit.corpus.audio_file import CHAINED, missing_samples, open_audio, rate_fault
from toolkit.corpus.audio_headers import ogg_end
from toolkit.corpus.sample_scale import FLOATS, SampleScale
from toolkit.processes.workers import map_in_processes
from toolkit.storage.digests import FileDigest, file_digest
from toolkit.storage.reading import regular

FILES_PER_TASK = 16
BLOCK = 1 << 18


@dataclass(frozen=True)
class AudioInfo:
    """The properties of a decoded file."""

    path: str
    """Path of the file."""
    sampling_rate: int = 0
    """Hz; 0 where not even the header could be read."""
    channels: int = 0
    """Number of channels."""
    declared: int = 0
    """Samples per channel according to the header."""
    decoded: int = 0
    """Samples per channel that could be decoded."""
    silent: bool = False
    """Whether every sample is zero, of several channels in their mean."""
    silent_channels: tuple[bool, ...] = ()
    """Whether every sample is zero, for each channel."""
    digest: str = ""
    """Digest of the 16-bit samples; empty where there are none."""
    error: str | None = None
    """The decoder's message, if it failed."""
    file: FileDigest | None = None
    """Digest of the file's bytes; None where it cannot be read."""
    not_numbers: tuple[int, int] | None = None
    """First and last sample that is infinite or not a number, in any channel."""
    bad_rate: str = ""
    """What is wrong with the sampling rate, if it is implausible."""
    bad_scale: str = ""
    """What is wrong with float samples that are scaled to integers."""
    open_end: bool = False
    """Whether the end of an Ogg file is not marked."""


def read_audio_info(
    paths: Iterable[str], jobs: int = 1, progress: Callable[[int, int], None] | None = None
) -> dict[str, AudioInfo]:
    """Decode every file once, in `jobs` processes; the result does not depend on their number.

    `progress` is called with (files done, files).
    """
    unique = sorted(set(paths))
    tasks = [unique[i : i + FILES_PER_TASK] for i in range(0, len(unique), FILES_PER_TASK)]
    info = {}
    for results in map_in_processes(_decode_all, tasks, jobs):
        info.update({item.path: item for item in results})
        if progress is not None:
            progress(len(info), len(unique))
    return info


def _decode_all(paths: list[str]) -> list[AudioInfo]:
    return [decode(path) for path in paths]


def decode(path: str) -> AudioInfo:
    """Read a file to its end; never raises for a broken one."""
    rate = channels = declared = decoded = 0
    silent, digest, error = True, hashlib.blake2b(digest_size=16), None
    sounding = np.zeros(0, bool)  # [channels]
    content: FileDigest | None = None
    bad: tuple[int, int] | None = None
    scale = SampleScale()
    end = ""
    try:
        content = file_digest(regular(path))  # first: the decoder then finds the file in memory
        with open_audio(path, in_order=True) as file:
            rate, channels = file.samplerate, file.channels
            sounding = np.zeros(channels, bool)
            declared = file.frames + missing_samples(path, file)
            # libsndfile does not scale floats where it is asked for integers.
            kind = "float32" if file.subtype in FLOATS else "int16"
            while len(block := file.read(BLOCK, dtype=kind, always_2d=True)) > 0:
                if kind == "float32":
                    wrong = np.flatnonzero(~np.isfinite(block).all(axis=1)) + decoded
                    if len(wrong):
                        bad = (bad[0] if bad else int(wrong[0]), int(wrong[-1]))
                    scale.add(block.mean(axis=1))
                    block = _int16(block)
                decoded += len(block)
                silent = silent and not np.any(block.sum(axis=1, dtype=np.int64))
                if not sounding.all():
                    sounding |= np.any(block, axis=0)
                digest.update(block.tobytes())
            if file.format == "OGG":
                with open(path, "rb") as pages:
                    end = ogg_end(pages)
                error = CHAINED if end == "chained" else None
    except (soundfile.SoundFileError, OSError) as problem:
        error = str(problem).rstrip(": ")
    return AudioInfo(
        path,
        rate,
        channels,
        declared,
        decoded,
        silent,
        tuple((~sounding).tolist()),
        digest.hexdigest() if decoded else "",
        error,
        content,
        bad,
        rate_fault(rate) if rate else "",
        scale.fault,
        end == "open",
    )


def _int16(samples: np.ndarray) -> np.ndarray:
    """Round samples in [-1, 1] to 16 bits, so that a copy in floats has the digest of the file."""
    scaled = np.rint(np.nan_to_num(samples).clip(-1, 1) * np.float32(32768))
    return scaled.clip(max=32767).astype(np.int16)
