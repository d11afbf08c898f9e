"""Back-off n-gram models: lookup, estimation, interpolation, pruning, perplexity."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.lang.tables import END, EPSILON, START, UNKNOWN

LOG_ZERO = -99.0
"""ARPA's log10 probability of impossible events, such as <s> after a word."""


@dataclass(frozen=True)
class Level:
    """The N n-grams of one order, sorted by (context, word)."""

    context: np.ndarray
    """[N] index, in the level below, of the n-gram without its last word; 0 at order 1."""
    word: np.ndarray
    """[N] id of the last word."""
    logprob: np.ndarray
    """[N] log10 probability."""
    backoff: np.ndarray
    """[N] log10 back-off weight."""


def check_levels(vocabulary: Sequence[str], levels: Sequence[Level]) -> None:
    """Check a file's arrays for use in a `BackoffModel`.

    Raises:
      ValueError: the arrays do not have the form of `Level`.
    """
    below = 1  # number of n-grams of the level below
    if len(set(vocabulary)) != len(vocabulary) or not {START, END} <= set(vocabulary):
        raise ValueError("the vocabulary has a word twice, or lacks <s> or </s>")
    if not levels or not np.array_equal(levels[0].word, np.arange(len(vocabulary))):
        raise ValueError("its unigrams are not the words of the vocabulary")
    for level in levels:
        fields = (level.context, level.word, level.logprob, level.backoff)
        if any(field.ndim != 1 or len(field) != len(level.word) for field in fields):
            raise ValueError("its arrays have different lengths")
        if any(field.dtype.kind not in kind for field, kind in zip(fields, "iiff", strict=True)):
            raise ValueError("its arrays have wrong types")
        for ids, size in ((level.context, below), (level.word, len(vocabulary))):
            if len(ids) and not (ids.min() >= 0 and ids.max() < size):
                raise ValueError("an n-gram refers to a missing context or word")
        if (np.diff(level.context * np.int64(len(vocabulary)) + level.word) <= 0).any():
            raise ValueError("its n-grams are not sorted")
        if not (np.isfinite(level.logprob).all() and np.isfinite(level.backoff).all()):
            raise ValueError("its probabilities are not finite")
        below = len(level.word)


