"""Back-off weights that make the probabilities of every history sum to one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toolkit.lang.ngram.backoff import LOG_ZERO, BackoffModel, Level

SMALLEST = 1e-12
"""Probability mass below which nothing is left for the words that a history does not list."""


def ngrams(model: BackoffModel, level: int) -> np.ndarray:
    """List the n-grams of a level, from 0, as word ids: [N, level + 1]."""
    words = np.empty((len(model.levels[level].word), level + 1), dtype=np.int64)
    index = np.arange(len(words))
    for column in range(level, -1, -1):
        words[:, column] = model.levels[column].word[index]
        index = model.levels[column].context[index]
    return words


def last_word_logprobs(model: BackoffModel, words: np.ndarray) -> np.ndarray:
    """Return log10 p(last word | the words before it) for each row of `words` [N, n]: [N]."""
    state = np.full((len(words), max(model.order - 1, 1)), -1, dtype=np.int64)
    for column in range(words.shape[1] - 1):
        state = model.step(state, words[:, column])[1]
    return model.step(state, words[:, -1])[0]


def unlisted_mass(level: Level, logprob: np.ndarray, contexts: int) -> np.ndarray:
    """Return what each context's listed words leave of one, [contexts], given their log10
    probabilities [N]."""
    return 1.0 - np.bincount(level.context, 10.0**logprob, minlength=contexts)


def backoff_weights(listed: np.ndarray, shorter: np.ndarray) -> np.ndarray:
    """Return log10 back-off weights.

    Args:
      listed: mass that the listed words of each context leave, see `unlisted_mass`.
      shorter: mass that the same words leave given the context without its first word.
    """
    possible = (listed > SMALLEST) & (shorter > SMALLEST)
    ratio = np.where(possible, listed, 1.0) / np.where(possible, shorter, 1.0)
    return np.where(possible, np.maximum(np.log10(ratio), LOG_ZERO), LOG_ZERO)


def renormalised(vocabulary: Sequence[str], levels: Sequence[Level]) -> BackoffModel:
    """Build a model with the probabilities of `levels` and back-off weights computed anew.

    Histories that no listed n-gram continues get the weight one. The 1-grams are taken as they are.
    """
    made = [replace(levels[0], backoff=np.zeros(len(levels[0].word)))]
    for level in levels[1:]:
        if not len(level.word):
            break
        below = BackoffModel(vocabulary, made)
        longer = BackoffModel(vocabulary, [*made, level])
        lower = last_word_logprobs(below, ngrams(longer, len(made))[:, 1:])
        size = len(made[-1].word)
        weights = backoff_weights(
            unlisted_mass(level, level.logprob, size), unlisted_mass(level, lower, size)
        )
        continued = np.bincount(level.context, minlength=size) > 0
        made[-1] = replace(made[-1], backoff=np.where(continued, weights, 0.0))
        made.append(replace(level, backoff=np.zeros(len(level.word))))
    return BackoffModel(vocabulary, made)
