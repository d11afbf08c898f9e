import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from benchmarks import run
from benchmarks.run import ALL, BENCHMARKS, Case, Target, compare, load_benchmark, main, rate_ratio


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
    candidate = clock.case("candidate", 10.0, [99, 1, 2, 5])  # the first call is not timed
    baseline = clock.case("baseline", 10.0, [99, 2, 4, 20])
    table = compare([candidate, baseline], "s of audio", "baseline", repeats=3, clock=clock)
    assert table.row("candidate").rate == 5.0
    assert table.row("baseline").rate == 2.5
    assert table.row("candidate").ratio == 2.0  # of 2, 2 and 4
    assert table.row("baseline").ratio == 1.0
    assert table.row("candidate").spread == pytest.approx((10 - 2) / 5)


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
    stdout = capsys.readouterr().out
    for text in ("Speed", "ours [fast]", "frames / s", "1.000", "first", "GEMM limit 50 %"):
        assert text in stdout
    document = json.loads(json.dumps(table.to_json()))
    assert document["rows"] == [{"name": "ours [fast]", "rate": 1.0, "ratio": 1.0, "spread": 0.0}]
    assert document["notes"] == ["first", "GEMM limit 50 %"]
    assert document["machine"]["cpus"] >= 1
    assert "python" in document["versions"]


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


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_every_module_with_a_benchmark_is_listed():
    folder = Path(run.__file__).parent
    define = re.compile(r"^def (benchmark|command)\(", re.MULTILINE)
    modules = {
        path.stem.replace("_", "-")
        for path in folder.glob("*.py")
        if define.search(path.read_text(encoding="utf-8"))
    }
    assert modules == set(BENCHMARKS)
    assert set(ALL) <= modules


@pytest.fixture
def fake_benchmark(monkeypatch):
    """Install a benchmark `planted` whose case has the given ratio to its limit."""
    module = ModuleType("benchmarks.planted", "A planted ratio.")
    monkeypatch.setitem(sys.modules, "benchmarks.planted", module)
    monkeypatch.setattr(run, "BENCHMARKS", ("planted",))

    def plant(ratio, **attributes):
        def benchmark(amount=ratio):
            clock = Clock()
            cases = [clock.case("limit", 1.0, [1, 1]), clock.case("ours", amount, [1, 1])]
            return compare(cases, "runs", "limit", 1, clock=clock)

        vars(module).update(benchmark=benchmark, **attributes)

    return plant


def test_a_table_is_printed_and_written(fake_benchmark, tmp_path):
    fake_benchmark(1.0)
    result = invoke("planted", "--json", tmp_path / "table.json")
    assert result.exit_code == 0, result.output
    assert "runs / s" in result.stdout
    assert json.loads((tmp_path / "table.json").read_text())["rows"][0]["name"] == "limit"
    printed = invoke("planted", "--json", "-")
    assert json.loads(printed.stdout)["baseline"] == "limit"
    assert "runs / s" in printed.stderr
    assert invoke("planted", "--smoke").exit_code == 2  # it has no small size
    assert invoke("planted", "--device", "cpu").exit_code == 2


@pytest.mark.parametrize(("ratio", "status", "outcome"), [(0.95, 0, "met"), (0.5, 1, "missed")])
def test_a_missed_target_is_the_exit_status(fake_benchmark, ratio, status, outcome):
    target = Target("ours, of the limit", 0.9, rate_ratio("ours", "limit"))
    fake_benchmark(ratio, TARGETS=(target,), SMOKE={"amount": 0.1})
    result = invoke("planted")
    assert result.exit_code == status
    assert f"ours, of the limit: {ratio} (at least 0.9, {outcome})" in result.stdout
    assert invoke("planted", "--smoke").exit_code == 0  # too small to be judged


def test_unmeasured_rows_miss_no_target(fake_benchmark):
    fake_benchmark(1.0, TARGETS=(Target("a peer", 0.9, rate_ratio("ours", "peer")),))
    result = invoke("planted")
    assert result.exit_code == 0
    assert "a peer: not measured here" in result.stdout


def test_targets_are_met_from_either_side():
    low, high = Target("a", 0.9, min), Target("a", 0.4, min, at_most=True)
    assert [low.met(x) for x in (0.89, 0.9)] == [False, True]
    assert [high.met(x) for x in (0.4, 0.41)] == [True, False]


def test_targets_name_existing_rows():
    """Engines that are compared may be absent; the toolkit's own rows may not."""
    for name in ALL:
        assert all(
            len(target.title) <= 62 for target in getattr(load_benchmark(name), "TARGETS", ())
        )
    compression = load_benchmark("compression")
    table = compression.benchmark(**compression.SMOKE)
    [target] = compression.TARGETS
    assert target.value(table) == table.row("encode 0.001").rate / table.row(table.baseline).rate


def test_a_device_is_an_option_of_benchmarks_that_take_one():
    takes = [
        name
        for name in ALL
        if "device" in inspect.signature(load_benchmark(name).benchmark).parameters
    ]
    assert takes == ["train", "train-ctc", "features", "decode", "lattice"]


def test_an_unknown_name_is_refused():
    result = invoke("slow")
    assert result.exit_code == 2
    assert "No such command 'slow'" in result.stderr
    assert "features" in invoke("--help").stdout


def test_all_run_in_processes_of_their_own_and_failures_are_named(monkeypatch):
    commands = []

    def process(command):
        commands.append(command[3:])
        return SimpleNamespace(returncode=int(command[3] == "align"))

    monkeypatch.setattr(run.subprocess, "run", process)
    result = invoke("all", "--smoke")
    assert commands == [[name, "--smoke"] for name in ALL]
    assert result.exit_code == 1
    assert "failed or missed a target: align" in result.output


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_a_smoke_run_works(name):
    command = [sys.executable, "-m", "benchmarks", name, "--smoke", "--json", "-"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["commit"]
