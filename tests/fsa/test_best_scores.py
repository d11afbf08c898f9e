"""Best scores equal the enumeration of all paths."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.fsa.fst import FINAL, Fst
from toolkit.fsa.lattice import backward_scores, forward_scores


def transducer(arcs):
    """A transducer of sorted arcs (source, target, score); the last state is final."""
    source, target, scores = zip(*sorted(arcs), strict=True) if arcs else ((), (), ())
    last = max(target, default=0)
    return Fst(
        source=np.array(source, np.int32),
        target=np.array(target, np.int32),
        labels=np.array([FINAL if t == last else 1 for t in target], np.int32),
        scores=np.array(scores, np.float32),
        splits=np.zeros(len(arcs) + 1, np.int32),
        words=np.zeros(0, np.int32),
    )


def best(fst, state, end):
    """The best score of all paths between two states, by enumeration."""
    if state == end:
        return 0.0
    return max(
        (
            float(fst.scores[a]) + best(fst, int(fst.target[a]), end)
            for a in range(fst.num_arcs)
            if fst.source[a] == state
        ),
        default=-math.inf,
    )


@st.composite
def acyclic(draw):
    states = draw(st.integers(2, 7))
    pairs = st.tuples(st.integers(0, states - 2), st.integers(1, states - 1))
    ends = draw(st.lists(pairs.filter(lambda pair: pair[0] < pair[1]), max_size=12))
    ends = [*ends, (0, states - 1)]
    return transducer([(a, b, draw(st.floats(-50, 50, width=32))) for a, b in ends])


@settings(deadline=None)
@given(acyclic())
def test_scores_equal_the_best_of_all_paths(fst):
    states = range(fst.num_states)
    forward, backward = forward_scores(fst), backward_scores(fst)
    assert forward.dtype == backward.dtype == np.float64
    assert forward.tolist() == pytest.approx([best(fst, 0, s) for s in states], abs=1e-9)
    end = fst.num_states - 1
    assert backward.tolist() == pytest.approx([best(fst, s, end) for s in states], abs=1e-9)
    assert forward[-1] == pytest.approx(backward[0], abs=1e-9)


def test_sums_are_taken_in_float64():
    fst = transducer([(0, 1, 2.0**24), (1, 2, 1.0), (2, 3, 1.0)])
    assert forward_scores(fst)[-1] == backward_scores(fst)[0] == 2.0**24 + 2


def test_without_arcs_there_are_no_states():
    fst = transducer([])
    assert forward_scores(fst).shape == backward_scores(fst).shape == (0,)
