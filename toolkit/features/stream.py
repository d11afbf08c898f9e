"""Features of audio files of any length, in memory that does not grow with the samples."""

from pathlib import Path

import soundfile
import torch
from torch import Tensor

from toolkit.features.audio import AudioError, load_audio
from toolkit.features.frontend import Frontend

BLOCK = 60
"""Seconds that are read at a time."""
OVERLAP = 1
"""Seconds that neighbouring blocks share, more than windows and resampling filters reach."""


def features_of_file(path: Path, frontend: Frontend) -> Tensor:
    """The features of a whole file, as `frontend(load_audio(path))` but block by block.

    Blocks begin at whole seconds, where the samples of every rate and the frames coincide.

    Args:
      path: an audio file.
      frontend: its frame shift divides a second.

    Returns:
      [T, F] float32, T = round(S / step).

    Raises:
      AudioError: as `load_audio`.
      FrontendError: as `Frontend`.
    """
    rate = frontend.config.sampling_rate
    seconds = _whole_seconds(path)
    if seconds <= BLOCK + OVERLAP:
        return frontend(load_audio(path, rate))
    per_second = round(1000 / frontend.config.frame_shift_ms)
    parts = []
    for start in range(0, seconds, BLOCK):
        first = max(0, start - OVERLAP)
        last = start + BLOCK >= seconds
        length = None if last else start + BLOCK + OVERLAP - first
        if length is not None and first + length > seconds:
            length = None
        frames = frontend(load_audio(path, rate, first, length))
        skipped = (start - first) * per_second
        # A copy, so that the frames that blocks share are not kept.
        parts.append(frames[skipped : None if last else skipped + BLOCK * per_second].clone())
    return torch.cat(parts)


def _whole_seconds(path: Path) -> int:
    try:
        info = soundfile.info(str(path))
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError(f"{path}: {error} (missing, or not audio)") from error
    return info.frames // info.samplerate
