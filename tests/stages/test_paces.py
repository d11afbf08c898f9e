"""Who is taken for hung, by a clock of our own."""

import pytest

from toolkit.stages import paces
from toolkit.stages.paces import Paces

LIMIT = 10.0
RESTING = {"steps": 0, "rounds": 0, "waits": False}


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    return clock


def told(watching, *others):
    """Let a rank see signs of the others, by rank from 1."""
    for rank, sign in enumerate(others, 1):
        watching.see(rank, sign)
    return watching.stuck()


def test_who_moves_however_slowly_is_not_stuck_and_who_stops_is(clock):
    first, second = Paces(0), Paces(1)
    for _ in range(5):
        first.step(LIMIT)
        second.step(LIMIT)
        clock.now += LIMIT - 1
        assert told(first, second.sign()) == []
    with first.waiting(LIMIT):
        for _ in range(5):
            second.step(LIMIT)
            assert told(first, second.sign()) == []
            clock.now += LIMIT - 1
            assert told(first, second.sign()) == []
        clock.now += 2
        assert told(first, second.sign()) == [1]


def test_nobody_is_judged_while_this_rank_takes_no_steps(clock):
    first, second = Paces(0), Paces(1)
    second.step(LIMIT)
    clock.now += 100
    assert told(first, second.sign()) == []
    first.step(LIMIT)
    assert told(first, second.sign()) == []  # it has its time from now on
    with first.waiting(LIMIT):
        clock.now += LIMIT + 1
        assert told(first, second.sign()) == [1]
    clock.now += 100
    assert told(first, second.sign()) == []


def test_who_waits_too_is_not_stuck_and_who_has_not_begun_is(clock):
    first, second = Paces(0), Paces(1)
    with first.waiting(LIMIT), second.waiting(LIMIT):
        clock.now += LIMIT + 1
        assert told(first, second.sign(), RESTING) == []
        clock.now += LIMIT + 1
        assert told(first, second.sign(), RESTING) == [2]


def test_a_rank_may_be_stuck_itself_or_wait_for_another(clock):
    first, second = Paces(0), Paces(1)
    first.step(LIMIT)
    told(first, second.sign())
    clock.now += 2
    second.step(LIMIT)
    told(first, second.sign())
    clock.now += LIMIT - 1
    assert told(first, second.sign()) == [0, 1]


def test_without_signs_there_is_no_verdict(clock):
    first, second = Paces(0), Paces(1)
    with first.waiting(LIMIT):
        told(first, second.sign())
        clock.now += 100
        assert first.stuck() == []
