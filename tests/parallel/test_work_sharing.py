"""Nodes share the steps: every step is taken once in any order, and no node idles at the end."""

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


def step_id(step_range):
    return step_range.owner, step_range.first


@given(st.integers(1, 6), st.integers(0, 25), st.data())
def test_every_step_is_taken_once_whoever_is_next(nodes, steps, data):
    add = counters()
    shares = [StepQueue(add, node, parts(nodes, steps)) for node in range(nodes)]
    active, taken_steps = list(range(nodes)), []
    while active:
        node = data.draw(st.sampled_from(active))
        step_range = shares[node].take()
        if step_range is None:
            active.remove(node)
        else:
            taken_steps.append(step_id(step_range))
    assert sorted(taken_steps) == [(node, step) for node in range(nodes) for step in range(steps)]
    assert all(share.take() is None for share in shares)


@given(st.integers(2, 5), st.integers(1, 20), st.integers(0, 60), st.data())
def test_remaining_steps_are_those_that_no_node_has_taken(nodes, steps, num_taken, data):
    """A run that stops anywhere and resumes with new counters takes every step once."""
    add = counters()
    shares = [StepQueue(add, node, parts(nodes, steps)) for node in range(nodes)]
    taken_steps = []
    for _ in range(num_taken):
        step_range = shares[data.draw(st.integers(0, nodes - 1))].take()
        taken_steps += [] if step_range is None else [step_id(step_range)]
    remaining = [share.remaining() for share in shares]
    num_left = sum(len(part) for pair in remaining for part in pair)
    assert num_left == nodes * steps - len(taken_steps)
    add = counters()
    ranges = [step_range for step_range, _ in remaining]
    shares = [
        StepQueue(add, node, ranges, taken_over) for node, (_, taken_over) in enumerate(remaining)
    ]
    for share in shares:
        while (step_range := share.take()) is not None:
            taken_steps.append(step_id(step_range))
    assert sorted(taken_steps) == [(node, step) for node in range(nodes) for step in range(steps)]


def run(speeds, steps):
    """Simulate nodes with these seconds per step; return their numbers of steps and end times."""
    add = counters()
    shares = [StepQueue(add, node, parts(len(speeds), steps)) for node in range(len(speeds))]
    due = [(0.0, node) for node in range(len(speeds))]
    counts, ends = [0] * len(speeds), [0.0] * len(speeds)
    while due:
        now, node = heapq.heappop(due)
        if shares[node].take() is not None:
            counts[node] += 1
            ends[node] = now + speeds[node]
            heapq.heappush(due, (ends[node], node))
    return counts, ends


@pytest.mark.parametrize("speeds", [[1, 1, 1, 5], [5, 1], [1, 2, 3, 4, 5, 6, 7, 8], [1] * 7 + [10]])
def test_nodes_end_within_one_step_of_the_slowest(speeds):
    counts, ends = run(speeds, 100)
    ideal = len(speeds) * 100 / sum(1 / speed for speed in speeds)
    assert sum(counts) == len(speeds) * 100
    assert max(ends) <= ideal + max(speeds)
    assert max(ends) - min(ends) <= max(speeds)
    for number, speed in zip(counts, speeds, strict=True):
        assert number == pytest.approx(ideal / speed, abs=max(speeds))


def test_equally_fast_nodes_take_only_their_own_steps():
    add = counters()
    shares = [StepQueue(add, node, parts(3, 10)) for node in range(3)]
    for step in range(10):
        assert [step_id(share.take()) for share in shares] == [(node, step) for node in range(3)]


def test_many_threads_with_torch_s_store_take_every_step_once():
    store, taken_by_node = HashStore(), [[] for _ in range(4)]

    def take_steps(node):
        share = StepQueue(store.add, node, parts(4, 200))
        while (step_range := share.take()) is not None:
            taken_by_node[node].append(step_id(step_range))

    threads = [threading.Thread(target=take_steps, args=(node,)) for node in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    all_steps = sorted(step for steps in taken_by_node for step in steps)
    assert all_steps == [(node, step) for node in range(4) for step in range(200)]
