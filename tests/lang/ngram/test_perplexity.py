import math

import pytest

from toolkit.lang.ngram.kneser_ney import estimate
from toolkit.lang.ngram.perplexity import perplexity


@pytest.fixture
def model():
    return estimate([["A", "B"], ["A"], ["B", "C"]], {"A", "B"}, order=2)[0]


def test_counts_and_values(model):
    sentences = [["A", "Q"], ["B"]]
    found = perplexity(model, sentences)
    assert (found.sentences, found.words, found.oov) == (2, 3, 1)
    assert found.oov_rate == pytest.approx(1 / 3)
    total = sum(map(model.logprob, sentences))
    assert found.ppl == pytest.approx(10 ** (-total / 5))
    unknown = math.log10(model.distribution(["<s>", "A"])[model.ids["<UNK>"]])
    assert found.ppl_known == pytest.approx(10 ** (-(total - unknown) / 4))
    assert found.ppl_charged == pytest.approx(10 ** (-(total - unknown - 7) / 5))


def test_a_model_without_unknown_words_is_infinitely_surprised(model):
    plain = model.restrict({"A", "B"})
    plain.ids.pop("<UNK>")
    found = perplexity(plain, [["Q", "A"]])
    assert math.isinf(found.ppl)
    assert found.ppl_charged == pytest.approx(10 ** ((7 + 2 * math.log10(found.ppl_known)) / 3))
    assert math.isfinite(found.ppl_known)
    assert perplexity(plain, [["A"]]).ppl == pytest.approx(perplexity(plain, [["A"]]).ppl_known)


def test_no_text(model):
    found = perplexity(model, [])
    assert found.oov_rate == 0
    assert math.isnan(found.ppl)
