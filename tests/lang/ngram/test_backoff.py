from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.ngram.backoff import LOG_ZERO, BackoffModel, Level
from toolkit.lang.ngram.kneser_ney import estimate

CORPUS = [["A", "B", "A"], ["A", "C"], ["B", "A", "B", "Z"], ["C", "A", "B"]]
VOCABULARY = {"A", "B", "C"}


@pytest.fixture
def model():
    return estimate(CORPUS, VOCABULARY, order=3)[0]


def entries(model):
    """The model as {n-gram: (log10 probability, back-off)}."""
    found, below = {}, [()]
    for level in model.levels:
        here = [
            (*below[c], model.vocabulary[w]) for c, w in zip(level.context, level.word, strict=True)
        ]
        found.update(zip(here, zip(level.logprob, level.backoff, strict=True), strict=True))
        below = here
    return found


def by_definition(table, word, history):
    if (*history, word) in table:
        return table[(*history, word)][0]
    if not history:
        return LOG_ZERO
    weight = table[history][1] if history in table else 0.0
    return weight + by_definition(table, word, history[1:])


@pytest.mark.parametrize("sentence", [[], ["A"], ["A", "B", "A", "C"], ["C", "C", "Q", "B", "A"]])
def test_sentences_score_as_defined(model, sentence):
    table = entries(model)
    words = ["<s>", *(w if w in VOCABULARY else "<UNK>" for w in sentence), "</s>"]
    expected = sum(
        by_definition(table, words[i], tuple(words[max(0, i - 2) : i]))
        for i in range(1, len(words))
    )
    assert model.logprob(sentence) == pytest.approx(expected, abs=1e-10)


def test_running_text_scores_as_its_sentences(model):
    sentences = [["A", "B"], [], ["C", "Q", "A"]]
    tokens = [i for s in sentences for i in model.word_ids(["<s>", *s, "</s>"])]
    found = model.token_logprobs(np.array(tokens))
    assert found[found > LOG_ZERO].sum() == pytest.approx(sum(map(model.logprob, sentences)))


def test_stepping_equals_scoring(model):
    state = model.start(2)
    total = np.zeros(2)
    for pair in (["A", "C"], ["B", "A"], ["</s>", "</s>"]):
        logprob, state = model.step(state, np.array(model.word_ids(pair)))
        total += logprob
    assert total == pytest.approx([model.logprob(["A", "B"]), model.logprob(["C", "A"])])


def test_restriction_keeps_weights_and_drops_words(model):
    small = model.restrict({"A", "B"})
    assert small.vocabulary == ("</s>", "<UNK>", "<s>", "A", "B")
    expected = {g: weights for g, weights in entries(model).items() if "C" not in g}
    assert entries(small) == expected
    assert model.restrict(VOCABULARY).logprob(["A", "C"]) == model.logprob(["A", "C"])


def test_restriction_to_nothing_leaves_unigrams_and_the_weights_of_their_contexts():
    whole = estimate([["A", "B"]], {"A", "B"}, order=3)[0]
    model, table = whole.restrict(set()), entries(whole)
    assert [len(level.word) for level in model.levels] == [3, 0]
    start = table[("<s>",)][1]
    expected = start + table[("<UNK>",)][0] + table[("</s>",)][0]
    assert model.logprob(["A"]) == pytest.approx(expected, abs=1e-12)
    assert start != 0


def test_a_highest_level_without_ngrams_and_weights_is_dropped(model):
    bare = [replace(level, backoff=np.zeros(len(level.word))) for level in model.levels[:1]]
    nothing = Level(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    assert BackoffModel(model.vocabulary, [*bare, nothing]).order == 1


@settings(max_examples=100, deadline=None)
@given(order=st.integers(1, 4), seed=st.integers(0, 10**6), dropped=st.sets(st.integers(0, 3)))
def test_a_restricted_model_scores_as_the_whole_one(order, seed, dropped):
    """Whatever the words that are left, even where no n-gram of the highest order is."""
    rng = np.random.default_rng(seed)
    vocabulary = sorted(["<s>", "</s>", "<UNK>", *"ABCD"])
    levels, below = [], 1
    for n in range(order):
        keys = np.arange(below * 7)
        if n:
            keys = np.sort(rng.choice(keys, len(keys) // 4, replace=False))
        weights = rng.uniform(-2, 0, (2, len(keys)))
        levels.append(Level(keys // 7, keys % 7, *weights))
        below = len(keys)
    whole = BackoffModel(vocabulary, levels)
    words = [w for i, w in enumerate("ABCD") if i not in dropped]
    small = whole.restrict(words)
    for length in range(4):
        sentence = rng.choice(words, length).tolist() if words else []
        assert small.logprob(sentence) == pytest.approx(whole.logprob(sentence), abs=1e-12)
