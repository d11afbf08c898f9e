import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.features.packing import balanced_parts, number_of_shards

SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0.1, 50), min_size=1)


@given(SIZES, st.integers(1, 6))
def test_every_group_is_in_one_part_and_none_is_empty(sizes, count):
    parts = balanced_parts(sizes, count)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    assert len(parts) == min(count, len(sizes))
    assert all(parts)


@given(SIZES, st.integers(1, 6))
def test_parts_differ_by_no_more_than_the_largest_group(sizes, count):
    loads = [sum(sizes[name] for name in part) for part in balanced_parts(sizes, count)]
    assert max(loads) - min(loads) <= max(sizes.values()) + 1e-9


@given(SIZES, st.integers(1, 6), st.randoms())
def test_the_order_of_the_groups_does_not_matter(sizes, count, random):
    items = list(sizes.items())
    random.shuffle(items)
    assert balanced_parts(dict(items), count) == balanced_parts(sizes, count)


@pytest.mark.parametrize(
    ("seconds", "hours", "shards"),
    [
        *[(0, 1, 1), (59, 1, 1), (60, 1, 1), (119, 1, 1), (120, 1, 2), (240, 1, 4), (7200, 1, 4)],
        *[(7200, 0.1, 20), (90, 0.005, 5), (36_000, 1, 10)],
    ],
)
def test_a_split_of_minutes_keeps_several_processes_busy(seconds, hours, shards):
    assert number_of_shards(seconds, hours) == shards
