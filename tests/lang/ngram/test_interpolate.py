"""Mixtures of n-gram models against the weighted sum of the models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.ngram.arpa import read_arpa
from toolkit.lang.ngram.interpolate import interpolate, mixture_weights
from toolkit.lang.ngram.kneser_ney import NgramError, estimate
from toolkit.lang.ngram.renormalise import ngrams

VOCABULARY = {"A", "B", "C", "D"}
texts = st.lists(st.lists(st.sampled_from("ABCX"), max_size=6), min_size=1, max_size=15)
orders = st.integers(1, 4)


def listed(model):
    """Every n-gram of a model, as words."""
    for level in range(model.order):
        for row in ngrams(model, level):
            yield [model.vocabulary[index] for index in row]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(texts, orders), min_size=1, max_size=3),
    shares=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    history=st.lists(st.sampled_from(["<s>", "A", "B", "C", "D", "<UNK>"]), max_size=4),
)
def test_listed_ngrams_have_the_weighted_sum_and_histories_sum_to_one(parts, shares, history):
    models = [estimate(text, VOCABULARY, order)[0] for text, order in parts]
    weights = np.array(shares[: len(models)]) / sum(shares[: len(models)])
    mixed = interpolate(models, weights)
    found = set()
    for *context, word in listed(mixed):
        found.add((*context, word))
        expected = sum(
            weight * model.distribution(context)[model.ids[word]]
            for model, weight in zip(models, weights, strict=True)
        )
        here = mixed.distribution(context)
        assert here[mixed.ids[word]] == pytest.approx(expected, abs=1e-12)
        assert here.sum() == pytest.approx(1, abs=1e-9)
    assert found == {tuple(ngram) for model in models for ngram in listed(model)}
    assert mixed.distribution(history).sum() == pytest.approx(1, abs=1e-9)


def test_one_model_is_itself():
    model = estimate([["A", "B"], ["A", "C", "A"]], VOCABULARY, 3, (1, 1, 2))[0]
    same = interpolate([model], [1.0])
    for mine, other in zip(model.levels, same.levels, strict=True):
        np.testing.assert_array_equal(mine.context, other.context)
        np.testing.assert_allclose(mine.logprob, other.logprob, atol=1e-12)
        np.testing.assert_allclose(mine.backoff, other.backoff, atol=1e-12)


def test_words_that_a_model_lacks_are_impossible_there():
    one = estimate([["A", "B"], ["B"]], {"A", "B"}, 2)[0]
    other = estimate([["A", "Z", "C"], ["Z"]], {"C", "Z", "A"}, 3)[0]
    mixed = interpolate([one, other], [0.25, 0.75])
    assert mixed.vocabulary == ("</s>", "<UNK>", "<s>", "A", "B", "C", "Z")
    first = mixed.distribution([])
    assert first[mixed.ids["B"]] == pytest.approx(0.25 * one.distribution([])[one.ids["B"]])
    expected = 0.75 * other.distribution(["A"])[other.ids["Z"]]
    assert mixed.distribution(["A"])[mixed.ids["Z"]] == pytest.approx(expected)
    for history in ([], ["<s>"], ["A"], ["A", "Z"], ["<s>", "A"], ["Z"]):
        assert mixed.distribution(history).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.6], [-0.5, 1.5], [float("nan"), 0.5]])
def test_weights_must_be_shares(weights):
    model = estimate([["A"]], {"A"}, 2)[0]
    with pytest.raises(NgramError, match="interpolation of 2 models"):
        interpolate([model, model], weights)


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(texts, min_size=2, max_size=2), held_out=texts)
def test_weights_maximise_the_likelihood_of_held_out_text(parts, held_out):
    models = [estimate(text, VOCABULARY, 2)[0] for text in parts]
    weights = mixture_weights(models, held_out, tolerance=1e-9)

    def likelihood(share):
        """Log-likelihood of the known words, from each model's own distributions."""
        total = 0.0
        for sentence in held_out:
            words = ["<s>", *sentence, "</s>"]
            for i in range(1, len(words)):
                if words[i] in VOCABULARY | {"</s>"}:
                    p, q = (m.distribution([words[i - 1]])[m.ids[words[i]]] for m in models)
                    total += np.log(share * p + (1 - share) * q)
        return total

    assert sum(weights) == pytest.approx(1)
    best = max(likelihood(share) for share in np.linspace(0, 1, 21))
    assert likelihood(weights[0]) >= best - 1e-4


def test_weights_without_held_out_text_are_equal():
    models = [estimate([["A"]], {"A"}, 1)[0]] * 3
    assert mixture_weights(models, []) == pytest.approx([1 / 3] * 3)
    assert mixture_weights(models, [["Q"]])[0] == pytest.approx(1 / 3)


@pytest.mark.timeout(20)
def test_weights_of_text_that_all_models_find_all_but_impossible(tmp_path):
    ngrams = "".join(f"\\{n}-grams:\n-1{' A' * n} -99\n\n" for n in (2, 3))
    text = (
        "\\data\\\nngram 1=3\nngram 2=1\nngram 3=1\nngram 4=1\n\n"
        "\\1-grams:\n-1 <s> -99\n-99 </s>\n-1 A -99\n\n"
        f"{ngrams}\\4-grams:\n-1 A A A A\n\n\\end\\\n"
    )
    models = []
    for name, score in (("one", "-1"), ("other", "-0.5")):
        (tmp_path / name).write_text(text.replace("-1 A A A A", f"{score} A A A A"))
        models.append(read_arpa(tmp_path / name))
        tokens = np.array(models[-1].word_ids(["<s>", *"AAAA", "</s>"]))
        assert models[-1].token_logprobs(tokens)[-1] < -330  # 0 as a probability in float64
    weights = mixture_weights(models, [list("AAAA")])
    assert sum(weights) == pytest.approx(1)
    assert weights[1] > weights[0]
