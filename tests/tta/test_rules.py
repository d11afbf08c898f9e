import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.tta.config import TtaConfig, first_epoch, mlperf, time_to_accuracy, typical

RATES = st.lists(st.floats(0, 100), max_size=12)


def test_one_good_epoch_is_not_enough():
    seconds, rates = [10, 20, 30, 40, 50], [30, 9, 14, 10, 8]
    assert first_epoch(seconds, rates, 10) == 20
    assert time_to_accuracy(seconds, rates, 10) == 40  # medians 14, 10, 10
    assert time_to_accuracy(seconds, rates, 9.5) is None
    assert time_to_accuracy(seconds[:2], [1, 1], 10) is None


@given(RATES, st.floats(0, 100), st.integers(1, 4))
def test_it_is_the_first_window_whose_median_reaches_the_target(rates, target, epochs):
    seconds = [7.0 * n for n in range(1, len(rates) + 1)]
    reached = [
        seconds[n]
        for n in range(len(rates))
        if n + 1 >= epochs and statistics.median(rates[n + 1 - epochs : n + 1]) <= target
    ]
    expected = reached[0] if reached else None
    assert time_to_accuracy(seconds, rates, target, epochs) == expected
    first = first_epoch(seconds, rates, target)
    if expected is not None and epochs % 2:
        assert first is not None
        assert first <= expected


def test_mlperf_leaves_out_the_best_and_the_worst():
    assert mlperf([5, 1, 3, 4, 900]) == 4
    assert mlperf([2, None, 4]) == 4
    assert mlperf([2, None, None, 4]) is None
    assert mlperf([2, 4]) is None


@pytest.mark.parametrize(
    ("times", "middle"),
    [([], None), ([3], 3), ([3, 1], 3), ([None, 5, 4], 5), ([None, 5], None), ([None], None)],
)
def test_the_typical_run_is_the_median(times, middle):
    assert typical(times) == middle


@pytest.mark.parametrize("values", [{"epochs": 0}, {"cer": (-1.0,)}, {"wer": (float("nan"),)}])
def test_impossible_targets_are_refused(values):
    with pytest.raises(ValueError, match=r"`(epochs|cer|wer)` .*must be"):
        TtaConfig(**values)


def test_targets_are_the_papers_in_its_order():
    assert TtaConfig().targets == [
        *(("cer", 10.0), ("cer", 8.0), ("cer", 7.0)),
        *(("wer", 22.0), ("wer", 20.2), ("wer", 19.2)),
    ]


def test_the_hardest_target_comes_last_in_any_order():
    """The page's first sentence is about the last one that all platforms reached."""
    targets = TtaConfig(cer=(7, 10, 8), wer=(20, 22)).targets
    assert targets == [("cer", 10), ("cer", 8), ("cer", 7), ("wer", 22), ("wer", 20)]
