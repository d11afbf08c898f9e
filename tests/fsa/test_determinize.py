"""Determinization keeps all paths and emits scores and words as early as possible."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fsa.transducers import assert_scores_equal, transducers, transductions
from toolkit.fsa.determinize import DeterminizationError, determinize
from toolkit.fsa.fst import FINAL, connect, fst_from_arcs


def words_by_arc(fst):
    return [w.tolist() for w in np.split(fst.words, fst.splits[1:-1])]


@settings(deadline=None, max_examples=300)
@given(fst=transducers(labels=(0, 1, 2), arcs=12))
def test_a_deterministic_transducer_has_the_same_transductions(fst):
    trimmed = connect(fst)
    if not trimmed.num_arcs:
        return
    deterministic = determinize(trimmed)
    assert_scores_equal(transductions(deterministic, 7), transductions(fst, 7))
    pairs = Counter(zip(deterministic.source.tolist(), deterministic.labels.tolist(), strict=True))
    assert all(count == 1 for (_, label), count in pairs.items() if label != FINAL)
    assert connect(deterministic).num_arcs == deterministic.num_arcs
    redeterminized = determinize(deterministic)
    assert redeterminized.num_states <= deterministic.num_states
    assert_scores_equal(transductions(redeterminized, 7), transductions(fst, 7))


@settings(deadline=None, max_examples=100)
@given(fst=transducers(labels=(1, 2), arcs=12))
def test_lm_scores_are_those_of_the_paths_kept(fst):
    """LM scores that are a function of the scores on each arc remain so on each path."""
    trimmed = connect(fst)
    if not trimmed.num_arcs:
        return
    # As many different paths as there may be, no two of them equally good.
    scores = -(2.0 ** -np.arange(trimmed.num_arcs)).astype(np.float32)
    determinized = determinize(replace(trimmed, scores=scores, lm_scores=scores / 2 - 1))
    halves = transductions(
        replace(determinized, scores=determinized.scores / 2 - determinized.lm_scores), 7
    )
    # Every arc of the original counts 1, the one to the final state too.
    assert_scores_equal(halves, {pair: len(pair[0]) + 1.0 for pair in halves})


def test_scores_and_words_come_as_early_as_they_are_decided():
    # 1 2 -> 7 (best), 1 3 -> 8, 4 5 and 4 6 -> 9
    arcs = [(0, 1, 1, 0, 0.0), (1, 2, 2, 7, -1.0), (0, 3, 1, 0, 0.0), (3, 2, 3, 8, -3.0)]
    arcs += [(0, 4, 4, 9, 0.0), (4, 2, 5, 0, -2.0), (0, 5, 4, 9, -1.5), (5, 2, 6, 0, -2.0)]
    fst = determinize(fst_from_arcs(arcs, [2]))
    labelled_arcs = zip(fst.labels.tolist(), words_by_arc(fst), fst.scores.tolist(), strict=True)
    assert sorted(labelled_arcs) == [
        (-1, [], 0.0),
        (1, [], 0.0),
        (2, [7], -1.0),
        (3, [8], -3.0),
        (4, [9], 0.0),
        (5, [], -2.0),
        (6, [], -3.5),
    ]


def test_pending_words_do_not_multiply_later_states():
    """Each of 50 words leads to the same long sequence; the result has it once."""
    arcs = [(0, 1, 10 + k, k + 1, -k / 8) for k in range(50)]
    arcs += [(1 + k, 2 + k, 1, 0, -1.0) for k in range(100)]
    fst = determinize(fst_from_arcs(arcs, [101]))
    assert (fst.num_states, fst.num_arcs) == (103, 151)


def test_pending_words_are_written_at_the_end():
    arcs = [(0, 1, 1, 5, 0.0), (1, 1, 2, 6, 0.0), (0, 2, 1, 7, 0.0), (2, 3, 3, 8, 0.0)]
    fst = determinize(connect(fst_from_arcs(arcs, [1, 3])))
    scores = transductions(fst, 5)
    assert scores[(1,), (5,)] == 0.0
    assert scores[(1, 3), (7, 8)] == 0.0
    assert scores[(1, 2, 2), (5, 6, 6)] == 0.0


@pytest.mark.parametrize("differs_in", ["scores", "words"])
def test_cycles_without_twins_are_an_error_and_not_an_endless_run(differs_in):
    arcs = [(0, 1, 1, 0, 0.0), (0, 2, 1, 0, 0.0), (1, 1, 2, 3, -1.0), (1, 3, 4, 0, 0.0)]
    arcs += [(2, 2, 2, *((3, -2.0) if differs_in == "scores" else (4, -1.0))), (2, 3, 5, 0, 0.0)]
    with pytest.raises(DeterminizationError, match="disambiguation symbols"):
        determinize(fst_from_arcs(arcs, [3]))


def test_twins_are_no_error():
    arcs = [(0, 1, 1, 0, -0.1), (0, 2, 1, 0, -0.7), (1, 1, 2, 3, -1.3), (1, 3, 4, 0, 0.0)]
    arcs += [(2, 2, 2, 3, -1.3), (2, 3, 5, 0, 0.0)]
    fst = determinize(fst_from_arcs(arcs, [3]))
    assert (fst.num_states, fst.num_arcs) == (4, 5)
    assert transductions(fst, 5)[(1, 2, 2, 5), (3, 3)] == pytest.approx(-0.7 - 2.6, abs=1e-5)
