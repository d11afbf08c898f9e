import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.hmm.tree_growing import TreeStatistics

ID = st.integers(1, 4)


@st.composite
def frames(draw):
    """Frames of integers, whose sums are exact in any order."""
    count = draw(st.integers(0, 25))
    ids = st.lists(ID, min_size=count, max_size=count)
    left, states, right = (torch.tensor(draw(ids), dtype=torch.int64) for _ in range(3))
    values = draw(st.lists(st.integers(-9, 9), min_size=2 * count, max_size=2 * count))
    return left, states, right, torch.tensor(values, dtype=torch.float32).view(count, 2)


def statistics_of(*batches):
    statistics = TreeStatistics(2)
    for batch in batches:
        statistics.accumulate(*batch)
    return statistics


def have_equal_contexts(first, second):
    return all(
        np.array_equal(a, b) for a, b in zip(first.contexts(), second.contexts(), strict=True)
    )


@given(frames())
def test_sums_are_those_of_a_loop_over_frames(batch):
    expected = {}
    for left, state, right, x in zip(*(t.tolist() for t in batch), strict=True):
        row = expected.setdefault((state, left, right), np.zeros(5))
        row += [1, *x, *(v * v for v in x)]
    contexts = statistics_of(batch).contexts()
    keys = list(zip(contexts.states, contexts.left, contexts.right, strict=True))
    assert keys == sorted(expected)
    assert contexts.sums.dtype == np.float64
    assert contexts.sums.tolist() == [expected[key].tolist() for key in keys]


@settings(max_examples=30)
@given(st.lists(frames(), min_size=1, max_size=4), st.randoms())
def test_parts_add_up_to_the_whole_in_any_order(batches, random):
    whole = statistics_of(*batches)
    parts = [statistics_of(batch) for batch in batches]
    random.shuffle(parts)
    total = TreeStatistics(2)
    for part in parts:
        total.add(pickle.loads(pickle.dumps(part)))
    assert have_equal_contexts(total, whole)
    assert total.frames == sum(len(batch[1]) for batch in batches)


def test_memory_is_bounded_by_the_number_of_contexts():
    statistics, states, x = TreeStatistics(300), torch.arange(6), torch.ones(6, 300)
    tracemalloc.start()
    try:
        for _ in range(200):
            statistics.accumulate(states, states, states, x)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(statistics) == 6
    assert used_bytes < 20 * 601 * 8  # bytes; a row of sums for each context, and room for as many
    assert statistics.frames == 1200


def test_tied_sums_pool_contexts_by_pdf():
    ids = torch.tensor([1, 1, 2])
    statistics = TreeStatistics(1)
    statistics.accumulate(ids, torch.tensor([0, 0, 0]), ids, torch.tensor([[1.0], [2.0], [5.0]]))
    table = torch.zeros(1, 3, 3, dtype=torch.int32)
    table[0, 1, 1] = 1
    count, first, second = statistics.sum_by_pdf(table)
    assert count.tolist() == [1, 2]
    assert first.tolist() == [[5], [3]]
    assert second.tolist() == [[25], [5]]


def test_shapes_that_do_not_fit_are_refused():
    ids = torch.ones(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected features"):
        TreeStatistics(2).accumulate(ids, ids, ids, torch.ones(3, 4))
    with pytest.raises(ValueError, match="got 3 states for 2 frames"):
        TreeStatistics(4).accumulate(ids, ids, ids, torch.ones(2, 4))
    with pytest.raises(ValueError, match="cannot add statistics of 4-dim"):
        TreeStatistics(2).add(TreeStatistics(4))
