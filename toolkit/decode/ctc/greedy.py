"""Greedy CTC decoding: the best symbol of every frame (beam width 1 without a dictionary)."""

from toolkit.decode.ctc.decoder import Decoder, Hypothesis, LogProbs, as_array
from toolkit.lang.units.units import Units


class GreedyDecoder(Decoder):
    """Returns the text of the single best path, with its log-probability as the score.

    Args:
      units: the output units, in the order of the posteriors' columns.
    """

    def __init__(self, units: Units) -> None:
        self._units = units

    def decode(self, log_probs: LogProbs) -> list[Hypothesis]:
        """See `Decoder.decode`; one hypothesis."""
        array = as_array(log_probs, self._units.size)
        best = array.argmax(axis=1)
        score = float(array.max(axis=1, initial=float("-inf")).sum(dtype="float64"))
        text = self._units.decode(collapse(best.tolist(), self._units.blank))
        return [Hypothesis(" ".join(text.split()), score)]


def collapse(path: list[int], blank: int) -> list[int]:
    """Return the labels of a frame-wise path: repeats merged, then blanks removed."""
    return [
        symbol
        for symbol, before in zip(path, [-1, *path], strict=False)
        if symbol not in (before, blank)
    ]
