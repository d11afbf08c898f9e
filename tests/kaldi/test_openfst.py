from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.transducers import agree, silent, transducers, transductions
from tests.kaldi.openfst_files import fst_of, read_openfst
from toolkit.fsa.fst import connect, fst_from_arcs
from toolkit.kaldi.openfst import dump_openfst


@settings(max_examples=60, deadline=None)
@given(transducers(labels=(0, 1, 2), cyclic=True))
def test_a_file_says_what_the_transducer_said(fst):
    if not fst.num_arcs:
        return
    for by_output in (False, True):
        again = fst_of(dump_openfst(fst, by_output))
        agree(transductions(again, 5), transductions(fst, 5))


@settings(max_examples=60, deadline=None)
@given(transducers(words=(0,)), st.lists(st.integers(0, 3), min_size=20, max_size=20))
def test_several_words_of_an_arc_follow_each_other(fst, counts):
    """Those of arcs to the final state too."""
    splits = np.append(0, np.cumsum(counts[: fst.num_arcs])).astype(np.int32)
    fst = replace(fst, splits=splits, words=np.arange(1, 1 + splits[-1], dtype=np.int32))
    found = silent(transductions(fst_of(dump_openfst(fst)), 30), 0)
    agree(found, transductions(fst, 10))


@pytest.mark.parametrize("by_output", [False, True])
def test_arcs_are_sorted_by_the_labels_of_one_side(random_graph, by_output):
    content = dump_openfst(random_graph(1).fst, by_output)
    _, arcs, _ = read_openfst(content)
    keys = [(arc[0], arc[3 if by_output else 2]) for arc in arcs]
    assert keys == sorted(keys)
    properties = int.from_bytes(content[34:42], "little")
    assert properties == 0x3 | (0x40000000 if by_output else 0x10000000)


def test_of_several_ends_of_a_state_the_best_counts():
    fst = fst_from_arcs([(0, 1, 1, 0, -1.0)], {1: -2.0})
    twice = fst.select_arcs(np.array([0, 1, 1]))
    twice.scores[2] = -0.5
    assert read_openfst(dump_openfst(twice)) == (2, [(0, 1, 1, 0, 1.0)], {1: 0.5})


def test_nothing_is_a_file_without_states():
    nothing = connect(fst_from_arcs([(0, 1, 1, 0, 0.0)], [0]).select_arcs(np.array([0])))
    assert read_openfst(dump_openfst(nothing)) == (0, [], {})
