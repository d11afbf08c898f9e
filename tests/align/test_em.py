import weakref

from toolkit.align.em import sum_statistics
from toolkit.hmm.gmm import GmmStatistics


def test_statistics_are_released_once_they_are_added():
    weak_references, max_alive = [], 0

    def parts():
        nonlocal max_alive
        for number in range(20):
            part = GmmStatistics.zeros(2, 3)
            part.first += number
            weak_references.append(weakref.ref(part))
            max_alive = max(max_alive, sum(ref() is not None for ref in weak_references))
            yield part

    total = sum_statistics(parts())
    assert (total.first == sum(range(20))).all()
    assert max_alive <= 3
