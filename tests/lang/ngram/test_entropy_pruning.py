"""Entropy pruning against relative entropies summed over whole distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.ngram.backoff import BackoffModel, Level
from toolkit.lang.ngram.entropy_pruning import prune_by_entropy, removal_losses
from toolkit.lang.ngram.interpolate import interpolate
from toolkit.lang.ngram.kneser_ney import estimate
from toolkit.lang.ngram.renormalise import ngrams, renormalised

VOCABULARY = {"A", "B", "C", "D"}
texts = st.lists(st.lists(st.sampled_from("ABCX"), max_size=7), min_size=2, max_size=20)


def names(model, level):
    return [tuple(model.vocabulary[i] for i in row) for row in ngrams(model, level)]


def without(model, row):
    """The model without the n-gram `row` of its highest order, back-off weights computed anew."""
    *below, last = model.levels
    keep = np.arange(len(last.word)) != row
    level = Level(last.context[keep], last.word[keep], last.logprob[keep], last.backoff[keep])
    return renormalised(model.vocabulary, [*below, level])


def history_probability(model, history):
    """The product of the model's own probabilities of the words; <s> counts as </s>."""
    product = 1.0
    for i, word in enumerate(history):
        word = "</s>" if word == "<s>" else word
        product *= model.distribution(history[:i])[model.ids[word]]
    return product


@settings(max_examples=40, deadline=None)
@given(text=texts, order=st.integers(2, 4), min_counts=st.sampled_from([(1,), (1, 1, 2)]))
def test_losses_are_relative_entropies(text, order, min_counts):
    model = estimate(text, VOCABULARY, order, min_counts)[0]
    losses = removal_losses(model) if model.order > 1 else []
    for row, loss in enumerate(losses):
        *history, _ = names(model, model.order - 1)[row]
        p = model.distribution(history)
        q = without(model, row).distribution(history)
        mass = p > 0
        entropy = (p[mass] * np.log(p[mass] / q[mass])).sum()
        assert loss == pytest.approx(history_probability(model, history) * entropy, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    text=texts,
    other=texts,
    order=st.integers(1, 4),
    threshold=st.sampled_from([1e-6, 1e-3, 1e-2, 0.1, 0.99]),
)
def test_what_is_pruned_and_what_stays(text, other, order, threshold):
    model = interpolate([estimate(t, VOCABULARY, order)[0] for t in (text, other)], [0.6, 0.4])
    pruned = prune_by_entropy(model, threshold)
    assert pruned.vocabulary == model.vocabulary
    kept = [set(names(pruned, level)) for level in range(pruned.order)] + [set()] * order
    for k in range(1, model.order):
        present = BackoffModel(model.vocabulary, model.levels[: k + 1])
        for name, loss in zip(names(model, k), removal_losses(present), strict=True):
            context = any(longer[:-1] == name for longer in kept[k + 1])
            assert (name in kept[k]) == (context or np.expm1(loss) >= threshold)
    table = {
        name: logprob
        for k in range(model.order)
        for name, logprob in zip(names(model, k), model.levels[k].logprob, strict=True)
    }
    for k in range(pruned.order):
        for name, logprob in zip(names(pruned, k), pruned.levels[k].logprob, strict=True):
            assert logprob == table[name]
            assert pruned.distribution(name).sum() == pytest.approx(1, abs=1e-9)


def test_no_threshold_keeps_the_model():
    model = estimate([["A", "B"], ["B", "A", "C"]], VOCABULARY, 3)[0]
    assert prune_by_entropy(model, 0.0) is model


def test_everything_but_the_words_can_go():
    model = estimate([["A", "B"], ["B", "A", "C"]], VOCABULARY, 3)[0]
    bare = prune_by_entropy(model, 1e9)
    assert bare.order == 1
    np.testing.assert_array_equal(bare.levels[0].logprob, model.levels[0].logprob)
    assert bare.distribution(["A", "B"]).sum() == pytest.approx(1)
