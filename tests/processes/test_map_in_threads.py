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


def test_items_are_taken_no_further_ahead_than_asked():
    taken = []
    items = (taken.append(n) or n for n in range(100))
    found = map_in_threads(str, items, 2, 5)
    assert next(found) == "0"
    assert taken == [0, 1, 2, 3, 4]
    assert next(found) == "1"
    assert taken == [0, 1, 2, 3, 4, 5]
    found.close()
    assert len(taken) == 6


def test_an_exception_comes_at_its_place():
    found = map_in_threads(lambda n: 1 // n, [2, 1, 0, 1], 2, 4)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
