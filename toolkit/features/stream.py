"""Computes features of audio of any length: files in blocks, streams in chunks."""

import logging
from pathlib import Path

import soundfile
import torch
from torch import Tensor

from toolkit.corpus.audio import absence, open_audio, unread_end
from toolkit.features.audio import AudioError, load_audio, undecodable
from toolkit.features.frontend import Frontend

logger = logging.getLogger(__name__)
BLOCK = 60
"""Seconds of audio that are read at a time."""
OVERLAP = 1
"""Seconds that neighbouring blocks share: longer than windows and resampling filters."""


def extract_file(path: Path, frontend: Frontend, channel: int | None = None) -> Tensor:
    """Compute the features of a file, equal to `frontend(load_audio(path))`, block by block.

    Blocks begin at whole seconds, where samples of every rate and frames coincide. If the end of
    the file is missing, a warning is logged.

    Args:
      path: an audio file.
      frontend: its frame shift divides a second.
      channel: the channel of the file, counted from 0; None for the mean of all channels.

    Returns:
      [T, F] float32, T = round(S / step).

    Raises:
      AudioError: as `load_audio`.
      FrontendError: as `Frontend`.
    """
    rate = frontend.config.sampling_rate
    seconds = _whole_seconds(path)
    if seconds <= BLOCK + OVERLAP:
        return frontend(load_audio(path, rate, channel=channel))
    per_second = round(1000 / frontend.config.frame_shift_ms)
    parts = []
    for start in range(0, seconds, BLOCK):
        # Read with an overlap on both sides, then drop its frames: all windows are complete.
        first = max(0, start - OVERLAP)
        last = start + BLOCK >= seconds
        length = None if last else start + BLOCK + OVERLAP - first
        if length is not None and first + length > seconds:
            length = None
        frames = frontend(load_audio(path, rate, first, length, channel))
        skipped = (start - first) * per_second
        # A copy frees the frames of the overlap, which a view would keep in memory.
        parts.append(frames[skipped : None if last else skipped + BLOCK * per_second].clone())
    return torch.cat(parts)


class StreamingFrontend:
    """Computes a stream's features chunk by chunk; the result equals that of the whole.

    A frame is returned as soon as all samples of its window have arrived; frames whose windows
    reach beyond the last sample are returned at the end.

    Args:
      frontend: the front end.
    """

    def __init__(self, frontend: Frontend) -> None:
        config = frontend.config
        self._frontend = frontend
        self._step = round(config.frame_shift_ms * config.sampling_rate / 1000)
        self._window = round(config.frame_length_ms * config.sampling_rate / 1000)
        # Number of frames before the next one that stay in memory. They make the block long enough
        # for the front end, and keep the next frame's window away from the mirrored edge.
        self._margin = -(-(self._window + self._step) // (2 * self._step))
        self._kept = torch.zeros(0)
        self._begin = 0  # index of the first sample of `_kept`: a multiple of the step
        self._returned = 0

    @property
    def seconds(self) -> float:
        """Seconds of audio taken so far."""
        return (self._begin + len(self._kept)) / self._frontend.config.sampling_rate

    def push(self, samples: Tensor) -> Tensor:
        """Take the next samples [S]; return the frames [T, F] whose windows are complete."""
        self._kept = torch.cat([self._kept, samples])
        received = self._begin + len(self._kept)
        # The window of frame t ends at t * step + step / 2 + window / 2.
        end = (received - self._step // 2 - self._window // 2) // self._step + 1
        if end <= self._returned or len(self._kept) < self._window:
            return torch.zeros(0, self._frontend.config.dimension)
        frames = self._until(end)
        drop = (self._returned - self._margin) * self._step - self._begin
        if drop > 0:
            self._kept, self._begin = self._kept[drop:], self._begin + drop
        return frames

    def finish(self) -> Tensor:
        """Return the remaining frames.

        Raises:
          FrontendError: the stream has fewer samples than one window.
        """
        received = self._begin + len(self._kept)
        return self._until((received + self._step // 2) // self._step)

    def _until(self, end: int) -> Tensor:
        """Return the frames up to index `end` that have not been returned yet."""
        num_dropped = self._begin // self._step
        frames = self._frontend(self._kept)[self._returned - num_dropped : end - num_dropped]
        self._returned = max(end, self._returned)
        return frames


def _whole_seconds(path: Path) -> int:
    """Return a file's duration, rounded down to seconds."""
    if reason := absence(path):
        raise AudioError(f"{path}: {reason}")
    try:
        with open_audio(path) as file:
            if fault := unread_end(path, file):
                logger.warning("%s: %s", path, fault)
            return file.frames // file.samplerate
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise undecodable(path, path, error) from error
