"""Interpolated modified Kneser-Ney estimation (Chen and Goodman 1999, section 3), as in lmplz."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.lang.ngram.backoff import LOG_ZERO, BackoffModel, Level
from toolkit.lang.tables import END, EPSILON, START, UNKNOWN


class NgramError(ToolkitError):
    """Text from which no language model can be estimated."""


@dataclass(frozen=True)
class Discount:
    """The discounts of one order, for counts of 1, of 2 and of 3 or more.

    `rule` tells how: "modified" (three discounts from the counts of counts), "absolute" (one
    discount n1 / (n1 + 2 n2), where counts of counts do not give three between 0 and their count)
    or "fixed" (0.5, 1, 1.5, KenLM's fallback, where no n-gram occurs once or none twice).
    """

    values: tuple[float, float, float]
    rule: str


@dataclass(frozen=True)
class _Counts:
    """The n-grams of one order: see `Level`, with counts, before smoothing."""

    context: np.ndarray
    word: np.ndarray
    suffix: np.ndarray  # index in the level below of the n-gram without its first word
    raw: np.ndarray  # occurrences
    adjusted: np.ndarray  # occurrences at the highest order or after <s>, else left neighbours


def discount(adjusted: np.ndarray) -> Discount:
    """Derive one order's discounts from its n-grams' counts, [n] (zeros are ignored)."""
    n1, n2, n3, n4 = (int((adjusted == k).sum()) for k in (1, 2, 3, 4))
    if not (n1 and n2):
        return Discount((0.5, 1.0, 1.5), "fixed")
    y = n1 / (n1 + 2 * n2)
    if n3:
        values = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 < value <= k for k, value in enumerate(values, 1)):
            return Discount(values, "modified")
    return Discount((y, y, y), "absolute")


def estimate(
    sentences: Iterable[Sequence[str]],
    vocabulary: Collection[str],
    order: int = 3,
    min_counts: Sequence[int] = (1,),
) -> tuple[BackoffModel, list[Discount]]:
    """Estimate a word model; words outside `vocabulary` count as <UNK>.

    Every word of `vocabulary` and <UNK> get a probability, seen or not. Sentences that are all
    shorter than `order` give a model of lower order.

    Args:
      sentences: lists of words.
      vocabulary: words, without <s>, </s>, <UNK> (allowed, ignored).
      order: longest n-gram, in words.
      min_counts: see `NgramConfig.min_counts`.

    Returns:
      The model and its discounts by order.
    """
    words = sorted({*vocabulary, START, END, UNKNOWN} - {EPSILON})
    ids = {word: index for index, word in enumerate(words)}
    start, end, unknown = ids[START], ids[END], ids[UNKNOWN]
    tokens: list[int] = []
    for sentence in sentences:
        tokens.append(start)
        tokens.extend(ids.get(word, unknown) for word in sentence)
        tokens.append(end)
    return estimate_ids(np.array(tokens, dtype=np.int64), words, order, min_counts)


def estimate_ids(
    tokens: np.ndarray, vocabulary: Sequence[str], order: int, min_counts: Sequence[int] = (1,)
) -> tuple[BackoffModel, list[Discount]]:
    """Estimate a model of integer tokens.

    Args:
      tokens: the sentences, each `<s> ... </s>`, as indices into `vocabulary`, [T].
      vocabulary: symbols, <s> and </s> among them.
      order: longest n-gram.
      min_counts: see `NgramConfig.min_counts`.

    Returns:
      The model and its discounts by order.

    Raises:
      NgramError: no sentence.
    """
    if not len(tokens):
        raise NgramError("no sentence to estimate a language model from; is the text empty?")
    start = vocabulary.index(START)
    counts = _count(tokens, len(vocabulary), start, order)
    discounts = [discount(c.adjusted) for c in counts]

    levels: list[Level] = []
    lower = np.full(1, 1 / (len(vocabulary) - 1))  # uniform over all symbols but <s>
    keep_below = np.ones(1, dtype=bool)
    renumber = np.zeros(1, dtype=np.int64)
    for k, (c, d) in enumerate(zip(counts, discounts, strict=True)):
        least = min_counts[min(k, len(min_counts) - 1)]
        keep = (c.raw >= least) | (k == 0)
        taken = np.array([0.0, *d.values])[np.minimum(c.adjusted, 3)]
        left = np.where(keep, np.maximum(c.adjusted - taken, 0.0), 0.0)
        total = np.bincount(c.context, c.adjusted, minlength=len(keep_below))
        freed = np.bincount(c.context, c.adjusted - left, minlength=len(keep_below))
        denominator = np.maximum(total, 1)
        gamma = np.where(total > 0, freed / denominator, 1.0)
        probability = left / denominator[c.context] + gamma[c.context] * lower[c.suffix]
        if k == 0:
            probability[start] = 0.0
        else:
            levels[-1].backoff[:] = np.log10(gamma[keep_below])
        with np.errstate(divide="ignore"):
            logprob = np.maximum(np.log10(probability[keep]), LOG_ZERO)
        levels.append(
            Level(renumber[c.context[keep]], c.word[keep], logprob, np.zeros(int(keep.sum())))
        )
        lower, keep_below, renumber = probability, keep, np.cumsum(keep) - 1
    return BackoffModel(vocabulary, levels), discounts


def _count(tokens: np.ndarray, size: int, start: int, order: int) -> list[_Counts]:
    """Count the n-grams of every order up to `order`, or to the longest there is."""
    found = tokens  # index, at the present order, of the n-gram that ends at each token; -1: none
    levels = [
        _Counts(
            context=np.zeros(size, dtype=np.int64),
            word=np.arange(size),
            suffix=np.zeros(size, dtype=np.int64),
            raw=np.bincount(tokens, minlength=size),
            adjusted=np.bincount(tokens[tokens != start], minlength=size),
        )
    ]
    after_start = np.arange(size) == start
    for _ in range(1, order):
        context = np.concatenate([[-1], found[:-1]])
        context[tokens == start] = -1
        ends = np.flatnonzero(context >= 0)
        if not len(ends):
            break
        keys, first, inverse, raw = np.unique(
            context[ends] * size + tokens[ends],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        suffix = found[ends[first]]
        below = levels[-1]
        neighbours = np.bincount(suffix, minlength=len(below.raw))
        adjusted = np.where(after_start, below.raw, neighbours)
        if len(levels) == 1:
            adjusted[start] = 0
        levels[-1] = _Counts(below.context, below.word, below.suffix, below.raw, adjusted)
        after_start = after_start[keys // size]
        levels.append(_Counts(keys // size, keys % size, suffix, raw, raw))
        found = np.full(len(tokens), -1)
        found[ends] = inverse
    return levels
