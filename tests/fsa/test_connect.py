"""Trimming keeps exactly the arcs on paths."""

import numpy as np
from hypothesis import given, settings

from tests.fsa.transducers import transducers, transductions
from toolkit.fsa.fst import arc_sort, connect, fst_from_arcs


@settings(deadline=None, max_examples=100)
@given(fst=transducers(cyclic=True))
def test_a_trimmed_transducer_has_the_same_paths_and_no_dead_ends(fst):
    trimmed = connect(fst)
    assert transductions(trimmed, 5) == transductions(fst, 5)
    assert transductions(arc_sort(trimmed), 5) == transductions(fst, 5)
    assert connect(trimmed).num_arcs == trimmed.num_arcs
    inner = set(range(trimmed.num_states - 1))
    assert inner == {*trimmed.source.tolist()}
    assert inner | {len(inner)} >= {*trimmed.target}
    assert {*trimmed.target.tolist()} | {0} >= inner


def test_dead_ends_are_removed_with_their_words():
    arcs = [
        (0, 1, 5, 7, -1.0),
        (0, 2, 6, 8, -2.0),
        (3, 2, 4, 9, -3.0),
    ]  # 1 ends nowhere, 3 unreached
    trimmed = connect(fst_from_arcs(arcs, [2]))
    assert trimmed.labels.tolist() == [6, -1]
    assert trimmed.words.tolist() == [8]
    assert trimmed.source.tolist() == [0, 1]
    assert trimmed.target.tolist() == [1, 2]


def test_a_transducer_without_a_path_becomes_empty():
    empty = connect(fst_from_arcs([(0, 1, 5, 7, 0.0)], [2]))
    assert (empty.num_arcs, empty.num_states, empty.splits.tolist()) == (0, 0, [0])
    assert connect(empty).num_arcs == 0


def test_arcs_are_sorted_by_label_within_their_states():
    arcs = [(0, 1, 3, 1, 0.0), (0, 2, 2, 2, 0.0), (0, 1, 2, 3, 0.0), (1, 2, 1, 4, 0.0)]
    ordered = arc_sort(fst_from_arcs(arcs, [2]))
    assert ordered.labels.tolist() == [2, 2, 3, 1, -1]
    assert ordered.words.tolist() == [3, 2, 1, 4]
    assert (np.diff(ordered.source) >= 0).all()
