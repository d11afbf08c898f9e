"""Perplexity and out-of-vocabulary rate of text under an n-gram model."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.tables import END, START, UNKNOWN

CHARGE = 1e-7
"""Probability that stands in for that of a word which a model lacks; the order of magnitude that
rare words have."""


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text."""

    sentences: int
    words: int
    """Words without sentence ends."""
    oov: int
    """Words outside the model's vocabulary."""
    ppl: float
    """Per word and sentence end, out-of-vocabulary words scored as <UNK>; infinite when the model
    has no <UNK> and the text has such words."""
    ppl_known: float
    """Per known word and sentence end; unknown words serve as context only."""
    ppl_charged: float
    """Per word and sentence end, every unknown word scored as `CHARGE`: for comparisons of models
    with different vocabularies, of which `ppl` and `ppl_known` favour the smaller."""

    @property
    def oov_rate(self) -> float:
        """Share of words outside the vocabulary, 0 to 1."""
        return self.oov / self.words if self.words else 0.0


def perplexity(model: BackoffModel, sentences: Iterable[Sequence[str]]) -> Perplexity:
    """Measure `model` on `sentences` (lists of normalised words)."""
    tokens: list[int] = []
    known: list[bool] = []
    count = 0
    for words in sentences:
        count += 1
        tokens.extend(model.word_ids([START, *words, END]))
        known.append(False)  # <s> is given, not predicted
        known.extend(word in model.ids and word != UNKNOWN for word in words)
        known.append(True)
    ids = np.array(tokens, dtype=np.int64)
    predicted = ids != model.ids[START]
    is_known = np.array(known, dtype=bool)
    logprob = model.token_logprobs(ids)
    oov = int((predicted & ~is_known).sum())
    unknown_scored = UNKNOWN in model.ids or oov == 0
    return Perplexity(
        sentences=count,
        words=int(predicted.sum()) - count,
        oov=oov,
        ppl=_ppl(logprob[predicted]) if unknown_scored else math.inf,
        ppl_known=_ppl(logprob[predicted & is_known]),
        ppl_charged=_ppl(np.where(is_known, logprob, math.log10(CHARGE))[predicted]),
    )


def _ppl(logprob: np.ndarray) -> float:
    return float(10.0 ** -logprob.mean()) if len(logprob) else math.nan
