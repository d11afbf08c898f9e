"""Linear interpolation of n-gram models, written as one back-off model."""

from collections.abc import Iterable, Sequence

import numpy as np

from toolkit.lang.ngram.backoff import LOG_ZERO, BackoffModel, Level
from toolkit.lang.ngram.kneser_ney import NgramError
from toolkit.lang.ngram.renormalise import last_word_logprobs, ngrams, renormalised
from toolkit.lang.tables import END, START, UNKNOWN


def interpolate(models: Sequence[BackoffModel], weights: Sequence[float]) -> BackoffModel:
    """Mix models linearly (as SRILM's `ngram -mix-lm`).

    The result lists the n-grams that any of the models lists, with the weighted sum of the
    models' probabilities; its back-off weights are computed anew, so that every history sums to
    one. n-grams that no model lists back off, so that they have nearly, not exactly, the weighted
    sum. A word that a model lacks has probability zero there.

    Args:
      models: one or more.
      weights: one per model, none negative, summing to one.

    Raises:
      NgramError: weights of another kind.
    """
    if len(weights) != len(models) or min(weights) < 0 or not abs(sum(weights) - 1) <= 1e-6:
        raise NgramError(f"interpolation of {len(models)} models with weights {list(weights)}")
    vocabulary = sorted(set().union(*(model.vocabulary for model in models)))
    models = [_with_vocabulary(model, vocabulary) for model in models]
    levels: list[Level] = []
    places = [np.zeros(1, dtype=np.int64) for _ in models]  # where the n-grams below are listed
    for k in range(max(model.order for model in models)):
        here = [(i, model.levels[k]) for i, model in enumerate(models) if k < model.order]
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
            mixed += weight * np.where(logprob > LOG_ZERO, 10.0**logprob, 0.0)
        with np.errstate(divide="ignore"):
            logprob = np.maximum(np.log10(mixed), LOG_ZERO)
        levels.append(Level(level.context, level.word, logprob, empty))
    return renormalised(vocabulary, levels)


def mixture_weights(
    models: Sequence[BackoffModel], sentences: Iterable[Sequence[str]], tolerance: float = 1e-6
) -> list[float]:
    """Find the weights that give held-out text the highest likelihood, by EM.

    Words that a model lacks do not count; without any other word the weights are equal.

    Args:
      models: two or more.
      sentences: lists of words that no model was estimated from.
      tolerance: change of every weight below which the iteration ends.
    """
    columns: list[list[float]] = []
    for words in sentences:
        known = [all(w in m.ids for m in models) and w != UNKNOWN for w in words]
        scores = [m.token_logprobs(np.array(m.word_ids([START, *words, END]))) for m in models]
        kept = np.array([False, *known, True])
        columns += np.stack(scores, axis=1)[kept].tolist()
    weights = np.full(len(models), 1 / len(models))
    if not columns:
        return weights.tolist()
    logprob = np.array(columns)
    # Relative to the best model's, since 10 to the power of some -99s is 0 in all models.
    probability = 10.0 ** (logprob - logprob.max(axis=1, keepdims=True))
    while True:
        share = probability * weights
        share /= share.sum(axis=1, keepdims=True)
        before, weights = weights, share.mean(axis=0)
        if np.abs(weights - before).max() < tolerance:
            return weights.tolist()


def _with_vocabulary(model: BackoffModel, vocabulary: Sequence[str]) -> BackoffModel:
    """Number a model's words as in `vocabulary`, which has them all; new ones are impossible."""
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
        by = np.lexsort((word, context))
        levels.append(Level(context[by], word[by], level.logprob[by], level.backoff[by]))
        place = np.empty(len(by), dtype=np.int64)
        place[by] = np.arange(len(by))
    return BackoffModel(vocabulary, levels)
