"""Prefix beam search for CTC without a dictionary."""

import math
from dataclasses import dataclass

from toolkit.decode.ctc.beam import BeamSearch, Options
from toolkit.decode.ctc.decoder import Decoder, Hypothesis, LogProbs, as_array
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.lang.units.characters import SPACE
from toolkit.lang.units.units import Units

SYMBOLS = 50
"""Number of symbols, the most likely of a frame, by which prefixes may be extended."""


@dataclass(frozen=True)
class PrefixConfig:
    """Settings of the search."""

    width: int = 256
    """Prefixes kept per frame (A24: 1 for sentences during training, 64 in the equal-batch study,
    256 for evaluation, 512 for the final table)."""
    margin: float = 25.0
    """Pruning beam in natural log units: prefixes this far below the best of a frame are dropped;
    inf always keeps `width` of them."""
    nbest: int = 1
    """Length of the n-best list."""

    def __post_init__(self) -> None:
        check_search(self.width, self.margin, SYMBOLS, self.nbest)


def check_search(width: int, margin: float, symbols: int, nbest: int) -> None:
    """Check the settings that all beam searches share; raise ValueError for invalid ones."""
    for name, value in (("width", width), ("symbols", symbols), ("nbest", nbest)):
        if value < 1:
            raise ValueError(f"{name} is {value}, needs to be at least 1")
    if not margin > 0:
        raise ValueError(f"margin is {margin}, needs to be above 0")


class PrefixDecoder(Decoder):
    """Finds the most likely label sequences, scored by log-probabilities summed over alignments.

    Label sequences that differ only in repeated spaces count as one. Of others with the same text
    (with and without the separator of double letters) the best is kept.

    Args:
      units: the output units, in the order of the posteriors' columns.
      config: settings of the search.
    """

    def __init__(self, units: Units, config: PrefixConfig = PrefixConfig()) -> None:
        self._units, self._nbest = units, config.nbest
        options = Options(units.blank, space_label(units), config.width, config.margin, SYMBOLS)
        tree = Dictionary.free(units).tree
        self._search = BeamSearch(tree, None, options)

    def decode(self, log_probs: LogProbs) -> list[Hypothesis]:
        """See `Decoder.decode`."""
        array = as_array(log_probs, self._units.size)
        # Twice as many, since several may have the same text.
        return read(self._search.run(array, 2 * self._nbest), self._units, self._nbest)


def space_label(units: Units) -> int:
    """Return the column of the space, -1 if there is none."""
    return units.symbols.index(SPACE) if SPACE in units.symbols else -1


def read(found: list[tuple[list[int], float]], units: Units, count: int) -> list[Hypothesis]:
    """Return at most `count` hypotheses with different texts from label sequences and scores.

    There is at least one: an empty one with the score -inf when there are no label sequences.
    """
    texts: dict[str, float] = {}
    for labels, score in found:
        texts.setdefault(" ".join(units.decode(labels).split()), score)
    if not texts:
        return [Hypothesis("", -math.inf)]
    return [Hypothesis(*item) for item in list(texts.items())[:count]]
