"""Composition against joining all paths of both sides."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fsa.transducers import agree, transducers, transductions
from toolkit.fsa.compose import CompositionError, compose
from toolkit.fsa.fst import connect, fst_from_arcs


def joined(a, b):
    """What the composition must do, from all that both do."""
    best = defaultdict(lambda: -np.inf)
    for (read, wrote), score in a.items():
        for (heard, said), more in b.items():
            if wrote == heard:
                best[read, said] = max(best[read, said], score + more)
    return dict(best)


@settings(deadline=None, max_examples=200)
@given(a=transducers(labels=(0, 1, 2)), b=transducers(labels=(1, 2), words=(0, 5, 6)))
def test_a_composition_makes_what_both_make_in_turn(a, b):
    found = transductions(compose(a, b), 6)
    agree(found, joined(transductions(a, 6), transductions(b, 6)))


@settings(deadline=None, max_examples=50)
@given(a=transducers(labels=(0, 1, 2)), b=transducers(labels=(1, 2), words=(0, 5, 6)))
def test_a_composition_keeps_the_scores_of_the_second_part(a, b):
    both = compose(a, b)
    silent = compose(replace(a, scores=0 * a.scores), b)
    assert np.array_equal(both.lm_scores, silent.scores)
    other = compose(a, replace(b, lm_scores=b.scores * 3))
    assert np.array_equal(other.scores, both.scores)
    assert np.array_equal(other.lm_scores, both.lm_scores * 3)


def test_a_composition_with_cycles_ends():
    a = fst_from_arcs([(0, 0, 1, 3, -1.0), (0, 1, 2, 0, 0.0), (1, 0, 2, 4, 0.0)], [0])
    b = fst_from_arcs([(0, 1, 3, 8, -0.5), (1, 0, 4, 0, -0.25)], [0])
    both = connect(compose(a, b))
    assert transductions(both, 4) == {((), ()): 0.0, ((1, 2, 2), (8,)): -1.75}


def test_a_large_state_is_searched_from_the_smaller_side():
    """One of 300,000 words of the one side, with each of 300,000 states of the other."""
    size = 300_000
    many = np.arange(1, size + 1, dtype=np.int32)
    one = fst_from_arcs([(0, 0, 1, 1, 0.0)], [0])
    a = replace(
        one,
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


@pytest.mark.parametrize("wrong", ["two words", "a word at the end", "an epsilon"])
def test_arguments_of_another_form_are_refused(wrong):
    a = fst_from_arcs([(0, 1, 1, 3, 0.0)], [1])
    b = fst_from_arcs([(0, 1, 3 if wrong != "an epsilon" else 0, 3, 0.0)], [1])
    if wrong == "two words":
        a = replace(a, splits=2 * a.splits, words=np.array([3, 3], np.int32))
    elif wrong == "a word at the end":
        a = replace(a, splits=np.array([0, 0, 1], np.int32))
    with pytest.raises(CompositionError):
        compose(a, b)
