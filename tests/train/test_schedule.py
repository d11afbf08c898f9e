from itertools import pairwise

import pytest

from toolkit.train.optimizer import exponential_rate


def test_decay_is_exponential_from_initial_to_final():
    rates = [exponential_rate(step, 11, 1e-2, 1e-4) for step in range(11)]
    assert rates[0] == pytest.approx(1e-2)
    assert rates[-1] == pytest.approx(1e-4)
    quotients = [b / a for a, b in pairwise(rates)]
    assert quotients == pytest.approx([0.01**0.1] * 10)


def test_warmup_climbs_in_equal_parts_to_the_initial_rate():
    rates = [exponential_rate(step, 20, 1.0, 0.1, warmup=4) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[4:]))


def test_a_single_step_has_the_initial_rate():
    assert exponential_rate(0, 1, 1.0, 0.1) == 1.0
