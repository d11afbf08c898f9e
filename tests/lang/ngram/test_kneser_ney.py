import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.ngram.kneser_ney import NgramError, discount, estimate


def test_hand_computed_bigram():
    model, discounts = estimate([["A", "B"], ["A", "C"]], {"A", "B", "C"}, order=2)
    assert [d.rule for d in discounts] == ["absolute", "absolute"]
    # left neighbours: A 1, B 1, C 1, </s> 2; n1 = 3, n2 = 1: D = 3/5; 0.48 shared by 5 symbols
    # bigrams: <s> A twice, four others once; n1 = 4, n2 = 1: D = 2/3
    expected = {
        (): {"A": 0.176, "B": 0.176, "C": 0.176, "</s>": 0.376, "<UNK>": 0.096, "<s>": 0},
        ("<s>",): {"A": 2 / 3 + 0.176 / 3, "B": 0.176 / 3, "<UNK>": 0.032},
        ("A",): {"B": 1 / 6 + 0.176 * 2 / 3, "</s>": 0.376 * 2 / 3},
        ("B",): {"</s>": 1 / 3 + 0.376 * 2 / 3, "A": 0.176 * 2 / 3},
        ("<UNK>",): {"A": 0.176},
    }
    for history, probabilities in expected.items():
        found = model.distribution(history)
        for word, probability in probabilities.items():
            assert found[model.ids[word]] == pytest.approx(probability, abs=1e-12)


def test_three_discounts():
    found = discount(np.array([0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 9]))
    assert found.rule == "modified"
    assert found.values == pytest.approx((0.5, 1.25, 1.0))  # Y = 4 / 8


@pytest.mark.parametrize(
    ("counts", "rule", "values"),
    [
        ([1, 1, 2, 3, 4, 4], "absolute", (0.5, 0.5, 0.5)),  # D3 = 3 - 4 * 0.5 * 2 < 0
        ([1, 2], "absolute", (1 / 3, 1 / 3, 1 / 3)),
        ([1, 1, 1], "fixed", (0.5, 1.0, 1.5)),
        ([2, 3, 4], "fixed", (0.5, 1.0, 1.5)),
        ([], "fixed", (0.5, 1.0, 1.5)),
    ],
)
def test_fallbacks(counts, rule, values):
    found = discount(np.array(counts))
    assert found.rule == rule
    assert found.values == pytest.approx(values)


class Reference:
    """Interpolated modified Kneser-Ney by the book, with dictionaries."""

    def __init__(self, sentences, vocabulary, order, min_counts):
        self.symbols = sorted({*vocabulary, "</s>", "<UNK>"})
        self.raw = [Counter() for _ in range(order)]
        for sentence in sentences:
            known = [word if word in vocabulary else "<UNK>" for word in sentence]
            tokens = ["<s>", *known, "</s>"]
            for k, i in itertools.product(range(1, order + 1), range(len(tokens))):
                if i + k <= len(tokens):
                    self.raw[k - 1][tuple(tokens[i : i + k])] += 1
        self.raw = [counts for counts in self.raw if counts]
        self.min_counts = [min_counts[min(k, len(min_counts) - 1)] for k in range(order)]
        self.adjusted = []
        for k, counts in enumerate(self.raw):
            if k == len(self.raw) - 1:
                adjusted = dict(counts)
            else:
                left = Counter(ngram[1:] for ngram in self.raw[k + 1])
                adjusted = {g: n if g[0] == "<s>" else left[g] for g, n in counts.items()}
            adjusted.pop(("<s>",), None)
            self.adjusted.append(adjusted)
        self.discounts = [discount(np.array(list(a.values()))).values for a in self.adjusted]

    def probability(self, word, history):
        history = tuple(history)[-(len(self.raw) - 1) :] if len(self.raw) > 1 else ()
        lower = self.probability(word, history[1:]) if history else 1 / len(self.symbols)
        k = len(history)
        seen = {g: n for g, n in self.adjusted[k].items() if g[:-1] == history}
        total = sum(seen.values())
        if not total:
            return lower
        left = {
            g: n - (0, *self.discounts[k])[min(n, 3)]
            for g, n in seen.items()
            if k == 0 or self.raw[k][g] >= self.min_counts[k]
        }
        gamma = 1 - sum(left.values()) / total
        return left.get((*history, word), 0.0) / total + gamma * lower


sentences = st.lists(
    st.lists(st.sampled_from("ABCDX"), max_size=8), min_size=1, max_size=30
)  # X: outside the vocabulary


@settings(max_examples=200, deadline=None)
@given(
    sentences=sentences,
    order=st.integers(1, 7),
    min_counts=st.sampled_from([(1,), (1, 1, 2), (1, 2), (1, 2, 3)]),
    history=st.lists(st.sampled_from(["A", "B", "C", "D", "E", "<UNK>"]), max_size=7),
    begin=st.booleans(),
)
def test_equals_the_reference_and_sums_to_one(sentences, order, min_counts, history, begin):
    vocabulary = {"A", "B", "C", "D", "E"}  # E: never seen
    model, _ = estimate(sentences, vocabulary, order, min_counts)
    reference = Reference(sentences, vocabulary, order, min_counts)
    histories = [tuple(history)] + [tuple(s[:n]) for s in sentences[:2] for n in range(len(s))]
    for words in histories:
        known = [word if word in vocabulary else "<UNK>" for word in words]
        context = ["<s>", *known] if begin else known
        found = model.distribution(context)
        assert found.sum() == pytest.approx(1, abs=1e-9)
        assert found[model.ids["<s>"]] == 0
        for word in reference.symbols:
            expected = reference.probability(word, context)
            assert found[model.ids[word]] == pytest.approx(expected, abs=1e-10)


def test_tiny_and_odd_corpora():
    for corpus in ([["A"]], [[]], [["A"] * 50], [["X"]]):
        model, _ = estimate(corpus, {"A"}, order=3)
        assert model.distribution(["<s>"]).sum() == pytest.approx(1)
    with pytest.raises(NgramError, match="no sentence"):
        estimate([], {"A"}, order=3)


def test_result_does_not_depend_on_the_order_of_sentences():
    corpus = [["B", "A"], ["A", "C", "A"], ["C"]]
    first, _ = estimate(corpus, {"A", "B", "C"}, order=3)
    second, _ = estimate(corpus[::-1], {"C", "B", "A"}, order=3)
    for one, two in zip(first.levels, second.levels, strict=True):
        np.testing.assert_array_equal(one.logprob, two.logprob)
        np.testing.assert_array_equal(one.backoff, two.backoff)
        np.testing.assert_array_equal(one.word, two.word)
