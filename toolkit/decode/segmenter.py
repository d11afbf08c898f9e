"""Long recordings cut at pauses, in memory that does not grow with their length."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST, LEAST = 7.0, 1.5
"""Nats of log energy (30 and 6.5 dB): what is further below the loud frames is all equally quiet;
where loud and quiet frames are closer together energy does not tell speech from noise."""
SMOOTHED = 0.15
"""Seconds to either side over which a frame's speech score is averaged."""


@dataclass(frozen=True)
class SegmentConfig:
    """Where recordings are cut; times in seconds."""

    longest: float = 30.0
    """No segment is longer. A recording that is not is left in one piece."""
    shortest: float = 5.0
    """A pause is worth a cut when so much precedes it."""
    pause: float = 0.3
    """Shortest stretch without speech to cut in."""
    margin: float = 0.3
    """Silence that is kept around speech; the rest of a longer pause is left out, where the
    acoustic model is asked what is silence."""
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
    """First frame, from the recording's beginning."""
    features: Tensor
    """[T, F] its raw features."""


class Segmenter:
    """Takes a recording's features piece by piece and gives its segments.

    A frame's speech score is the mean of two: how far its energy lies between those of the quiet
    and the loud frames around, and what the acoustic model gives to speech; where only one of the
    two is known, that one, and where none is, all is speech. Stretches of low scores are pauses. A
    segment ends in the longest pause between `shortest` and `longest`, the last one among equals,
    or where there is none at the lowest score of the second half. What is held in memory is
    `longest` seconds and a piece.

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

    def push(self, features: Tensor, silence: Tensor | None = None) -> list[Segment]:
        """Take more frames; return the segments that are certain by now.

        Args:
          features: [T, F] raw log-mel energies.
          silence: [T] posteriors of silence; None, for all frames of a recording: not known.
        """
        if self._features is None:
            self._features = features.new_zeros(0, features.shape[1])
        self._features = torch.cat([self._features, features])
        # Where nothing is known, the energy stands for both.
        silence = features.new_full((len(features),), torch.nan) if silence is None else silence
        self._silence = torch.cat([self._silence, silence])
        found = []
        while len(self._features) > self._longest + 2 * self._margin:
            found += self._take(self._margin)
        return found

    def finish(self) -> list[Segment]:
        """Return the segments that are left."""
        found = []
        while self._features is not None and len(self._features):
            found += self._take(0)
        return found

    def _take(self, margin: int) -> list[Segment]:
        """Cut off what comes first: a segment, or a stretch without speech but for its margin."""
        speech = self._speech()
        if bool(self._silence[0].isnan()):
            # Energy is not sure enough to leave anything out.
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
        """Where a segment that begins at `begin` ends, and from where on the rest is looked at."""
        first, last = begin + self._shortest, begin + self._longest
        quiet = np.concatenate([[0], speech[: last + 1] < self._config.threshold, [0]])
        edges = np.flatnonzero(np.diff(quiet))
        pauses = [
            (stop - start, start, stop)
            for start, stop in edges.reshape(-1, 2).tolist()
            if stop - start >= self._pause and start >= first
        ]
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
        """[T] the speech score of every frame in memory."""
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
