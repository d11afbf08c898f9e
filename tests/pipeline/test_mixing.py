import random
from itertools import permutations

import pytest

from tests.pipeline.mixing import interleaved, mixing


def test_expectation_of_a_uniform_shuffle_is_the_mean_over_all_orders():
    labels = "aaabbc"
    orders = [mixing(order, 3) for order in permutations(labels)]
    count = len(orders)
    first = orders[0]
    assert first.same_uniform == pytest.approx(sum(m.same for m in orders) / count)
    assert first.distinct_uniform == pytest.approx(sum(m.distinct for m in orders) / count)
    assert sum(m.distance for m in orders) / count == pytest.approx(0, abs=1e-12)


def test_distance_is_1_for_sorted_and_0_for_shuffled_labels():
    labels = [n // 100 for n in range(2000)]
    assert mixing(labels, 50).distance == pytest.approx(1)
    assert mixing(labels, 50).distinct == 1
    random.Random(0).shuffle(labels)
    measured = mixing(labels, 50)
    assert abs(measured.distance) < 0.01
    assert measured.distinct == pytest.approx(measured.distinct_uniform, rel=0.03)


def test_a_window_longer_than_the_data_is_all_of_it():
    measured = mixing("aabb", 10)
    assert measured.window == 4
    assert measured.same == measured.same_uniform
    with pytest.raises(ValueError, match="two"):
        mixing("a", 5)


def test_interleaved_readers_take_turns():
    assert interleaved(["abc", "d", "ef", "g"], 3) == list("adebfcg")
    assert interleaved(["abc", "d"], 1) == list("abcd")
