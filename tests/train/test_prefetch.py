import threading
import weakref

import pytest

from toolkit.train.batches import prefetched


def test_items_keep_their_order():
    assert list(prefetched(range(100), depth=3)) == list(range(100))
    assert list(prefetched([], depth=1)) == []


def test_at_most_depth_items_are_prefetched():
    created = []
    third = threading.Event()

    def items():
        for i in range(10):
            created.append(i)
            if i == 3:
                third.set()
            yield i

    stream = prefetched(items(), depth=2)
    assert next(stream) == 0
    assert third.wait(timeout=10)  # two in the queue, one in the hand
    assert len(created) == 4
    assert list(stream) == list(range(1, 10))


def test_without_depth_the_callers_item_and_the_next_are_in_memory():
    class Window:
        def __init__(self, number):
            self.number = number
            created[number].set()
            alive.add(self)

    created = [threading.Event() for _ in range(6)]
    alive = weakref.WeakSet()
    stream = prefetched(map(Window, range(6)), depth=0)
    for window in stream:
        if window.number + 1 < len(created):
            assert created[window.number + 1].wait(timeout=10)
        assert not any(event.is_set() for event in created[window.number + 2 :])
        assert len(alive) <= 2


def test_an_error_is_raised_at_its_item():
    def items():
        yield 1
        raise KeyError("broken")

    stream = prefetched(items(), depth=4)
    assert next(stream) == 1
    with pytest.raises(KeyError, match="broken"):
        next(stream)


def test_closing_ends_the_thread_and_closes_the_source():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    num_threads = threading.active_count()
    stream = prefetched(items(), depth=2)
    next(stream)
    stream.close()
    assert closed.is_set()
    assert threading.active_count() == num_threads
