"""Minimum Bayes risk equals expected edit distances, by enumeration."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.word_lattices import chain, distance, random_lattice, word_sequences
from toolkit.fsa.minimum_bayes_risk import best_path_in_bins, minimum_risk
from toolkit.fsa.word_lattice import normalise_to_weight, union


def posteriors(lattice, scores):
    total, distribution = lattice.total(scores), {}
    for words, score in word_sequences(lattice, scores):
        distribution[words] = distribution.get(words, 0.0) + math.exp(score - total)
    return distribution


def expected_errors(distribution, words):
    return sum(p * distance(words, hypothesis) for hypothesis, p in distribution.items())


def random_list(seed, count=4, words=3):
    """A lattice whose paths share only the start and the end."""
    generator = np.random.default_rng(seed)
    hypotheses = [generator.integers(1, words + 1, generator.integers(1, 5)) for _ in range(count)]
    weights = generator.dirichlet(np.ones(count))
    return union(
        [
            normalise_to_weight(chain(h), np.zeros(len(h)), w)
            for h, w in zip(hypotheses, weights, strict=True)
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_on_lists_the_risk_equals_the_expected_errors_and_is_near_the_minimum(seed):
    lattice = random_list(seed, words=2)
    scores = lattice.scores(1.0)
    distribution, outcome = posteriors(lattice, scores), minimum_risk(lattice, scores)
    words = tuple(word.word for word in outcome.words)
    assert outcome.risk == pytest.approx(expected_errors(distribution, words), abs=1e-3)
    best = tuple(lattice.best_words(scores))
    assert outcome.risk <= expected_errors(distribution, best) + 1e-3
    sequences = [s for n in range(6) for s in product((1, 2), repeat=n)]
    least = min(expected_errors(distribution, s) for s in sequences)
    assert least - 1e-3 <= outcome.risk <= least + 0.25  # a local optimum


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_on_lattices_the_risk_is_an_upper_bound_and_falls(seed):
    lattice = random_lattice(seed)
    scores = lattice.scores(0.3)
    distribution, outcome = posteriors(lattice, scores), minimum_risk(lattice, scores)
    words = tuple(word.word for word in outcome.words)
    assert expected_errors(distribution, words) <= outcome.risk + 1e-3
    # The bins hold every word of every path once, but for those that are in none.
    for candidates in outcome.bins:
        assert sum(c.posterior for c in candidates) == pytest.approx(1.0)
        assert [c.posterior for c in candidates] == sorted(
            (c.posterior for c in candidates), reverse=True
        )
        for candidate in candidates:
            assert -1e-9 <= candidate.begin <= candidate.end + 1e-9
            assert candidate.end <= lattice.times[-1] + 1e-9


def test_words_that_many_paths_share_win_over_those_of_the_best_path():
    """The best path is A B. Most other paths have C or D in one place."""
    weights = {(1, 2): 0.4, (3, 2): 0.3, (3, 4): 0.3}
    lattice = union([normalise_to_weight(chain(w), np.zeros(2), p) for w, p in weights.items()])
    scores = lattice.scores(1.0)
    outcome = minimum_risk(lattice, scores)
    assert lattice.best_words(scores) == [1, 2]
    assert [(w.word, round(w.posterior, 6)) for w in outcome.words] == [(3, 0.6), (2, 0.7)]
    assert [w.begin for w in outcome.words] == pytest.approx([0.0, 1.0])
    assert [w.end for w in outcome.words] == pytest.approx([1.0, 2.0])
    assert outcome.risk == pytest.approx(0.7)
    assert [len(b) for b in outcome.bins] == [1, 2, 1, 2, 1]


def test_words_below_zero_are_counted_and_never_chosen():
    weights = {(-1,): 0.6, (2,): 0.3, (): 0.1}
    parts = [
        normalise_to_weight(chain([*w, 0]), np.zeros(len(w) + 1), p) for w, p in weights.items()
    ]
    lattice = union(parts)
    outcome = minimum_risk(lattice, lattice.scores(1.0))
    assert [w.word for w in outcome.words] == [2]
    assert outcome.words[0].posterior == pytest.approx(0.3)


@pytest.mark.parametrize("seed", [0, 1, 579, 2753, 5058])
def test_words_of_the_best_path_that_are_aligned_with_others_have_no_posterior(seed):
    lattice = random_lattice(seed)
    lattice = replace(lattice, words=np.where(lattice.words == 3, -1, lattice.words))
    scores = lattice.scores(0.3)
    candidates = best_path_in_bins(lattice, scores)
    assert [c.word for c in candidates] == [w for w in lattice.best_words(scores) if w > 0]
    for candidate in candidates:
        assert 0 <= candidate.posterior <= 1 + 1e-9
        assert 0 <= candidate.begin <= candidate.end + 1e-9 <= lattice.times[-1] + 1e-6
    assert any(c.posterior == 0 for c in candidates) == (seed > 1)
