import threading

import pytest

from toolkit.processes.workers import map_in_threads


@pytest.mark.parametrize("jobs", [1, 3])
def test_results_are_in_the_order_of_the_items(jobs):
    done = threading.Event()

    def wait_for_the_last(number):
        if number == 0 and jobs > 1:
            assert done.wait(timeout=10)  # the first ends last
        if number == 2:
            done.set()
        return -number

    assert list(map_in_threads(wait_for_the_last, range(5), jobs, 4)) == [0, -1, -2, -3, -4]
    assert list(map_in_threads(wait_for_the_last, [], jobs, 4)) == []


def test_no_more_items_are_read_ahead_than_the_limit():
    consumed = []
    items = (consumed.append(n) or n for n in range(100))
    results = map_in_threads(str, items, 2, 5)
    assert next(results) == "0"
    assert consumed == [0, 1, 2, 3, 4]
    assert next(results) == "1"
    assert consumed == [0, 1, 2, 3, 4, 5]
    results.close()
    assert len(consumed) == 6


def test_an_exception_is_raised_at_the_place_of_its_item():
    results = map_in_threads(lambda n: 1 // n, [2, 1, 0, 1], 2, 4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
