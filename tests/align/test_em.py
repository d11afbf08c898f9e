import weakref

from toolkit.align.em import sum_statistics
from toolkit.hmm.gmm import GmmStatistics


def test_parts_are_let_go_once_they_are_added():
    made, most = [], 0

    def parts():
        nonlocal most
        for number in range(20):
            part = GmmStatistics.zeros(2, 3)
            part.first += number
            made.append(weakref.ref(part))
            most = max(most, sum(ref() is not None for ref in made))
            yield part

    total = sum_statistics(parts())
    assert (total.first == sum(range(20))).all()
    assert most <= 3
