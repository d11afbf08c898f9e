"""The range coder: what is read is what was written, in about as many bits as there is to know."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from toolkit.fsa.lattice_codec_kernels import code_decision, make_reader, make_writer, written_bytes

CONTEXTS = 3


@njit
def each(coder, contexts, decisions, reading):
    for n in range(len(contexts)):
        decisions[n] = code_decision(coder, contexts[n], decisions[n], reading)


def coded(contexts, decisions):
    coder = make_writer(len(decisions), CONTEXTS)
    each(coder, contexts, decisions.copy(), False)
    return written_bytes(coder)


def decoded(data, contexts):
    decisions = np.zeros(len(contexts), bool)
    each(make_reader(data, CONTEXTS), contexts, decisions, True)
    return decisions


def in_one(decisions):
    return coded(np.zeros(len(decisions), np.int64), decisions)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, CONTEXTS - 1), st.booleans(), st.sampled_from([1, 2, 500])),
        max_size=60,
    )
)
def test_decisions_come_back(runs):
    contexts = np.array([context for context, _, n in runs for _ in range(n)], np.int64)
    decisions = np.array([decision for _, decision, n in runs for _ in range(n)], bool)
    assert np.array_equal(decoded(coded(contexts, decisions), contexts), decisions)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_sizes_are_near_the_entropy(share):
    drawn = np.random.default_rng(0).random(100_000) < share
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert len(in_one(drawn)) * 8 < 1.02 * entropy * len(drawn)


def test_what_never_changes_takes_next_to_nothing():
    assert len(in_one(np.ones(100_000, bool))) < 100_000 / 8 / 100


def test_after_a_surprise_all_comes_back():
    decisions = np.ones(20_000, bool)
    decisions[10_000] = False
    contexts = np.zeros(20_000, np.int64)
    assert np.array_equal(decoded(coded(contexts, decisions), contexts), decisions)


def test_behind_the_end_there_are_zeros():
    contexts = np.zeros(100, np.int64)
    assert np.array_equal(decoded(b"", contexts), decoded(bytes(100), contexts))
