"""Composition equals joining all paths of both sides."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fsa.transducers import assert_scores_equal, transducers, transductions
from toolkit.fsa.compose import CompositionError, compose
from toolkit.fsa.fst import connect, fst_from_arcs


def expected_composition(a, b):
    """The transductions of a composition, from those of both sides."""
    best = defaultdict(lambda: -np.inf)
    for (read, wrote), score in a.items():
        for (b_input, b_output), b_score in b.items():
            if wrote == b_input:
                best[read, b_output] = max(best[read, b_output], score + b_score)
    return dict(best)


@settings(deadline=None, max_examples=200)
@given(a=transducers(labels=(0, 1, 2)), b=transducers(labels=(1, 2), words=(0, 5, 6)))
def test_a_composition_applies_both_transducers_in_turn(a, b):
    composed = transductions(compose(a, b), 6)
    assert_scores_equal(composed, expected_composition(transductions(a, 6), transductions(b, 6)))


@settings(deadline=None, max_examples=50)
@given(a=transducers(labels=(0, 1, 2)), b=transducers(labels=(1, 2), words=(0, 5, 6)))
def test_a_composition_keeps_the_scores_of_the_second_part(a, b):
    composed = compose(a, b)
    silent = compose(replace(a, scores=0 * a.scores), b)
    assert np.array_equal(composed.lm_scores, silent.scores)
    rescored = compose(a, replace(b, lm_scores=b.scores * 3))
    assert np.array_equal(rescored.scores, composed.scores)
    assert np.array_equal(rescored.lm_scores, composed.lm_scores * 3)


def test_a_composition_with_cycles_ends():
    a = fst_from_arcs([(0, 0, 1, 3, -1.0), (0, 1, 2, 0, 0.0), (1, 0, 2, 4, 0.0)], [0])
    b = fst_from_arcs([(0, 1, 3, 8, -0.5), (1, 0, 4, 0, -0.25)], [0])
    composed = connect(compose(a, b))
    assert transductions(composed, 4) == {((), ()): 0.0, ((1, 2, 2), (8,)): -1.75}


def test_a_large_state_is_searched_from_the_smaller_side():
    """One of 300,000 words of one side matches each of 300,000 states of the other."""
    size = 300_000
    many = np.arange(1, size + 1, dtype=np.int32)
    single_arc = fst_from_arcs([(0, 0, 1, 1, 0.0)], [0])
    a = replace(
        single_arc,
        source=np.zeros(size + 1, np.int32),
        target=np.append(np.zeros(size, np.int32), np.int32(1)),
        labels=np.append(many, np.int32(-1)),
        scores=np.zeros(size + 1, np.float32),
        splits=np.append(np.arange(size + 1), size).astype(np.int32),
        words=many,
    )
    b = replace(
        a,
        source=np.arange(size + 1, dtype=np.int32),
        target=np.arange(1, size + 2, dtype=np.int32),
    )
    assert connect(compose(a, b)).num_arcs == size + 1


@pytest.mark.parametrize("fault", ["two words", "a word at the end", "an epsilon"])
def test_malformed_transducers_are_refused(fault):
    a = fst_from_arcs([(0, 1, 1, 3, 0.0)], [1])
    b = fst_from_arcs([(0, 1, 3 if fault != "an epsilon" else 0, 3, 0.0)], [1])
    if fault == "two words":
        a = replace(a, splits=2 * a.splits, words=np.array([3, 3], np.int32))
    elif fault == "a word at the end":
        a = replace(a, splits=np.array([0, 0, 1], np.int32))
    with pytest.raises(CompositionError):
        compose(a, b)
