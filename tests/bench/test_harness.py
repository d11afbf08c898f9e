import json

import pytest

from toolkit.bench import harness
from toolkit.bench.harness import Case, compare


class Clock:
    """Time that passes only when a case works."""

    def __init__(self):
        self.now = 0.0
        self.order = []

    def __call__(self):
        return self.now

    def case(self, name, amount, durations):
        """A case that takes the given seconds, one call after the other."""
        left = iter(durations)

        def run():
            self.order.append(name)
            self.now += next(left)
            return amount

        return Case(name, run)


def test_rates_are_medians_and_ratios_are_of_the_same_round():
    clock = Clock()
    ours = clock.case("ours", 10.0, [99, 1, 2, 5])  # the first call is not timed
    theirs = clock.case("theirs", 10.0, [99, 2, 4, 20])
    table = compare([ours, theirs], "s of audio", "theirs", repeats=3, clock=clock)
    assert table.row("ours").rate == 5.0
    assert table.row("theirs").rate == 2.5
    assert table.row("ours").ratio == 2.0  # of 2, 2 and 4
    assert table.row("theirs").ratio == 1.0
    assert table.row("ours").spread == pytest.approx((10 - 2) / 5)


def test_sides_take_turns_and_swap_order():
    clock = Clock()
    compare([clock.case(name, 1.0, [1] * 4) for name in "ab"], "x", "a", repeats=3, clock=clock)
    assert "".join(clock.order) == "ab" + "ab" + "ba" + "ab"


def test_table_prints_and_serialises(capsys):
    clock = Clock()
    case = clock.case("ours [fast]", 1.0, [1, 1])
    table = compare([case], "frames", "ours [fast]", 1, "Speed", ["first"], clock=clock)
    table = table.with_notes("GEMM limit 50 %")
    table.print()
    shown = capsys.readouterr().out
    for text in ("Speed", "ours [fast]", "frames / s", "1.000", "first", "GEMM limit 50 %"):
        assert text in shown
    plain = json.loads(json.dumps(table.to_json()))
    assert plain["rows"] == [{"name": "ours [fast]", "rate": 1.0, "ratio": 1.0, "spread": 0.0}]
    assert plain["notes"] == ["first", "GEMM limit 50 %"]
    assert plain["machine"]["cpus"] >= 1
    assert "python" in plain["versions"]


@pytest.mark.parametrize(
    ("names", "baseline", "repeats", "message"),
    [
        ("aa", "a", 1, "same name"),
        ("ab", "c", 1, "none of the cases"),
        ("ab", "a", 0, "at least 1"),
    ],
)
def test_wrong_comparisons_are_refused(names, baseline, repeats, message):
    cases = [Case(name, lambda: 1.0) for name in names]
    with pytest.raises(ValueError, match=message):
        compare(cases, "x", baseline, repeats)


def test_absent_row_is_a_key_error():
    with pytest.raises(KeyError):
        compare([Case("a", lambda: 1.0)], "x", "a", 1).row("b")


def test_available_benchmarks_are_the_modules_that_define_one(monkeypatch, tmp_path):
    (tmp_path / "speed.py").write_text('"""Doc."""\n\n\ndef benchmark() -> Table:\n    ...\n')
    (tmp_path / "sweep.py").write_text("@click.command()\ndef command() -> None:\n    ...\n")
    (tmp_path / "helper.py").write_text('"""Doc."""\n')
    monkeypatch.setattr(harness, "__file__", str(tmp_path / "harness.py"))
    assert harness.available_benchmarks() == ["speed", "sweep"]
