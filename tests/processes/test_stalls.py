"""Which ranks count as stalled, on a simulated clock."""

import pytest

from toolkit.processes import watchdog
from toolkit.processes.watchdog import StallDetector

LIMIT = 10.0


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


@pytest.fixture
def ranks(clock):
    return [StallDetector(rank) for rank in range(3)]


def stalled(ranks):
    """Pass the statuses of the other ranks to rank 0; return the ranks that it finds stalled."""
    for rank, detector in enumerate(ranks[1:], 1):
        ranks[0].update(rank, detector.status())
    return ranks[0].stalled()


def test_a_slow_rank_is_not_stalled_and_one_that_stops_is(clock, ranks):
    first, second, third = ranks
    for _ in range(5):
        for rank in ranks:
            rank.step(LIMIT)
        assert stalled(ranks) == []
        clock.now += LIMIT - 1
        assert stalled(ranks) == []
    with first.waiting(LIMIT), third.waiting(LIMIT):
        for _ in range(5):
            second.step(LIMIT)
            assert stalled(ranks) == []
            clock.now += LIMIT - 1
            assert stalled(ranks) == []
        clock.now += 2
        assert stalled(ranks) == [1]


def test_no_rank_is_stalled_while_none_takes_steps(clock, ranks):
    clock.now += 100
    assert stalled(ranks) == []
    for rank in ranks:
        rank.step(LIMIT)
    assert stalled(ranks) == []
    for rank in ranks:
        with rank.waiting(LIMIT):
            pass
    assert stalled(ranks) == []
    clock.now += 100  # rank 0 validates
    assert stalled(ranks) == []


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_does_not_start_after_another_has_is_stalled(clock, ranks, late):
    clock.now += 100
    stalled(ranks)
    for rank, detector in enumerate(ranks):
        if rank != late:
            detector.step(LIMIT)
    stalled(ranks)
    clock.now += LIMIT - 1
    for rank, detector in enumerate(ranks):
        if rank != late:
            detector.step(LIMIT)
    assert stalled(ranks) == []
    clock.now += 2
    assert stalled(ranks) == [late]


def test_ranks_that_wait_for_the_stalled_one_are_listed_with_it(clock, ranks):
    for seconds, rank in ((2, ranks[0]), (2, ranks[1]), (7, ranks[2])):
        rank.step(LIMIT)
        stalled(ranks)
        clock.now += seconds
    assert stalled(ranks) == [0, 1, 2]


def test_an_old_status_of_the_round_before_makes_no_rank_stalled(clock, ranks):
    for rank in ranks:
        rank.wait(LIMIT)
    stalled(ranks)
    ranks[0].idle()
    ranks[2].idle()
    for _ in range(5):
        clock.now += LIMIT
        assert stalled(ranks) == []


def test_without_statuses_of_others_no_rank_is_stalled(clock, ranks):
    stalled(ranks)
    with ranks[0].waiting(LIMIT):
        clock.now += 100
        assert ranks[0].stalled() == []
