"""Segmentation of long recordings at pauses, in memory that does not grow with their length."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST, LEAST = 7.0, 1.5
"""Energy range between quiet and loud frames, in nats of log energy (30 and 6.5 dB). Frames more
than `MOST` below the loud ones count as equally quiet; where the range is below `LEAST`, energy
does not tell speech from noise."""
SMOOTHED = 0.15
"""Seconds to either side of a frame over which its speech score is averaged."""


@dataclass(frozen=True)
class SegmentConfig:
    """Where recordings are cut; times in seconds."""

    longest: float = 30.0
    """Longest segment. A recording that is no longer is left in one piece."""
    shortest: float = 5.0
    """Shortest segment that may end in a pause."""
    pause: float = 0.3
    """Shortest pause to cut in."""
    margin: float = 0.3
    """Silence that is kept around speech. The rest of a longer pause is dropped, if the acoustic
    model's posteriors of silence are known."""
    threshold: float = 0.35
    """Speech score, 0 to 1, below which a frame belongs to a pause."""

    def __post_init__(self) -> None:
        if not 0 < self.shortest < self.longest:
            raise ValueError("need 0 < shortest < longest")
        if self.pause <= 0 or self.margin < 0 or not 0 < self.threshold < 1:
            raise ValueError("need pause > 0, margin >= 0 and 0 < threshold < 1")


@dataclass(frozen=True)
class Segment:
    """A stretch of a recording that is recognised as an utterance."""

    start: int
    """Number of its first frame in the recording, from 0."""
    features: Tensor
    """[T, F] its features before normalisation."""


class Segmenter:
    """Takes a recording's features block by block and returns its segments.

    The speech score of a frame is the mean of two values: the position of its energy between
    those of the quiet and the loud frames around it, and the acoustic model's posterior of speech.
    Where only one of the two is known, it is that one; where neither is, all frames count as
    speech. Stretches of low scores are pauses. A segment ends in the longest pause between
    `shortest` and `longest` seconds after its start, the last one among equals; if there is no
    pause, at the lowest score of its second half. Memory holds `longest` seconds and one block.

    Args:
      config: where to cut.
      frame_shift: seconds between frames.
    """

    def __init__(self, config: SegmentConfig, frame_shift: float) -> None:
        self._config = config
        self._longest = round(config.longest / frame_shift)
        self._shortest = round(config.shortest / frame_shift)
        self._pause = max(1, round(config.pause / frame_shift))
        self._margin = round(config.margin / frame_shift)
        self._smooth = round(SMOOTHED / frame_shift)
        self._begin = 0
        self._features: Tensor | None = None
        self._silence = torch.zeros(0)

    @property
    def num_buffered_frames(self) -> int:
        """Frames in memory, of which no segment has been made yet."""
        return 0 if self._features is None else len(self._features)

    def push(self, features: Tensor, silence: Tensor | None = None) -> list[Segment]:
        """Take more frames; return the segments that are complete.

        Args:
          features: [T, F] log-mel energies before normalisation.
          silence: [T] posteriors of silence; None if they are not known, for all blocks of the
            recording.
        """
        if self._features is None:
            self._features = features.new_zeros(0, features.shape[1])
        self._features = torch.cat([self._features, features])
        # NaN marks frames of unknown posterior, which are scored by energy alone.
        silence = features.new_full((len(features),), torch.nan) if silence is None else silence
        self._silence = torch.cat([self._silence, silence])
        found = []
        while len(self._features) > self._longest + 2 * self._margin:
            found += self._take(self._margin)
        return found

    def finish(self) -> list[Segment]:
        """Return the remaining segments."""
        found = []
        while self._features is not None and len(self._features):
            found += self._take(0)
        return found

    def _take(self, margin: int) -> list[Segment]:
        """Take off the first segment, or a stretch without speech except for its margin."""
        speech = self._speech()
        if bool(self._silence[0].isnan()):
            # Energy alone is not reliable enough to drop anything.
            if len(speech) <= self._longest:
                return self._cut(len(speech), slice(0, len(speech)))
            end, resume = self._best_cut(speech, 0, len(speech))
            return self._cut(resume, slice(0, end))
        loud = np.flatnonzero(speech >= self._config.threshold)
        if not len(loud):
            return self._cut(len(speech) - margin, None)
        begin = max(0, int(loud[0]) - self._margin)
        if begin > self._pause:
            return self._cut(begin, None)
        if len(speech) - begin <= self._longest:
            end = min(len(speech), int(loud[-1]) + 1 + self._margin)
            return self._cut(len(speech), slice(begin, end))
        end, resume = self._best_cut(speech, begin, self._margin)
        return self._cut(resume, slice(begin, end))

    def _best_cut(self, speech: np.ndarray, begin: int, margin: int) -> tuple[int, int]:
        """Return the end of the segment that begins at `begin`, and where the next one may begin.

        Both are frames; what lies between them is dropped.
        """
        first, last = begin + self._shortest, begin + self._longest
        quiet = np.concatenate([[0], speech[: last + 1] < self._config.threshold, [0]])
        edges = np.flatnonzero(np.diff(quiet))
        spans = edges.reshape(-1, 2).tolist()
        later = [span for span in spans if span[0] >= first]
        under_way = [(first, stop) for start, stop in spans if start < first]
        # Of a pause that begins too early the rest counts, where there is no other.
        for some in (later, under_way):
            pauses = [(b - a, a, b) for a, b in some if b - a >= self._pause]
            if pauses:
                _, start, stop = max(pauses)
                if stop - start > 2 * margin:
                    return start + margin, stop - margin
                return (start + stop) // 2, (start + stop) // 2
        middle = begin + self._longest // 2
        lowest = middle + int(speech[middle:last].argmin())
        return lowest, lowest

    def _cut(self, resume: int, kept: slice | None) -> list[Segment]:
        found = []
        if kept is not None:
            found = [Segment(self._begin + kept.start, self._features[kept].clone())]
        self._features, self._silence = self._features[resume:], self._silence[resume:]
        self._begin += resume
        return found

    def _speech(self) -> np.ndarray:
        """Return the speech scores [T] of all frames in memory."""
        energy = self._features.logsumexp(dim=1).numpy()
        low, high = np.percentile(energy, (5, 95))
        low, posterior = max(low, high - MOST), 1 - self._silence.numpy()
        if high - low < LEAST:
            score = np.where(np.isnan(posterior), 1.0, posterior)
        else:
            score = np.clip((energy - low) / (high - low), 0, 1)
            score = np.where(np.isnan(posterior), score, (score + posterior) / 2)
        width = 2 * self._smooth + 1
        padded = np.pad(score, self._smooth, mode="edge")
        return np.convolve(padded, np.full(width, 1 / width), "valid")
