"""Removal of epsilons against all paths, and against k2."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fsa.transducers import agree, silent, transducers, transductions
from toolkit.fsa.fst import fst_from_arcs
from toolkit.fsa.remove_epsilon import EpsilonError, remove_epsilon


def by_input(found):
    best = {}
    for (read, _), score in found.items():
        best[read] = max(best.get(read, -math.inf), score)
    return best


@settings(deadline=None, max_examples=300)
@given(fst=transducers(labels=(0, 0, 1, 2), arcs=12))
def test_without_epsilons_a_transducer_reads_the_same(fst):
    result = remove_epsilon(fst)
    assert (result.labels != 0).all()
    before, after = silent(transductions(fst, 7), 0), transductions(result, 7)
    agree(by_input(after), by_input(before))
    # What is left out is a worse way between the same states.
    assert after.keys() <= before.keys()
    assert all(score <= before[pair] + 1e-4 for pair, score in after.items())


@settings(deadline=None, max_examples=100)
@given(fst=transducers(labels=(0, 1, 2), words=(0,), arcs=12))
def test_without_words_nothing_is_left_out(fst):
    agree(transductions(remove_epsilon(fst), 7), silent(transductions(fst, 7), 0))


def test_words_and_scores_of_epsilons_go_to_the_arcs_that_read():
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


def test_the_better_of_two_ways_is_taken_whatever_their_length():
    arcs = [(0, 1, 1, 0, 0.0), (1, 4, 0, 5, -3.0), (1, 2, 0, 6, -1.0), (2, 4, 0, 7, -1.0)]
    fst = remove_epsilon(fst_from_arcs(arcs, [4]))
    assert transductions(fst, 4) == {((1,), (6, 7)): -2.0}


@pytest.mark.parametrize("gain", [0.0, -0.5])
def test_cycles_of_epsilons_that_gain_nothing_are_gone_round_at_most_once(gain):
    arcs = [(0, 1, 1, 3, 0.0), (1, 2, 0, 0, 0.3), (2, 3, 0, 0, -0.1), (3, 1, 0, 0, gain - 0.2)]
    fst = remove_epsilon(fst_from_arcs([*arcs, (2, 4, 2, 0, 0.0), (1, 4, 3, 0, 0.0)], [4]))
    found = transductions(fst, 4)
    assert found[(1, 2), (3,)] == pytest.approx(0.3)
    assert found[(1, 3), (3,)] == pytest.approx(0.0)


def test_a_cycle_of_epsilons_that_gains_is_an_error():
    arcs = [(0, 1, 1, 3, 0.0), (1, 2, 0, 0, 0.3), (2, 1, 0, 0, -0.2), (2, 3, 1, 0, 0.0)]
    with pytest.raises(EpsilonError, match="gains"):
        remove_epsilon(fst_from_arcs(arcs, [3]))


@settings(deadline=None, max_examples=50)
@given(fst=transducers(labels=(0, 1, 2), words=(0,), arcs=10))
def test_k2_agrees(fst):
    k2 = pytest.importorskip("k2")
    import torch

    columns = (fst.source, fst.target, fst.labels, fst.scores.view(np.int32))
    theirs = k2.connect(k2.Fsa(torch.from_numpy(np.stack(columns, axis=1))))
    ours = by_input(transductions(remove_epsilon(fst), 7))
    if theirs.num_arcs == 0:
        assert not ours
        return
    theirs = k2.connect(k2.remove_epsilon(theirs))
    arcs = theirs.arcs.values().numpy()
    theirs = replace(
        fst,
        source=arcs[:, 0],
        target=arcs[:, 1],
        labels=arcs[:, 2],
        scores=theirs.scores.numpy(),
        splits=np.zeros(len(arcs) + 1, np.int32),
    )
    agree(ours, by_input(transductions(theirs, 7)))
