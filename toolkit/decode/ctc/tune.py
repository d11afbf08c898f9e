"""Tuning of language model weight and word bonus on the development set."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Protocol

from toolkit.config.convert import read_plain
from toolkit.decode.ctc.decoder import CtcDecodeError, LogProbs
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

Pair = tuple[float, float]
"""(language model weight, word bonus)."""


class Tunable(Protocol):
    """A decoder with a language model weight and a word bonus."""

    def texts(
        self, utterances: Sequence[LogProbs], pairs: Sequence[Pair], jobs: int = 1
    ) -> Iterator[list[str]]:
        """Yield for each pair the best text of every utterance, in order."""


@dataclass(frozen=True)
class TuneConfig:
    """The grid of weights to try."""

    lm_weights: tuple[float, ...] = (0.4, 0.7, 1.0, 1.5, 2.0)
    """Factors on the language model's log-probability."""
    word_bonuses: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Scores added per word; positive means more words."""

    def __post_init__(self) -> None:
        if not self.lm_weights or not self.word_bonuses:
            raise ValueError("lm_weights and word_bonuses need a value each")
        if not min(self.lm_weights) > 0:
            raise ValueError(f"lm_weights are {self.lm_weights}, need to be above 0")


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
    pairs = list(product(config.lm_weights, config.word_bonuses))
    tried = []
    found = decoder.texts(list(log_probs.values()), pairs, jobs)
    for pair, texts in zip(pairs, found, strict=True):
        scored = score(references, dict(zip(log_probs, texts, strict=True)))
        tried.append(Tuned(*pair, scored.errors, scored.ref_units))
    lines = ["lm_weight\tword_bonus\terrors\twords\twer"]
    lines += [
        f"{t.lm_weight:g}\t{t.word_bonus:g}\t{t.errors}\t{t.words}\t"
        f"{100 * t.errors / max(1, t.words):.2f}"
        for t in tried
    ]
    best = min(tried, key=lambda t: (t.errors, abs(t.word_bonus), t.lm_weight))
    write_atomically(out / "grid.tsv", "\n".join(lines) + "\n")
    write_atomically(stored, json.dumps(asdict(best), indent=1) + "\n")
    return best
