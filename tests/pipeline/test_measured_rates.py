"""Rates from the markers of finished runs."""

import json

import numpy as np
import pytest

from toolkit.pipeline.executor import SummaryError
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.markers import Marker
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.rates import MeasuredRatesError, Rates, rates_of_runs
from toolkit.pipeline.step import StepResult

STORE = ObjectStore()


def write_marker(out, number, statistics):
    Marker("w", StepResult((), (), {}), statistics).commit(STORE, out, f"{number:06d}")


def write_run(out, step, partitions, done=None):
    """Write the markers of partitions of (hours, processor seconds), as an executor does."""
    for number, (hours, seconds) in enumerate(partitions):
        statistics = {
            "hours": hours,
            "cpu_seconds": seconds,
            "seconds": 3 * seconds,
            "store_seconds": seconds,
            "device": "cpu",
            "bytes_read": 1000,
            "bytes_written": 10,
        }
        write_marker(out, number, statistics)
    counts = dict.fromkeys(("get", "put", "head", "list", "repeated"), 0)
    whole = dict.fromkeys(("kept", "attempts_failed", "peak_bytes", "elements_failed"), 0)
    summary = {
        **{"step": step, "hours": 1.0, "wall_seconds": 1.0, "output_digest": ""},
        **{"partitions": len(partitions), "done": len(partitions) if done is None else done},
        **{"objects": 0, "bytes": 0, "calls": counts, "poisoned": [], **whole},
    }
    STORE.put(f"{out}/_summary.json", json.dumps(summary).encode())


def test_speed_bytes_and_selection_by_hand(tmp_path):
    write_run(f"{tmp_path}/a/sample-1", "sample", [(100.0, 30.0)])
    write_run(f"{tmp_path}/a/sample-2", "sample", [(100.0, 20.0)])  # a second, larger sample
    write_run(f"{tmp_path}/a/group-1", "group", [(6.0, 5.0), (4.0, 5.0)])
    write_run(f"{tmp_path}/b/repartition-1", "repartition", [(5.0, 1.0)])
    write_run(f"{tmp_path}/b/targets-1", "targets", [(2.0, 100.0), (3.0, 150.0)])
    rates = rates_of_runs(STORE, [f"{tmp_path}/a", f"{tmp_path}/b/"])
    assert list(rates.steps) == ["select", "targets", "repartition"]
    assert rates.steps["repartition"].low is None
    assert rates.steps["select"].speed == pytest.approx(10 * 3600 / 60)
    assert rates.steps["select"].read == pytest.approx(4 * 1000 / 10)
    targets = rates.steps["targets"]
    assert targets.speed == pytest.approx(targets.low) == pytest.approx(5 * 3600 / 250)
    assert (targets.read, targets.written) == (400.0, 4.0)
    assert targets.measured_on == "5 h in 2 partitions"


def test_two_very_different_partitions_give_no_upper_bound(tmp_path):
    from click.testing import CliRunner

    from toolkit.commands.pipeline import pipeline

    write_run(f"{tmp_path}/stats-1", "stats", [(1.0, 1.0), (1.0, 100.0)])
    out = tmp_path / "rates.json"
    result = CliRunner().invoke(pipeline, ["rates", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "to any) h of audio per core-hour, measured on 2 h in 2 partitions" in result.output
    assert Rates.load(out).steps["stats"].high is None


def test_the_interval_contains_the_speed_in_19_of_20_runs(tmp_path):
    draw = np.random.default_rng(0)
    num_inside = 0
    for trial in range(200):
        hours = draw.uniform(0.5, 1.5, 30)
        seconds = hours * 60 * draw.gamma(20, 1 / 20, 30)
        place = f"{tmp_path}/{trial}"
        write_run(place, "extract", list(zip(hours.tolist(), seconds.tolist(), strict=True)))
        rate = rates_of_runs(STORE, [place]).steps["extract"]
        num_inside += rate.low <= 60.0 <= rate.high
    assert 180 <= num_inside <= 198


def test_rates_of_the_markers_of_an_executor(tmp_path, make_step, make_partitions):
    step, out = make_step(), f"{tmp_path}/out/reverse-1"
    with LocalExecutor(slots=cpu_slots(1)) as executor:
        executor.run(step, make_partitions(3), out)
    rate = rates_of_runs(STORE, [f"{tmp_path}/out"]).steps[step.name]
    assert rate.measured_on == "1.5 h in 3 partitions"
    assert rate.low <= rate.speed <= (rate.high or float("inf"))
    assert rate.read > 0 < rate.written
    runs = [json.loads(p.read_text())["run"] for p in (tmp_path / "out").rglob("_done/*.json")]
    assert all(0 <= run["store_seconds"] <= run["seconds"] for run in runs)


def test_runs_without_usable_markers_give_no_rates(tmp_path):
    with pytest.raises(MeasuredRatesError, match="no step has finished"):
        rates_of_runs(STORE, [str(tmp_path)])
    write_run(f"{tmp_path}/one", "stats", [(1.0, 1.0)])
    write_run(f"{tmp_path}/two", "stats", [(1.0, 2.0)])
    with pytest.raises(MeasuredRatesError, match=r"stats has finished twice, in .*one and in"):
        rates_of_runs(STORE, [str(tmp_path)])
    write_run(f"{tmp_path}/three", "targets", [(1.0, 2.0)], done=0)
    with pytest.raises(SummaryError, match="three: partitions are missing"):
        rates_of_runs(STORE, [f"{tmp_path}/three"])
    write_run(f"{tmp_path}/four", "stats", [])
    write_marker(f"{tmp_path}/four", 0, {"hours": 1.0})
    with pytest.raises(MeasuredRatesError, match="does not record 'cpu_seconds'"):
        rates_of_runs(STORE, [f"{tmp_path}/four"])
