"""Pruning of back-off models by relative entropy (Stolcke 1998)."""

from dataclasses import replace

import numpy as np

from toolkit.lang.ngram.backoff import BackoffModel, Level
from toolkit.lang.ngram.renormalise import (
    SMALLEST,
    last_word_logprobs,
    ngrams,
    renormalised,
    unlisted_mass,
)
from toolkit.lang.tables import END, START


def prune_by_entropy(model: BackoffModel, threshold: float) -> BackoffModel:
    """Drop the n-grams whose loss raises the perplexity by less than a share of it.

    As SRILM's `ngram -prune`: orders from the highest down, each n-gram judged by itself with the
    model's own probabilities of histories; 1-grams and the histories of n-grams that are kept
    stay; back-off weights are computed anew.

    Args:
      model: whose histories sum to one.
      threshold: relative change of the perplexity, such as 1e-8; 0 keeps everything.
    """
    levels = list(model.levels)
    if threshold <= 0:
        return model
    for k in range(model.order - 1, 0, -1):
        if not len(levels[k].word):
            continue
        present = BackoffModel(model.vocabulary, levels[: k + 1])
        keep = np.expm1(removal_losses(present)) >= threshold
        if len(levels) > k + 1:
            keep[levels[k + 1].context] = True
            place = np.cumsum(keep) - 1
            levels[k + 1] = replace(levels[k + 1], context=place[levels[k + 1].context])
        levels[k] = _taken(levels[k], keep)
    return renormalised(model.vocabulary, levels)


def removal_losses(model: BackoffModel) -> np.ndarray:
    """Return the relative entropy, in nats, between the model and the model without an n-gram,
    for each n-gram of its highest order, [N] (Stolcke's D(p || p'))."""
    k = model.order - 1
    level, size = model.levels[k], len(model.levels[k - 1].word)
    below = BackoffModel(model.vocabulary, model.levels[:k])
    shorter = last_word_logprobs(below, ngrams(model, k)[:, 1:])
    p, q = 10.0**level.logprob, 10.0**shorter
    left = np.maximum(unlisted_mass(level, level.logprob, size), SMALLEST)[level.context]
    left_shorter = np.maximum(unlisted_mass(level, shorter, size), SMALLEST)[level.context]
    weight = np.log(left / left_shorter)
    new_weight = np.log((left + p) / (left_shorter + q))
    loss = p * (np.log(p / q) - new_weight) + left * (weight - new_weight)
    return _history_probabilities(model)[level.context] * loss


def _history_probabilities(model: BackoffModel) -> np.ndarray:
    """The probability of each n-gram of the last level but one; <s> counts as </s> does."""
    first = model.levels[0].logprob.copy()
    first[model.ids[START]] = first[model.ids[END]]
    logprob = first
    for level in model.levels[1:-1]:
        logprob = logprob[level.context] + level.logprob
    return 10.0**logprob


def _taken(level: Level, keep: np.ndarray) -> Level:
    return Level(level.context[keep], level.word[keep], level.logprob[keep], level.backoff[keep])
