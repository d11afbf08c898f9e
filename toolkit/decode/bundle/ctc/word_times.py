"""Times and confidences of words by CTC forced alignment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.decode.ctc.alignment import LabelTimes, align_labels
from toolkit.decode.ctc.decoder import LogProbs, as_array
from toolkit.decode.ctc.prefix import space_label
from toolkit.decode.transcript import Word
from toolkit.lang.units.units import Units


@dataclass(frozen=True)
class SpokenText:
    """When a text was spoken; confidences are geometric means of posteriors."""

    words: tuple[Word, ...]
    """Its words; of each, the labels' posteriors in the frames in which they stand."""
    units: tuple[Word, ...]
    """Its units, spaces left out."""
    log_likelihood_per_frame: float
    """Of the best path."""
    confidence: float
    """Of all labels together."""


class CtcWordAligner:
    """Finds when words and their units were spoken.

    Args:
      units: the network's output units.
      frame_shift: seconds between rows of log-probabilities.
      offset: seconds before the time that the first row stands for.
    """

    def __init__(self, units: Units, frame_shift: float, offset: float) -> None:
        self._units, self._shift, self._offset = units, frame_shift, offset
        self._space = space_label(units)

    def __call__(self, words: Sequence[str], log_probs: LogProbs) -> SpokenText:
        """Align words.

        Args:
          words: which the units can write.
          log_probs: [T, C].

        Raises:
          CtcDecodeError: there are fewer frames than labels.
          UnitsError: the units cannot write a word.
        """
        labels, spans = self._labels(words)
        if not labels:
            return SpokenText((), (), 0.0, 0.0)
        array = as_array(log_probs, self._units.size)
        times = align_labels(array, labels, self._units.blank)
        symbols = self._units.symbols
        units = tuple(
            self._spoken(symbols[label], times, i, i + 1)
            for i, label in enumerate(labels)
            if label != self._space
        )
        return SpokenText(
            tuple(self._spoken(w, times, *span) for w, span in zip(words, spans, strict=True)),
            units,
            times.score / len(array),
            _confidence(times, 0, len(labels)),
        )

    def evenly(self, words: Sequence[str], frames: int) -> tuple[Word, ...]:
        """Return words of equal length, for frames too few to align them; their confidence is 0."""
        bounds = [self._seconds(frames * n / len(words)) for n in range(len(words) + 1)]
        spans = zip(words, bounds[:-1], bounds[1:], strict=True)
        return tuple(Word(word, start, end, 0.0) for word, start, end in spans)

    def _labels(self, words: Sequence[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the labels of a text and where in them each word begins and ends."""
        labels: list[int] = []
        spans = []
        for word in words:
            if labels and self._space >= 0:
                labels.append(self._space)
            begin = len(labels)
            labels += self._units.encode(word)
            spans.append((begin, len(labels)))
        return labels, spans

    def _spoken(self, name: str, times: LabelTimes, begin: int, end: int) -> Word:
        start, stop = map(self._seconds, (times.starts[begin], times.ends[end - 1]))
        return Word(name, start, stop, _confidence(times, begin, end))

    def _seconds(self, frame: float) -> float:
        return round(self._offset + float(frame) * self._shift, 3)


def _confidence(times: LabelTimes, begin: int, end: int) -> float:
    """Return the geometric mean of the labels' posteriors in their frames."""
    frames = np.sum(times.ends[begin:end] - times.starts[begin:end])
    return float(np.exp(np.sum(times.log_posteriors[begin:end]) / frames))
