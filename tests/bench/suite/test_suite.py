import contextlib
import importlib
import inspect
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.suite.test_history import run
from toolkit.bench import BENCHMARKS, compression
from toolkit.bench.instruments.harness import BenchmarkError, Row
from toolkit.bench.suite import command, measure, page, targets
from toolkit.bench.suite.history import SuiteRun
from toolkit.bench.suite.targets import TARGETS, Target
from toolkit.commands.bench import bench
from toolkit.processes.profiler import NoProfilerError, py_spy

pytestmark = pytest.mark.long


def py_spy_is_installed():
    with contextlib.suppress(NoProfilerError):
        return bool(py_spy(Path("x")))
    return False


def test_a_benchmark_runs_in_a_process_of_its_own():
    found = measure.measure("compression", quick=True)
    assert [row.name for row in found.table.rows][:2] == [compression.COPY, "encode 0.0001"]
    assert found.table.repeats == compression.QUICK["repeats"]
    assert "0.2 M elements" in found.table.title
    assert found.seconds > 0
    assert found.peak_bytes > 10 * 2**20


def test_a_failure_has_the_last_line_of_its_output():
    with pytest.raises(BenchmarkError, match=r"^missing: KeyError: 'missing'$"):
        measure.measure("missing")


@pytest.fixture
def fake(monkeypatch):
    """Benchmarks that find a planted ratio, in the place of those that measure."""
    ratios = {"train": 1.0}

    def found(name, quick, profile=None, device=None):
        if profile:
            profile.write_text("<svg/>")
        if name not in ratios:
            raise BenchmarkError(f"{name}: <no> room")
        return run(ratios[name]).measured["train"]

    monkeypatch.setattr(measure, "measure", found)
    return ratios


def test_the_page_marks_what_became_worse(fake, tmp_path):
    def call(*options):
        return CliRunner().invoke(
            bench, ["all", "--only", "train", "--out", str(tmp_path), *options]
        )

    assert call().exit_code == 0
    fake["train"] = 0.5
    done = call()
    assert "Worse than before" in done.output
    text = (tmp_path / "bench.html").read_text()
    assert re.search(r"ours</th><td class=\"text\">train</td><td>1.000</td><td>0.500", text)
    assert "History" in text
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 2
    assert "Worse than before" not in call("--quick").output  # of another size
    assert json.loads((tmp_path / "history.jsonl").read_text().splitlines()[2])["quick"]


def test_what_fails_is_told_and_the_rest_is_kept(fake, tmp_path):
    names = ["--only", "align", "--only", "train"]
    done = CliRunner().invoke(bench, ["all", *names, "--out", str(tmp_path)])
    assert isinstance(done.exception, BenchmarkError)
    assert "failed: align" in str(done.exception)
    text = (tmp_path / "bench.html").read_text()
    assert "&lt;no&gt; room" in text
    assert "toolkit bench train" in text


def test_a_device_is_measured_by_the_benchmarks_that_take_one(fake, tmp_path, monkeypatch):
    asked = []

    def measured(name, quick, profile, device):
        asked.append((name, device))
        return run(fake["train"]).measured["train"]

    monkeypatch.setattr(measure, "measure", measured)
    call = ["all", "--device", "cpu", "--out", str(tmp_path)]
    assert CliRunner().invoke(bench, call).exit_code == 0
    assert asked == [(name, "cpu") for name in command.ON_DEVICE]
    for name in command.INCLUDED:
        module = importlib.import_module(f"toolkit.bench.{BENCHMARKS[name]}")
        takes = "device" in inspect.signature(module.benchmark).parameters
        assert takes == (name in command.ON_DEVICE)
    done = CliRunner().invoke(bench, [*call, "--only", "score"])
    assert "score measures nothing on a device" in done.output


def test_runs_of_another_device_are_not_compared(fake, tmp_path):
    for device in ([], ["--device", "cpu"]):
        call = ["all", "--only", "train", "--out", str(tmp_path), *device]
        assert "Worse than before" not in CliRunner().invoke(bench, call).output
        fake["train"] = 0.5


def test_a_benchmark_is_given_its_device():
    found = measure.measure("train-ctc", quick=True, device="cpu")
    assert found.table.title.endswith(", cpu")


def test_targets_name_rows_that_there_are():
    """The quick run of a benchmark must have every number of its targets; engines may be absent."""
    table = compression.benchmark(**compression.QUICK)
    [target] = [target for target in TARGETS if target.benchmark == "compression"]
    # Not the row's own ratio, a median of rounds, which differs on a busy machine.
    assert target.value(table) == table.row("encode 0.001").rate / table.row(table.baseline).rate
    assert table.baseline == compression.COPY
    assert {target.benchmark for target in TARGETS} <= set(command.INCLUDED) <= set(BENCHMARKS)


def test_what_misses_a_target_is_profiled(fake, tmp_path, monkeypatch):
    planted = Target("train", "a ratio", 0.9, lambda table: table.row("ours").ratio)
    monkeypatch.setattr(targets, "TARGETS", (planted,))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "py-spy").touch(0o755)
    call = ["all", "--only", "train", "--profile", "--out", str(tmp_path)]
    assert "where the time goes" not in CliRunner().invoke(bench, call).output
    assert not (tmp_path / "train.svg").exists()
    fake["train"] = 0.5
    assert "where the time goes" in CliRunner().invoke(bench, call).output
    assert (tmp_path / "train.svg").exists()


def test_a_profile_names_what_was_run(tmp_path):
    if not py_spy_is_installed():
        pytest.skip("py-spy is not installed")
    measure.measure("compression", True, tmp_path / "compression.svg")
    assert "compression.py" in (tmp_path / "compression.svg").read_text()


def test_a_failure_under_the_profiler_is_that_of_the_benchmark(tmp_path):
    if not py_spy_is_installed():
        pytest.skip("py-spy is not installed")
    with pytest.raises(BenchmarkError, match=r"^missing: KeyError: 'missing'$"):
        measure.measure("missing", profile=tmp_path / "missing.svg")


def test_targets_are_met_from_either_side():
    low, high = Target("a", "b", 0.9, min), Target("a", "b", 0.4, min, at_most=True)
    assert [low.met(x) for x in (0.89, 0.9)] == [False, True]
    assert [high.met(x) for x in (0.4, 0.41)] == [True, False]


def test_a_target_that_was_not_measured_is_said_to_be_absent():
    shown = page.targets_table(SuiteRun("now", False, {}))
    assert {row.cells[-1].text for row in shown.rows} == {"not here"}


def test_rows_are_read_back(tmp_path):
    table = run(0.5).measured["train"].table
    assert type(table).from_json(json.loads(json.dumps(table.to_json()))) == table
    assert table.rows[0] == Row("limit", 2.0, 1.0, 0.0)


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(measure, "measure", lambda *_: pytest.fail("measured"))
    done = CliRunner().invoke(bench, ["all", "--only", "train", "--out", str(tmp_path / "file")])
    assert isinstance(done.exception, FileExistsError)
    assert (tmp_path / "file").read_text() == ""


def test_a_log_file_has_the_targets_in_full(capsys):
    """Columns that do not fit into its lines would end in an ellipsis: bounds first."""
    found = run(0.5)
    found.measured["align"] = found.measured["train"]
    page.targets_table(found).print()
    printed = capsys.readouterr().out
    assert all(target.what in printed for target in TARGETS)
    assert "at most 0.001" in printed
    assert "\u2026" not in printed
