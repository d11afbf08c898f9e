"""Tuning of language model weight and word bonus on the development set."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Protocol

from toolkit.config.fields import read_plain
from toolkit.decode.ctc.decoder import CtcDecodeError, LogProbs
from toolkit.decode.tuning import FEWEST_WORDS, Count
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

logger = logging.getLogger(__name__)
Pair = tuple[float, float]
"""(language model weight, word bonus)."""
EXTENSIONS = 4
"""How often a grid is extended where the best pair lies at its end. On AN4 (CR-CTC, 581 words) the
grid's own corner, 0.4 and 2, makes 37 errors."""


class Weighted(Protocol):
    """Settings of a decoder."""

    @property
    def lm_weight(self) -> float:
        """Factor on the language model's log-probability."""

    @property
    def word_bonus(self) -> float:
        """Added for each word."""


class Tunable(Protocol):
    """A decoder with a language model weight and a word bonus."""

    @property
    def config(self) -> Weighted:
        """Its weights before they are tuned, among other settings."""

    def texts(
        self, utterances: Sequence[LogProbs], pairs: Sequence[Pair], jobs: int = 1
    ) -> Iterator[list[str]]:
        """Yield for each pair the best text of every utterance, in order."""


@dataclass(frozen=True)
class TuneConfig:
    """The grid of weights to try; it is extended where the best pair lies at its end."""

    lm_weights: tuple[float, ...] = (0.4, 0.7, 1.0, 1.5, 2.0)
    """Factors on the language model's log-probability."""
    word_bonuses: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Scores added per word; positive means more words."""
    untuned_within: float | None = None
    """Keep the decoder's own weight and bonus unless others make fewer errors by more than so many
    standard errors of the difference; None: the fewest errors decide."""

    def __post_init__(self) -> None:
        if not self.lm_weights or not self.word_bonuses:
            raise ValueError("lm_weights and word_bonuses need a value each")
        if not min(self.lm_weights) > 0:
            raise ValueError(f"lm_weights are {self.lm_weights}, need to be above 0")
        if self.untuned_within is not None and not self.untuned_within >= 0:
            raise ValueError(f"untuned_within is {self.untuned_within}, needs to be 0 or more")


@dataclass(frozen=True)
class Tuned:
    """The chosen weights."""

    lm_weight: float
    word_bonus: float
    errors: int
    """Word errors with these weights."""
    words: int
    """Words of the references."""


def tune(
    decoder: Tunable,
    log_probs: Mapping[str, LogProbs],
    references: Mapping[str, str],
    config: TuneConfig,
    out: Path,
    jobs: int = 1,
) -> Tuned:
    """Decode with every pair of weight and bonus, and return the one with the fewest word errors.

    Ties go to the bonus nearest to 0, then to the smallest weight, which change the scores least.
    The decoder's own pair may be kept instead, see `TuneConfig.untuned_within`.
    With fewer than `FEWEST_WORDS` words the decoder's own pair is returned, and a warning says so.

    Args:
      decoder: with a beam narrow enough for so many decodes; the choice hardly depends on it.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      config: the grid.
      out: the folder that gets `grid.tsv` and, last, `tuned.json`; an existing `tuned.json` is
        returned without decoding.
      jobs: see `Decoder.decode_many`.

    Raises:
      CtcDecodeError: an existing `tuned.json` cannot be read.
    """
    stored = out / "tuned.json"
    if os.path.lexists(stored):
        return read_plain(stored, Tuned, CtcDecodeError, "remove it to tune again")
    weights, bonuses = sorted(set(config.lm_weights)), sorted(set(config.word_bonuses))
    words = sum(len(text.split()) for text in references.values())
    own = decoder.config.lm_weight, decoder.config.word_bonus
    if words < FEWEST_WORDS:
        logger.warning(
            "NOT TUNED: the development splits have %d words, less than %d; language model weight"
            " %g and word bonus %g stay as they are",
            *(words, FEWEST_WORDS, *own),
        )
        weights, bonuses = [own[0]], [own[1]]
    if config.untuned_within is not None:
        # An axis of one value is the user's choice.
        own = (
            weights[0] if len(weights) == 1 else own[0],
            bonuses[0] if len(bonuses) == 1 else own[1],
        )
        weights, bonuses = sorted({*weights, own[0]}), sorted({*bonuses, own[1]})
    tried: dict[Pair, Count] = {}
    for _ in range(1 + EXTENSIONS):
        pairs = [pair for pair in product(weights, bonuses) if pair not in tried]
        found = decoder.texts(list(log_probs.values()), pairs, jobs)
        for pair, texts in zip(pairs, found, strict=True):
            hypotheses = dict(zip(log_probs, texts, strict=True))
            scored = score(references, hypotheses).utterances if words else ()
            tried[pair] = Count.of([utterance.errors for utterance in scored], words)
        best = _chosen(tried, own, config.untuned_within)
        more = _beyond(weights, best[0], lambda w: w / 2, lambda w: 1.5 * w)
        more += _beyond(bonuses, best[1], lambda b: b - 1, lambda b: b + 1)
        if not more:
            break
    lines = ["lm_weight\tword_bonus\terrors\twords\twer"]
    lines += [
        f"{weight:g}\t{bonus:g}\t{errors}\t{words}\t{100 * errors / max(1, words):.2f}"
        for (weight, bonus), (errors, *_) in sorted(tried.items())
    ]
    write_atomically(out / "grid.tsv", "\n".join(lines) + "\n")
    chosen = Tuned(*best, tried[best].errors, words)
    write_atomically(stored, json.dumps(asdict(chosen), indent=1) + "\n")
    return chosen


def _chosen(tried: Mapping[Pair, Count], own: Pair, within: float | None) -> Pair:
    best = min(tried, key=lambda pair: (tried[pair].errors, abs(pair[1]), pair[0]))
    if within is not None and not tried[best].significantly_below(tried[own], within):
        return own
    return best


def _beyond(
    values: list[float],
    best: float,
    below: Callable[[float], float],
    above: Callable[[float], float],
) -> int:
    """Add a value beyond the end of an ordered axis if the best one lies there; how many.

    An axis of one value is the user's choice.
    """
    if len(values) == 1 or best not in (values[0], values[-1]):
        return 0
    if best == values[0]:
        values.insert(0, below(best))
    else:
        values.append(above(best))
    return 1
