"""N-grams as flat arrays: the probabilities of the model that they were made of."""

import math

import numpy as np
import pytest

from toolkit.decode.ctc.dictionary import IMPOSSIBLE, Ngrams
from toolkit.decode.ctc.kernels import mass, step
from toolkit.lang.ngram import BackoffModel, Level, estimate

LN10 = math.log(10.0)
WORDS = ["D", "A", "C", "B", "E"]  # in an order of their own; E is unknown to the model


@pytest.fixture(params=[1, 2, 3, 4])
def model(request):
    rng = np.random.default_rng(0)
    sentences = [rng.choice(["A", "B", "C", "D", "Q"], rng.integers(1, 6)) for _ in range(30)]
    return estimate([s.tolist() for s in sentences], {"A", "B", "C", "D"}, request.param)[0]


def sparse(model):
    """With fewer n-grams of the highest order, and contexts that make no difference any more."""
    levels = [
        Level(level.context, level.word, level.logprob, np.where(level.word % 2, 0, level.backoff))
        for level in model.levels
    ]
    top = levels.pop()
    sample = slice(None, None, 3 if levels else 1)
    levels.append(Level(*(x[sample] for x in (top.context, top.word, top.logprob, top.backoff))))
    return BackoffModel(model.vocabulary, levels)


def states(ngrams, length):
    """Every state within `length` words of the start, with the words read."""
    reachable = [((), ngrams.start)]
    for history, state in reachable:
        if len(history) < length:
            for word in range(len(WORDS)):
                reachable.append(((*history, word), step(ngrams.arrays, state, word)[1]))
    return reachable


@pytest.mark.parametrize("change", [lambda model: model, sparse], ids=["whole", "sparse"])
def test_sentences_score_as_in_the_model(model, change):
    model = change(model)
    ngrams = Ngrams.of(model, WORDS)
    for history, _ in states(ngrams, 3):
        total, state = 0.0, ngrams.start
        for word in history:
            logprob, state = step(ngrams.arrays, state, word)
            total += logprob
        total += ngrams.contexts["end"][state]
        words = [WORDS[word] for word in history]
        assert total == pytest.approx(LN10 * model.logprob(words), abs=1e-9)


@pytest.mark.parametrize("change", [lambda model: model, sparse], ids=["whole", "sparse"])
def test_mass_is_the_sum_over_words(model, change):
    model = change(model)
    ngrams = Ngrams.of(model, [*WORDS, "F"])  # two words share <UNK>
    for _, state in states(ngrams, 3):
        word_probabilities = [math.exp(step(ngrams.arrays, state, word)[0]) for word in range(6)]
        for first in range(7):
            for last in range(first, 7):
                expected = sum(word_probabilities[first:last])
                assert mass(ngrams.arrays, state, first, last) == pytest.approx(expected, abs=1e-12)
        if change is not sparse:
            assert mass(ngrams.arrays, state, 0, 6) + math.exp(
                ngrams.contexts["end"][state]
            ) == pytest.approx(1.0)


def test_unknown_words_are_impossible_without_an_unknown_word(model):
    restricted = model.restrict(WORDS)
    keep = [i for i, word in enumerate(restricted.vocabulary) if word != "<UNK>"]
    renumber = {old: new for new, old in enumerate(keep)}
    unigrams = restricted.levels[0]
    level = Level(
        np.zeros(len(keep), np.int64),
        np.array([renumber[i] for i in keep]),
        unigrams.logprob[keep],
        unigrams.backoff[keep],
    )
    bare = BackoffModel([restricted.vocabulary[i] for i in keep], [level])
    ngrams = Ngrams.of(bare, WORDS)
    assert step(ngrams.arrays, ngrams.start, WORDS.index("E"))[0] <= IMPOSSIBLE
    assert mass(ngrams.arrays, ngrams.start, 4, 5) < 1e-90