class BackoffModel:
    """An n-gram model with back-off: p(w|h) if hw is listed, else backoff(h) p(w|h').

    h' is the history h without its first word. A word's id is its index in `vocabulary` and in the
    first level, which lists every word. An empty highest level is dropped, unless the level below
    has back-off weights.
    """

    def __init__(self, vocabulary: Sequence[str], levels: Sequence[Level]) -> None:
        self.vocabulary = tuple(vocabulary)
        order = len(levels)
        while order and not len(levels[order - 1].word):
            if order > 1 and levels[order - 2].backoff.any():
                break  # the level is empty, but the back-off weights below count
            order -= 1
        self.levels = tuple(levels[:order])
        self.ids = {word: index for index, word in enumerate(self.vocabulary)}
        # One ascending number for each (context, word) of a level, for binary search
        self._keys = [level.context * len(self.vocabulary) + level.word for level in self.levels]

    @property
    def order(self) -> int:
        """Number of levels: length of the longest n-gram, or one more if the highest is empty."""
        return len(self.levels)

    def find(self, level: int, context: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Return the indices of n-grams in a level.

        Args:
          level: index of the level, from 0; a level above the highest lists nothing.
          context: indices in the level below, [N]; -1 matches nothing.
          word: word ids, [N].

        Returns:
          Indices in the level, [N]; -1: the n-gram is not listed.
        """
        if level >= self.order or not len(self._keys[level]):
            return np.full(len(word), -1)
        keys = self._keys[level]
        query = context * len(self.vocabulary) + word
        index = np.minimum(np.searchsorted(keys, query), len(keys) - 1)
        return np.where((keys[index] == query) & (context >= 0), index, -1)

    def extend(
        self, level: int, context: np.ndarray, word: np.ndarray, shorter: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log10 probabilities with one more word of context.

        Args:
          level: number of context words, from 1.
          context: index of the context in level `level - 1`, [N]; -1: not listed.
          word: word ids, [N].
          shorter: log10 probabilities given one context word less, [N].

        Returns:
          Indices of the n-grams in level `level` (-1: not listed) and log10 probabilities, [N].
        """
        # log p(w | u h) if u h w is listed, else log backoff(u h) + log p(w | h)
        ngram = self.find(level, context, word)
        backed = shorter + np.where(context >= 0, self.levels[level - 1].backoff[context], 0.0)
        if not len(self.levels[level].word):
            return ngram, backed
        return ngram, np.where(ngram >= 0, self.levels[level].logprob[ngram], backed)

    def start(self, count: int) -> np.ndarray:
        """Return `count` states after <s>: [N, order - 1].

        Column k is the index, in level k, of the n-gram of the last k + 1 words; -1: not listed.
        """
        state = np.full((count, max(self.order - 1, 1)), -1, dtype=np.int64)
        state[:, 0] = self.ids[START]
        return state

    def step(self, state: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append a word to each state.

        Args:
          state: see `start`, [N, order - 1].
          word: word ids, [N].

        Returns:
          Log10 probabilities [N] and the new states.
        """
        # p(w), then p(w | v), p(w | u v), ...: each order refines or backs off the one before.
        logprob = self.levels[0].logprob[word]
        next_state = np.empty_like(state)
        next_state[:, 0] = word
        for k in range(1, self.order):
            ngram, logprob = self.extend(k, state[:, k - 1], word, logprob)
            if k < self.order - 1:
                next_state[:, k] = ngram
        return logprob, next_state

    def word_ids(self, words: Iterable[str]) -> list[int]:
        """Return word ids; unknown words have the id of <UNK>, or -1 if the model has no <UNK>."""
        unknown = self.ids.get(UNKNOWN, -1)
        return [self.ids.get(word, unknown) for word in words]

    def token_logprobs(self, tokens: np.ndarray) -> np.ndarray:
        """Return the log10 probability of each token of running text.

        Args:
          tokens: word ids of all sentences, each `<s> ... </s>`, [T]; -1: a word that the model
            lacks, which ends the context and scores LOG_ZERO.

        Returns:
          Log10 probabilities, [T]; those of <s> are LOG_ZERO.
        """
        # All tokens at once, with one more word of context in each step.
        start = self.ids[START]
        unknown = tokens < 0
        word = np.where(unknown, 0, tokens)
        logprob = self.levels[0].logprob[word]
        last = np.where(unknown, -1, tokens)
        for k in range(1, self.order):
            # The n-gram that ends at the token before is the context; <s> has none.
            context = np.concatenate([[-1], last[:-1]])
            context[tokens == start] = -1
            last, logprob = self.extend(k, context, word, logprob)
            last[unknown] = -1
        return np.where(unknown, LOG_ZERO, logprob)

    def logprob(self, sentence: Sequence[str]) -> float:
        """Return the log10 probability of a sentence with its end."""
        return float(self.logprobs([sentence])[0])

    def logprobs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the log10 probabilities of N sentences with their ends: [N]."""
        tokens = [self.word_ids([START, *sentence, END]) for sentence in sentences]
        begin = np.cumsum([0, *map(len, tokens)])[:-1]
        scores = self.token_logprobs(
            np.array([x for sentence_ids in tokens for x in sentence_ids], dtype=np.int64)
        )
        scores[begin] = 0.0  # <s> is given, not predicted
        return np.add.reduceat(scores, begin)

    def distribution(self, history: Sequence[str]) -> np.ndarray:
        """Return p(w | history) for all V words of the vocabulary: [V].

        A history that begins with <s> begins at the start of a sentence.
        """
        state = np.full((1, max(self.order - 1, 1)), -1, dtype=np.int64)
        for index in self.word_ids(history):
            state = self.step(state, np.array([index]))[1]
        words = np.arange(len(self.vocabulary))
        logprob, _ = self.step(np.repeat(state, len(words), axis=0), words)
        return np.where(logprob <= LOG_ZERO, 0.0, 10.0**logprob)

    def restrict(self, words: Collection[str]) -> "BackoffModel":
        """Drop n-grams with words outside `words` (<s>, </s>, <UNK> stay); weights do not change.

        The probability of dropped n-grams is not redistributed, as in Kaldi's arpa2fst.
        """
        retained_words = {START, END, UNKNOWN, *words}
        keep_word = np.array([word in retained_words for word in self.vocabulary])
        renumber = np.cumsum(keep_word) - 1
        levels = []
        below = np.zeros(1, dtype=np.int64)  # new index of each entry of the level below
        keep_below = np.ones(1, dtype=bool)
        for level in self.levels:
            # An n-gram stays if its last word and its context do.
            keep = keep_below[level.context] & keep_word[level.word]
            levels.append(
                Level(
                    context=below[level.context[keep]],
                    word=renumber[level.word[keep]],
                    logprob=level.logprob[keep],
                    backoff=level.backoff[keep],
                )
            )
            keep_below, below = keep, np.cumsum(keep) - 1
        return BackoffModel([w for w in self.vocabulary if w in retained_words], levels)


SMALLEST = 1e-12
"""Probability mass below which the words that a history does not list count as impossible."""


def ngrams(model: BackoffModel, level: int) -> np.ndarray:
    """Return the n-grams of a level (from 0) as word ids: [N, level + 1]."""
    # Follow the contexts down to the first level, and write the last words from right to left.
    words = np.empty((len(model.levels[level].word), level + 1), dtype=np.int64)
    index = np.arange(len(words))
    for column in range(level, -1, -1):
        words[:, column] = model.levels[column].word[index]
        index = model.levels[column].context[index]
    return words


def last_word_logprobs(model: BackoffModel, words: np.ndarray) -> np.ndarray:
    """Return log10 p(last word | preceding words) of each row of `words` [N, n]: [N]."""
    state = np.full((len(words), max(model.order - 1, 1)), -1, dtype=np.int64)
    for column in range(words.shape[1] - 1):
        state = model.step(state, words[:, column])[1]
    return model.step(state, words[:, -1])[0]


def unlisted_mass(level: Level, logprob: np.ndarray, contexts: int) -> np.ndarray:
    """Return the probability mass of the words not listed in each context: [contexts].

    Args:
      level: the n-grams.
      logprob: [N] their log10 probabilities.
      contexts: number of contexts.
    """
    return 1.0 - np.bincount(level.context, 10.0**logprob, minlength=contexts)


def backoff_weights(unlisted: np.ndarray, shorter: np.ndarray) -> np.ndarray:
    """Return the log10 back-off weights of contexts.

    Args:
      unlisted: [contexts] mass of the words that each context does not list, see `unlisted_mass`.
      shorter: [contexts] mass of the same words given the context without its first word.
    """
    # alpha(h) = (1 - sum p(w | h)) / (1 - sum p(w | h')), the sums over the words listed after h
    possible = (unlisted > SMALLEST) & (shorter > SMALLEST)
    ratio = np.where(possible, unlisted, 1.0) / np.where(possible, shorter, 1.0)
    return np.where(possible, np.maximum(np.log10(ratio), LOG_ZERO), LOG_ZERO)


def renormalised(vocabulary: Sequence[str], levels: Sequence[Level]) -> BackoffModel:
    """Build a model from the probabilities in `levels`, with new back-off weights.

    A history after which no word is listed gets the weight 1. The 1-grams are not changed.
    """
    rebuilt = [replace(levels[0], backoff=np.zeros(len(levels[0].word)))]
    for level in levels[1:]:
        if not len(level.word):
            break
        # p(w | h') of each n-gram h w, by the model of lower orders, whose weights are final
        below = BackoffModel(vocabulary, rebuilt)
        longer = BackoffModel(vocabulary, [*rebuilt, level])
        lower = last_word_logprobs(below, ngrams(longer, len(rebuilt))[:, 1:])
        size = len(rebuilt[-1].word)
        weights = backoff_weights(
            unlisted_mass(level, level.logprob, size), unlisted_mass(level, lower, size)
        )
        continued = np.bincount(level.context, minlength=size) > 0
        rebuilt[-1] = replace(rebuilt[-1], backoff=np.where(continued, weights, 0.0))
        rebuilt.append(replace(level, backoff=np.zeros(len(level.word))))
    return BackoffModel(vocabulary, rebuilt)


class NgramError(ToolkitError):
    """Raised for text from which no language model can be estimated."""


@dataclass(frozen=True)
class Discount:
    """Discounts of one order (Kneser-Ney)."""

    values: tuple[float, float, float]
    """Discounts for counts of 1, for counts of 2, and for counts of 3 or more."""
    rule: str
    """"modified": three discounts D_k from n_k, the numbers of n-grams that occur k times.
    "absolute": one discount n_1 / (n_1 + 2 n_2), if n_3 is 0 or a D_k is not above 0 and at most k.
    "fixed": 0.5, 1 and 1.5, KenLM's fallback, if n_1 or n_2 is 0."""


@dataclass(frozen=True)
class _Counts:
    """The n-grams of one order (see `Level`) with unsmoothed counts."""

    context: np.ndarray
    word: np.ndarray
    suffix: np.ndarray  # index in the level below of the n-gram without its first word
    raw: np.ndarray  # occurrences
    adjusted: np.ndarray  # occurrences at the highest order or after <s>, else left neighbours


def discount(adjusted: np.ndarray) -> Discount:
    """Estimate the discounts of one order from its n-gram counts [N]; zeros are ignored."""
    # n_k: number of n-grams that occur k times (Chen and Goodman 1999, equation 17):
    # Y = n1 / (n1 + 2 n2), D_1 = 1 - 2 Y n2 / n1, D_2 = 2 - 3 Y n3 / n2, D_3+ = 3 - 4 Y n4 / n3
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
    """Estimate a model of words; words outside `vocabulary` count as <UNK>.

    Every word of `vocabulary` and <UNK> gets a probability, whether seen or not. If all sentences
    are shorter than `order`, the model has a lower order.

    Args:
      sentences: lists of words.
      vocabulary: words; <s>, </s> and <UNK> are added.
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
      vocabulary: symbols, including <s> and </s>.
      order: longest n-gram.
      min_counts: see `NgramConfig.min_counts`.

    Returns:
      The model and its discounts by order.

    Raises:
      NgramError: there is no sentence.
    """
    if not len(tokens):
        raise NgramError("cannot estimate a language model: the text contains no sentence")
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
        # p(w|h) = max(a(hw) - D(a), 0) / a(h) + gamma(h) p(w|h'), with adjusted counts a, discounts
        # D and h' = h without its first word (Chen and Goodman 1999, section 3).
        discounts_by_ngram = np.array([0.0, *d.values])[np.minimum(c.adjusted, 3)]
        discounted = np.where(keep, np.maximum(c.adjusted - discounts_by_ngram, 0.0), 0.0)
        total = np.bincount(c.context, c.adjusted, minlength=len(keep_below))
        freed = np.bincount(c.context, c.adjusted - discounted, minlength=len(keep_below))
        denominator = np.maximum(total, 1)
        # gamma(h): the share of the mass of h that discounting and cutoffs free, [contexts]
        gamma = np.where(total > 0, freed / denominator, 1.0)
        probability = discounted / denominator[c.context] + gamma[c.context] * lower[c.suffix]
        if k == 0:
            probability[start] = 0.0
        else:
            # Interpolated probabilities make gamma(h) the back-off weight of h.
            levels[-1].backoff[:] = np.log10(gamma[keep_below])
        with np.errstate(divide="ignore"):
            logprob = np.maximum(np.log10(probability[keep]), LOG_ZERO)
        levels.append(
            Level(renumber[c.context[keep]], c.word[keep], logprob, np.zeros(int(keep.sum())))
        )
        lower, keep_below, renumber = probability, keep, np.cumsum(keep) - 1
    return BackoffModel(vocabulary, levels), discounts


def _count(tokens: np.ndarray, size: int, start: int, order: int) -> list[_Counts]:
    """Count n-grams of all orders up to `order`, or up to the longest sentence."""
    # [T] index, at the present order, of the n-gram that ends at each token; -1: none
    ngram_at = tokens
    levels = [
        _Counts(
            context=np.zeros(size, dtype=np.int64),
            word=np.arange(size),
            suffix=np.zeros(size, dtype=np.int64),
            raw=np.bincount(tokens, minlength=size),
            adjusted=np.bincount(tokens[tokens != start], minlength=size),
        )
    ]
    after_start = np.arange(size) == start  # [N]: the n-gram begins with <s>
    for _ in range(1, order):
        context = np.concatenate([[-1], ngram_at[:-1]])
        context[tokens == start] = -1
        ends = np.flatnonzero(context >= 0)
        if not len(ends):
            break
        # An n-gram is (index of its context, last word); distinct ones are numbered in order.
        keys, first, inverse, raw = np.unique(
            context[ends] * size + tokens[ends],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        # The n-gram without its first word ends at the same token, at the order below.
        suffix = ngram_at[ends[first]]
        below = levels[-1]
        # Kneser-Ney: lower orders count different left neighbours. N-grams that begin with <s> have
        # none, so their occurrences count.
        neighbours = np.bincount(suffix, minlength=len(below.raw))
        adjusted = np.where(after_start, below.raw, neighbours)
        if len(levels) == 1:
            adjusted[start] = 0
        levels[-1] = _Counts(below.context, below.word, below.suffix, below.raw, adjusted)
        after_start = after_start[keys // size]
        levels.append(_Counts(keys // size, keys % size, suffix, raw, raw))
        ngram_at = np.full(len(tokens), -1)
        ngram_at[ends] = inverse
    return levels


def interpolate(models: Sequence[BackoffModel], weights: Sequence[float]) -> BackoffModel:
    """Interpolate models linearly, like SRILM's `ngram -mix-lm`.

    The result lists the n-grams that any model lists, with the weighted sum of the models'
    probabilities, and has new back-off weights, so that every history sums to 1. N-grams that no
    model lists back off, so their probabilities are only close to the weighted sum. A word that a
    model lacks has the probability 0 in that model.

    Args:
      models: one or more models.
      weights: one per model, none negative, with the sum 1.

    Raises:
      NgramError: the weights are not of this form.
    """
    if len(weights) != len(models) or min(weights) < 0 or not abs(sum(weights) - 1) <= 1e-6:
        raise NgramError(
            f"{len(models)} models cannot be interpolated with the weights {list(weights)}: give"
            " one weight per model; the weights must be 0 or more, and their sum must be 1"
        )
    vocabulary = sorted(set().union(*(model.vocabulary for model in models)))
    models = [_with_vocabulary(model, vocabulary) for model in models]
    levels: list[Level] = []
    # For each model: index, in the union, of each of its n-grams of the order below
    places = [np.zeros(1, dtype=np.int64) for _ in models]
    for k in range(max(model.order for model in models)):
        here = [(i, model.levels[k]) for i, model in enumerate(models) if k < model.order]
        # An n-gram is (index of its context in the union of the order below, word).
        keys = {i: places[i][level.context] * len(vocabulary) + level.word for i, level in here}
        union = np.unique(np.concatenate(list(keys.values())))
        if not len(union):
            break
        places = [np.searchsorted(union, keys.get(i, union[:0])) for i in range(len(models))]
        empty = np.zeros(len(union))
        level = Level(union // len(vocabulary), union % len(vocabulary), empty, empty)
        words = ngrams(BackoffModel(vocabulary, [*levels, level]), k)
        mixed = np.zeros(len(union))
        for model, weight in zip(models, weights, strict=True):
            logprob = last_word_logprobs(model, words)
            # A word that a model lacks has probability 0 there, not 10^-99.
            mixed += weight * np.where(logprob > LOG_ZERO, 10.0**logprob, 0.0)
        with np.errstate(divide="ignore"):
            logprob = np.maximum(np.log10(mixed), LOG_ZERO)
        levels.append(Level(level.context, level.word, logprob, empty))
    return renormalised(vocabulary, levels)


def mixture_weights(
    models: Sequence[BackoffModel], sentences: Iterable[Sequence[str]], tolerance: float = 1e-6
) -> list[float]:
    """Find the weights that maximise the likelihood of held-out text, by EM.

    Words that any of the models lacks do not count. Without sentences the weights are equal.

    Args:
      models: two or more models.
      sentences: lists of words, from which no model was estimated.
      tolerance: the iteration ends when every weight changes by less than this.
    """
    columns: list[list[float]] = []
    for words in sentences:
        is_known = [all(w in m.ids for m in models) and w != UNKNOWN for w in words]
        scores = [m.token_logprobs(np.array(m.word_ids([START, *words, END]))) for m in models]
        scored = np.array([False, *is_known, True])
        columns += np.stack(scores, axis=1)[scored].tolist()
    weights = np.full(len(models), 1 / len(models))
    if not columns:
        return weights.tolist()
    logprob = np.array(columns)  # [words, models]
    # Relative to the best model, because 10 to the power of a sum of several -99s underflows to 0.
    probability = 10.0 ** (logprob - logprob.max(axis=1, keepdims=True))
    while True:
        # E-step: responsibilities of the models for each word, [words, models]; M-step: their mean.
        share = probability * weights
        share /= share.sum(axis=1, keepdims=True)
        previous, weights = weights, share.mean(axis=0)
        if np.abs(weights - previous).max() < tolerance:
            return weights.tolist()


def _with_vocabulary(model: BackoffModel, vocabulary: Sequence[str]) -> BackoffModel:
    """Renumber a model's words for a larger vocabulary; new words have probability 0."""
    if model.vocabulary == tuple(vocabulary):
        return model
    ids = {word: index for index, word in enumerate(vocabulary)}
    numbers = np.array([ids[word] for word in model.vocabulary])
    first = model.levels[0]
    logprob, backoff = np.full(len(vocabulary), LOG_ZERO), np.zeros(len(vocabulary))
    logprob[numbers], backoff[numbers] = first.logprob, first.backoff
    levels = [Level(np.zeros(len(ids), dtype=np.int64), np.arange(len(ids)), logprob, backoff)]
    place = numbers  # new index of the n-grams below
    for level in model.levels[1:]:
        context, word = place[level.context], numbers[level.word]
        order = np.lexsort((word, context))  # the n-grams in their new order
        levels.append(
            Level(context[order], word[order], level.logprob[order], level.backoff[order])
        )
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
    return BackoffModel(vocabulary, levels)


def prune_by_entropy(model: BackoffModel, threshold: float) -> BackoffModel:
    """Drop n-grams whose removal raises the perplexity by less than a threshold.

    As in SRILM's `ngram -prune`, orders are pruned from the highest to the lowest. Each n-gram is
    judged alone, with the model's own probabilities of histories. 1-grams and histories of
    remaining n-grams stay. Back-off weights are recomputed.

    Args:
      model: a model whose histories sum to 1.
      threshold: relative rise of the perplexity, such as 1e-8; 0 keeps everything.
    """
    levels = list(model.levels)
    if threshold <= 0:
        return model
    for k in range(model.order - 1, 0, -1):
        if not len(levels[k].word):
            continue
        # The perplexity rises by exp(D) - 1, with D the relative entropy in nats.
        present = BackoffModel(model.vocabulary, levels[: k + 1])
        keep = np.expm1(removal_losses(present)) >= threshold
        if len(levels) > k + 1:
            keep[levels[k + 1].context] = True
            place = np.cumsum(keep) - 1
            levels[k + 1] = replace(levels[k + 1], context=place[levels[k + 1].context])
        levels[k] = _selected(levels[k], keep)
    return renormalised(model.vocabulary, levels)


def removal_losses(model: BackoffModel) -> np.ndarray:
    """Return the loss from removing each of the N n-grams of the highest order alone: [N].

    The loss is Stolcke's D(p || p') in nats: the relative entropy of the model p and the model p'
    without the n-gram.
    """
    k = model.order - 1
    level, size = model.levels[k], len(model.levels[k - 1].word)
    below = BackoffModel(model.vocabulary, model.levels[:k])
    shorter = last_word_logprobs(below, ngrams(model, k)[:, 1:])
    # D(p || p') =
    #   p(h) (p(w|h) (log p(w|h) - log p(w|h') - log a'(h)) + m(h) (log a(h) - log a'(h))),
    # where m(h) is the mass of h that backs off, and a and a' are the back-off weights of h with
    # and without the n-gram.
    p, q = 10.0**level.logprob, 10.0**shorter  # [N] p(w|h) and p(w|h')
    mass = np.maximum(unlisted_mass(level, level.logprob, size), SMALLEST)[level.context]
    mass_shorter = np.maximum(unlisted_mass(level, shorter, size), SMALLEST)[level.context]
    weight = np.log(mass / mass_shorter)
    new_weight = np.log((mass + p) / (mass_shorter + q))
    loss = p * (np.log(p / q) - new_weight) + mass * (weight - new_weight)
    return _history_probabilities(model)[level.context] * loss


def _history_probabilities(model: BackoffModel) -> np.ndarray:
    """Return p(h) for each n-gram h of the second-highest level, with p(<s>) = p(</s>)."""
    first = model.levels[0].logprob.copy()
    first[model.ids[START]] = first[model.ids[END]]
    logprob = first
    for level in model.levels[1:-1]:
        logprob = logprob[level.context] + level.logprob
    return 10.0**logprob


def _selected(level: Level, keep: np.ndarray) -> Level:
    """Return the n-grams of a level where `keep` [N] is true."""
    return Level(level.context[keep], level.word[keep], level.logprob[keep], level.backoff[keep])


CHARGE = 1e-7
"""Probability assumed for a word that a model lacks, similar to that of a rare word."""


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of a model on a text, and its word counts."""

    sentences: int
    """Number of sentences."""
    words: int
    """Number of words, without sentence ends."""
    oov: int
    """Number of words outside the model's vocabulary."""
    ppl: float
    """Per word and sentence end, with out-of-vocabulary words scored as <UNK>. Infinite if the text
    has such words and the model has no <UNK>."""
    ppl_known: float
    """Per known word and sentence end; unknown words are only context."""
    ppl_charged: float
    """Per word and sentence end, with every unknown word scored as `CHARGE`. Use it to compare
    models with different vocabularies: `ppl` and `ppl_known` favour the smaller vocabulary."""

    @property
    def oov_rate(self) -> float:
        """Share of words outside the vocabulary, 0 to 1."""
        return self.oov / self.words if self.words else 0.0


def perplexity(model: BackoffModel, sentences: Iterable[Sequence[str]]) -> Perplexity:
    """Compute a model's perplexities on sentences, lists of normalised words."""
    tokens: list[int] = []
    is_known_list: list[bool] = []
    count = 0
    for words in sentences:
        count += 1
        tokens.extend(model.word_ids([START, *words, END]))
        is_known_list.append(False)  # <s> is given, not predicted
        is_known_list.extend(word in model.ids and word != UNKNOWN for word in words)
        is_known_list.append(True)
    ids = np.array(tokens, dtype=np.int64)
    predicted = ids != model.ids[START]
    is_known = np.array(is_known_list, dtype=bool)
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
    """Return 10 to the power of the mean negative log10 probability."""
    return float(10.0 ** -logprob.mean()) if len(logprob) else math.nan
