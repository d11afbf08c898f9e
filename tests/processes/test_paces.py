"""Who is taken for hung, by a clock of our own."""

import pytest

from toolkit.processes import paces
from toolkit.processes.paces import Paces

LIMIT = 10.0


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    return clock


@pytest.fixture
def ranks(clock):
    return [Paces(rank) for rank in range(3)]


def told(ranks):
    """Let rank 0 see the signs of the others."""
    for rank, other in enumerate(ranks[1:], 1):
        ranks[0].see(rank, other.sign())
    return ranks[0].stuck()


def test_who_moves_however_slowly_is_not_stuck_and_who_stops_is(clock, ranks):
    first, second, third = ranks
    for _ in range(5):
        for rank in ranks:
            rank.step(LIMIT)
        assert told(ranks) == []
        clock.now += LIMIT - 1
        assert told(ranks) == []
    with first.waiting(LIMIT), third.waiting(LIMIT):
        for _ in range(5):
            second.step(LIMIT)
            assert told(ranks) == []
            clock.now += LIMIT - 1
            assert told(ranks) == []
        clock.now += 2
        assert told(ranks) == [1]


def test_nobody_is_judged_while_nobody_takes_steps(clock, ranks):
    clock.now += 100
    assert told(ranks) == []
    for rank in ranks:
        rank.step(LIMIT)
    assert told(ranks) == []
    for rank in ranks:
        with rank.waiting(LIMIT):
            pass
    assert told(ranks) == []
    clock.now += 100  # rank 0 validates
    assert told(ranks) == []


@pytest.mark.parametrize("late", [0, 1])
def test_who_does_not_begin_when_another_has_is_stuck(clock, ranks, late):
    clock.now += 100
    told(ranks)
    for rank, paces_ in enumerate(ranks):
        if rank != late:
            paces_.step(LIMIT)
    told(ranks)
    clock.now += LIMIT - 1
    for rank, paces_ in enumerate(ranks):
        if rank != late:
            paces_.step(LIMIT)
    assert told(ranks) == []
    clock.now += 2
    assert told(ranks) == [late]


def test_who_waits_for_the_one_that_is_stuck_is_listed_with_it(clock, ranks):
    for seconds, rank in ((2, ranks[0]), (2, ranks[1]), (7, ranks[2])):
        rank.step(LIMIT)
        told(ranks)
        clock.now += seconds
    assert told(ranks) == [0, 1, 2]


def test_an_old_sign_of_the_round_before_judges_nobody(clock, ranks):
    for rank in ranks:
        rank._change(waits=True, limit=LIMIT)
    told(ranks)
    ranks[0].rest()
    ranks[2].rest()
    for _ in range(5):
        clock.now += LIMIT
        assert told(ranks) == []


def test_without_signs_there_is_no_verdict(clock, ranks):
    told(ranks)
    with ranks[0].waiting(LIMIT):
        clock.now += 100
        assert ranks[0].stuck() == []
