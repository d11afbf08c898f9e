"""Epsilon removal keeps all paths and agrees with k2."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fsa.transducers import assert_scores_equal, transducers, transductions, without_labels
from toolkit.fsa.fst import fst_from_arcs
from toolkit.fsa.remove_epsilon import EpsilonError, remove_epsilon


def by_input(scores):
    best = {}
    for (read, _), score in scores.items():
        best[read] = max(best.get(read, -math.inf), score)
    return best


@settings(deadline=None, max_examples=300)
@given(fst=transducers(labels=(0, 0, 1, 2), arcs=12))
def test_without_epsilons_a_transducer_reads_the_same(fst):
    result = remove_epsilon(fst)
    assert (result.labels != 0).all()
    original, epsilon_free = without_labels(transductions(fst, 7), 0), transductions(result, 7)
    assert_scores_equal(by_input(epsilon_free), by_input(original))
    # What is left out is a worse way between the same states.
    assert epsilon_free.keys() <= original.keys()
    assert all(score <= original[pair] + 1e-4 for pair, score in epsilon_free.items())


@settings(deadline=None, max_examples=100)
@given(fst=transducers(labels=(0, 1, 2), words=(0,), arcs=12))
def test_without_words_nothing_is_left_out(fst):
    assert_scores_equal(
        transductions(remove_epsilon(fst), 7), without_labels(transductions(fst, 7), 0)
    )


def test_words_and_scores_of_epsilons_move_to_labelled_arcs():
    # From the start, between two arcs, and before the end.
    arcs = [(0, 1, 0, 5, -0.5), (1, 2, 1, 6, -1.0), (2, 3, 0, 7, -0.25), (3, 4, 0, 0, 0.0)]
    arcs += [(4, 5, 2, 0, -1.0), (5, 6, 0, 8, -2.0)]
    fst = fst_from_arcs(arcs, [6])
    fst = remove_epsilon(replace(fst, lm_scores=fst.scores / 2))
    assert transductions(fst, 4) == {((1, 2), (5, 6, 7, 8)): -4.75}
    assert fst.lm_scores.sum() == pytest.approx(-4.75 / 2)
    assert fst.num_arcs == 3


def test_an_empty_input_may_write_words():
    fst = remove_epsilon(fst_from_arcs([(0, 1, 0, 5, -0.5), (1, 0, 0, 6, -0.5)], [1]))
    assert transductions(fst, 3) == {((), (5,)): -0.5}


def test_the_better_of_two_epsilon_paths_wins_whatever_their_length():
    arcs = [(0, 1, 1, 0, 0.0), (1, 4, 0, 5, -3.0), (1, 2, 0, 6, -1.0), (2, 4, 0, 7, -1.0)]
    fst = remove_epsilon(fst_from_arcs(arcs, [4]))
    assert transductions(fst, 4) == {((1,), (6, 7)): -2.0}


@pytest.mark.parametrize("gain", [0.0, -0.5])
def test_epsilon_cycles_without_gain_are_traversed_at_most_once(gain):
    arcs = [(0, 1, 1, 3, 0.0), (1, 2, 0, 0, 0.3), (2, 3, 0, 0, -0.1), (3, 1, 0, 0, gain - 0.2)]
    fst = remove_epsilon(fst_from_arcs([*arcs, (2, 4, 2, 0, 0.0), (1, 4, 3, 0, 0.0)], [4]))
    scores = transductions(fst, 4)
    assert scores[(1, 2), (3,)] == pytest.approx(0.3)
    assert scores[(1, 3), (3,)] == pytest.approx(0.0)


def test_an_epsilon_cycle_with_gain_is_an_error():
    arcs = [(0, 1, 1, 3, 0.0), (1, 2, 0, 0, 0.3), (2, 1, 0, 0, -0.2), (2, 3, 1, 0, 0.0)]
    with pytest.raises(EpsilonError, match="epsilon cycle with a positive score"):
        remove_epsilon(fst_from_arcs(arcs, [3]))


@settings(deadline=None, max_examples=50)
@given(fst=transducers(labels=(0, 1, 2), words=(0,), arcs=10))
def test_k2_agrees(fst):
    k2 = pytest.importorskip("k2")
    import torch

    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    k2_fsa = k2.connect(k2.Fsa(torch.from_numpy(np.stack(columns, axis=1))))
    best_by_input = by_input(transductions(remove_epsilon(fst), 7))
    if k2_fsa.num_arcs == 0:
        assert not best_by_input
        return
    k2_fsa = k2.connect(k2.remove_epsilon(k2_fsa))
    arcs = k2_fsa.arcs.values().numpy()
    expected = replace(
        fst,
        source=arcs[:, 0],
        target=arcs[:, 1],
        labels=arcs[:, 2],
        scores=k2_fsa.scores.numpy(),
        splits=np.zeros(len(arcs) + 1, np.int32),
    )
    assert_scores_equal(best_by_input, by_input(transductions(expected, 7)))
