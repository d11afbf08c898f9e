import json
import re
from pathlib import Path

import pytest

import toolkit.bench
from toolkit.bench import BENCHMARKS
from toolkit.bench.instruments.harness import Case, compare


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
        ("ab", "c", 1, "not one of the cases"),
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


def test_every_benchmark_is_listed_and_every_listed_one_is_there():
    folder = Path(toolkit.bench.__file__).parent
    define = re.compile(r"^def (benchmark|command)\(", re.MULTILINE)
    there = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if define.search(path.read_text(encoding="utf-8"))
    }
    assert there == set(BENCHMARKS.values())
