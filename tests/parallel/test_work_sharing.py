"""Who takes which steps: every step once, in any order of events, and no idle tail."""

import heapq
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from toolkit.parallel.asynchronous import StepQueue, StepRange


def counters():
    values = Counter()

    def add(name, number):
        values[name] += number
        return values[name]

    return add


def parts(nodes, steps):
    return [StepRange(node, 0, steps) for node in range(nodes)]


def place(found):
    return found.owner, found.first


@given(st.integers(1, 6), st.integers(0, 25), st.data())
def test_every_step_is_taken_once_whoever_is_next(nodes, steps, data):
    add = counters()
    shares = [StepQueue(add, node, parts(nodes, steps)) for node in range(nodes)]
    active, seen = list(range(nodes)), []
    while active:
        node = data.draw(st.sampled_from(active))
        found = shares[node].take()
        if found is None:
            active.remove(node)
        else:
            seen.append(place(found))
    assert sorted(seen) == [(node, step) for node in range(nodes) for step in range(steps)]
    assert all(share.take() is None for share in shares)


@given(st.integers(2, 5), st.integers(1, 20), st.integers(0, 60), st.data())
def test_what_remains_is_what_nobody_has_begun(nodes, steps, before, data):
    """Stopped anywhere, with new counters, the rest is taken once."""
    add = counters()
    shares = [StepQueue(add, node, parts(nodes, steps)) for node in range(nodes)]
    seen = []
    for _ in range(before):
        found = shares[data.draw(st.integers(0, nodes - 1))].take()
        seen += [] if found is None else [place(found)]
    remaining = [share.remaining() for share in shares]
    left = sum(len(part) for pair in remaining for part in pair)
    assert left == nodes * steps - len(seen)
    add = counters()
    own = [part for part, _ in remaining]
    shares = [StepQueue(add, node, own, taken) for node, (_, taken) in enumerate(remaining)]
    for share in shares:
        while (found := share.take()) is not None:
            seen.append(place(found))
    assert sorted(seen) == [(node, step) for node in range(nodes) for step in range(steps)]


def run(speeds, steps):
    """Let nodes of so many seconds per step take steps; return their numbers and last times."""
    add = counters()
    shares = [StepQueue(add, node, parts(len(speeds), steps)) for node in range(len(speeds))]
    due = [(0.0, node) for node in range(len(speeds))]
    taken, ends = [0] * len(speeds), [0.0] * len(speeds)
    while due:
        now, node = heapq.heappop(due)
        if shares[node].take() is not None:
            taken[node] += 1
            ends[node] = now + speeds[node]
            heapq.heappush(due, (ends[node], node))
    return taken, ends


@pytest.mark.parametrize("speeds", [[1, 1, 1, 5], [5, 1], [1, 2, 3, 4, 5, 6, 7, 8], [1] * 7 + [10]])
def test_nodes_come_to_the_end_within_one_step_of_the_slowest(speeds):
    taken, ends = run(speeds, 100)
    ideal = len(speeds) * 100 / sum(1 / speed for speed in speeds)
    assert sum(taken) == len(speeds) * 100
    assert max(ends) <= ideal + max(speeds)
    assert max(ends) - min(ends) <= max(speeds)
    for number, speed in zip(taken, speeds, strict=True):
        assert number == pytest.approx(ideal / speed, abs=max(speeds))


def test_equally_fast_nodes_keep_their_own_parts():
    add = counters()
    shares = [StepQueue(add, node, parts(3, 10)) for node in range(3)]
    for step in range(10):
        assert [place(share.take()) for share in shares] == [(node, step) for node in range(3)]


def test_many_threads_with_torch_s_store_take_every_step_once():
    store, seen = HashStore(), [[] for _ in range(4)]

    def work(node):
        share = StepQueue(store.add, node, parts(4, 200))
        while (found := share.take()) is not None:
            seen[node].append(place(found))

    threads = [threading.Thread(target=work, args=(node,)) for node in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = sorted(step for steps in seen for step in steps)
    assert taken == [(node, step) for node in range(4) for step in range(200)]
