"""Predictions against epochs of real processes."""

import pytest

from toolkit.scaling.real_processes import (
    INDEPENDENT,
    METHODS,
    Compared,
    Load,
    Machine,
    Measured,
    predict,
    table_rows,
    validate,
)

LOAD = Load(seconds=0.1, steps=50, factor=5.0)


def machine(reduction=0.0):
    """A machine whose processes sleep for exactly the requested time."""
    return Machine({INDEPENDENT: Measured(5.0, 25.0)}, reduction or 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_equal_workers_take_as_long_as_each_alone(method):
    even, slow = predict(method, 4, LOAD, machine())
    assert even == pytest.approx(5.0, rel=1e-3)
    speed_ratio = even / slow
    if method in ("ssgd", "scpsgd", "gtc", "bmuf", "adpsgd delayed"):
        assert speed_ratio == pytest.approx(0.2, rel=1e-3)
    elif method == "hadpsgd":
        assert 0.55 < speed_ratio <= 0.6
    else:
        assert 0.73 < speed_ratio <= 0.8


def test_exchanges_cost_the_measured_times():
    even, _ = predict("scpsgd", 4, LOAD, machine(reduction=0.02))
    assert even == pytest.approx(50 * 0.12)
    even, _ = predict("adpsgd", 4, LOAD, machine(reduction=0.02))  # in the background
    assert even == pytest.approx(5.0 + 0.02)  # and the mean at the end


def test_rows_say_how_far_off_the_prediction_is():
    row = table_rows([Compared("adpsgd", 4, (5.0, 6.25), (4.5, 6.5))])[0]
    assert row["error, %"] == -10
    assert row["one slow, error, %"] == 4
    assert row["speed kept, %"] == 80


@pytest.mark.long
def test_real_processes_are_measured():
    """A tiny load; only the command on a quiet machine can tell whether times agree."""
    load = Load(seconds=0.01, steps=12, weights=100)
    lines = []
    (validation,) = validate([2], load, lines.append, ["adpsgd"])
    assert (validation.method, validation.workers) == ("adpsgd", 2)
    assert validation.measured[0] > 12 * 0.01
    assert validation.measured[1] > 20 * 0.01
    assert lines[0].startswith("2 processes: all-reduce of the weights")
