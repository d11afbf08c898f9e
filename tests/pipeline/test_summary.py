import json

import pytest
from click.testing import CliRunner

from toolkit.commands.pipeline import pipeline
from toolkit.pipeline.executor import Progress
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.markers import TaskResult
from toolkit.pipeline.rates import Rates, StepRate
from toolkit.pipeline.step import Partition, StepResult


def partitions(count):
    return [Partition(f"p{i}", (), {"hours": 2.0}) for i in range(count)]


def test_rate_and_remaining_time_count_only_this_run():
    now = [100.0]
    progress = Progress("extract", partitions(10), {"p0", "p1"}, clock=lambda: now[0])
    assert (progress.done, progress.hours, progress.left) == (2, 4.0, None)
    now[0] += 36.0
    result = StepResult((), (("utterance", "broken"),))
    progress.record(TaskResult("p2", result))
    progress.record(TaskResult("p3", None, "why"))
    assert progress.rate == 200.0  # 2 h in 36 s
    assert progress.left == pytest.approx(14 / 200 * 3600)
    assert (progress.done, progress.failed, progress.elements_failed) == (3, 1, 1)
    assert progress.line() == (
        "extract: 3 of 10 partitions, 6.0 of 20.0 h at 200 h/h, 4 min 12 s left, "
        "1 attempts and 1 elements failed"
    )


def test_without_hours_progress_counts_partitions():
    now = [0.0]
    progress = Progress("s", [Partition(f"p{i}", ()) for i in range(4)], (), clock=lambda: now[0])
    now[0] = 5.0
    progress.record(TaskResult("p0", StepResult(())))
    assert progress.left == 15.0


def test_summary_command_and_page(tmp_path, make_step, make_partitions):
    LocalExecutor().run(make_step(name="one<b>"), make_partitions(2, bad={0}), f"{tmp_path}/out")
    page = tmp_path / "page.html"
    result = CliRunner().invoke(pipeline, ["summary", f"{tmp_path}/out", "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert "one<b>: 2 of 2 partitions, 1.00 h" in result.output
    assert "1 elements left out" in result.output
    text = page.read_text()
    assert "one&lt;b&gt;" in text
    assert "<b>" not in text
    missing = CliRunner().invoke(pipeline, ["summary", f"{tmp_path}/none"])
    assert missing.exit_code == 1
    assert "no step has ended" in missing.output


def test_plan_command(tmp_path):
    steps = ("select", "extract", "shuffle", "stats", "targets", "repartition")
    Rates(dict.fromkeys(steps, StepRate(1000.0, 1e8, 5e7))).save(tmp_path / "rates.json")
    arguments = ["plan", "--hours", "1e6", "--nodes", "20", "--price", "2"]
    arguments += ["--rates", f"{tmp_path}/rates.json", "--json", f"{tmp_path}/plan.json"]
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 0, result.output
    for text in ("200,000", "7.6 d (Figure 3)", "Fused into one step: extract", "Cost of"):
        assert text in result.output
    report = json.loads((tmp_path / "plan.json").read_text())
    assert report["seconds"] == sum(step["seconds"] for step in report["steps"])
    apart = CliRunner().invoke(pipeline, [*arguments, "--no-fuse"])
    assert "Not fused: extract, shuffle, stats; fusing them would save" in apart.output
