import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.denominator import phone_ngram
from toolkit.fsa.fst import FINAL

SENTENCES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=8)


def log_probability(fst, sentence):
    """The log probability of a sentence in a deterministic acceptor."""
    state, total = 0, 0.0
    for phone in (*sentence, FINAL):
        arcs = [a for a in range(fst.num_arcs) if fst.source[a] == state and fst.labels[a] == phone]
        if not arcs:
            return -math.inf
        (arc,) = arcs
        state, total = fst.target[arc], total + fst.scores[arc]
    return total


def relative_frequencies(sentences, length):
    """Counts of each phone after the last `length` phones (fewer at the sentence start)."""
    counts, totals = Counter(), Counter()
    for sentence in sentences:
        whole = (*sentence, FINAL)
        for i, phone in enumerate(whole):
            history = tuple(whole[max(0, i - length) : i])
            counts[history, phone] += 1
            totals[history] += 1
    return counts, totals


@given(SENTENCES, st.integers(2, 4))
def test_with_all_histories_probabilities_are_relative_frequencies(sentences, order):
    fst = phone_ngram(sentences, PhoneNgramConfig(order, extra_states=10_000))
    counts, totals = relative_frequencies(sentences, order - 1)
    for sentence in sentences:
        whole, expected = (*sentence, FINAL), 0.0
        for i, phone in enumerate(whole):
            history = tuple(whole[max(0, i - order + 1) : i])
            expected += math.log(counts[history, phone] / totals[history])
        assert log_probability(fst, sentence) == pytest.approx(expected, abs=1e-4)


@given(SENTENCES, st.integers(0, 3))
def test_every_state_is_a_distribution_and_every_sentence_possible(sentences, extra):
    fst = phone_ngram(sentences, PhoneNgramConfig(3, extra))
    for state in range(fst.num_states - 1):
        arcs = fst.source == state
        assert math.fsum(map(math.exp, fst.scores[arcs])) == pytest.approx(1, abs=1e-5)
        assert len(set(fst.labels[arcs])) == arcs.sum()
    assert all(math.isfinite(log_probability(fst, sentence)) for sentence in sentences)
    histories = {tuple(s[max(0, i - 1) : i]) for s in sentences for i in range(len(s) + 1)}
    assert fst.num_states - 1 <= len(histories) + extra


def test_the_histories_that_predict_best_are_kept():
    # After 1 1 comes 2, after 2 1 comes 3; 3 and 4 before 1 do not matter.
    sentences = [[1, 1, 2]] * 20 + [[2, 1, 3]] * 20 + [[3, 1, 4], [4, 1, 4]]
    shares = []
    for extra in (0, 1, 2):
        fst = phone_ngram(sentences, PhoneNgramConfig(3, extra))
        shares.append([log_probability(fst, [2, 1, 3]), log_probability(fst, [1, 1, 2])])
    assert shares[0][0] < shares[2][0] - 0.5
    assert shares[0][1] < shares[2][1] - 0.5
    # Of the others a suffix has the counts: those of sentences' begins, and of what was dropped.
    third = 1 / 42 * 1 / 21 * 2 / 22 * 2 / 3  # 3 first; 1 after 3, 4 after 1, the end after 4
    assert log_probability(fst, [3, 1, 4]) == pytest.approx(math.log(third), abs=1e-4)


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="order"):
        PhoneNgramConfig(order=1)
    with pytest.raises(ValueError, match="extra_states"):
        PhoneNgramConfig(extra_states=-1)
    with pytest.raises(ValueError, match="no phones"):
        phone_ngram([[]], PhoneNgramConfig())
