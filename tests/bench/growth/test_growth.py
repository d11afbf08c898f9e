import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.markers import make_marker
from toolkit.bench.growth import command, measure
from toolkit.bench.growth.measure import FACTORS, Growth, exponent
from toolkit.bench.growth.runs import growth_of_runs
from toolkit.bench.growth.stages import STAGES
from toolkit.bench.instruments.harness import BenchmarkError
from toolkit.commands.bench import bench
from toolkit.stages.marker import Marker


def test_exponents_of_known_laws():
    for power in (0.0, 0.5, 1.0, 2.0):
        assert exponent([3.0 * factor**power for factor in FACTORS]) == pytest.approx(power)
    assert exponent([10.0 + factor for factor in FACTORS]) < 0.5  # mostly constant


@pytest.mark.long
def test_a_stage_is_measured_in_a_process_of_its_own():
    found = measure.measure("score", 1)
    assert (found.stage, found.units) == ("score", 1)
    assert len(found.seconds) == len(found.peak_bytes) == len(FACTORS)
    assert found.seconds[3] > 2 * found.seconds[0]
    assert min(found.peak_bytes) > 10 * 2**20
    with pytest.raises(BenchmarkError, match="KeyError: 'missing'"):
        measure.measure("missing", 1)


@pytest.mark.parametrize("name", [name for name in STAGES if name != "score"])
def test_every_stage_does_its_work(name, tmp_path):
    work = STAGES[name](tmp_path, 2)
    assert work(2)
    assert work(1)


def test_the_command_prints_and_writes(monkeypatch, tmp_path):
    def fake(stage, units):
        return Growth(stage, units, (1.0, 2.0, 4.0, 8.0), (2**30,) * 4)

    monkeypatch.setattr(command, "measure", fake)
    names = ["--only", "score", "--scale", "0.5"]
    done = CliRunner().invoke(bench, ["growth", *names, "--json", str(tmp_path / "a.json")])
    assert "1.00 2.00 4.00 8.00" in done.output
    assert "0.000" in done.output
    [row] = json.loads((tmp_path / "a.json").read_text())
    assert (row["stage"], row["units"]) == ("score", command.UNITS["score"] // 2)


def test_exponents_are_figures_in_bench_all():
    linear = Growth("a", 1, (1.0, 2.0, 4.0, 8.0), (100,) * 4)
    square = Growth("b", 1, (1.0, 4.0, 16.0, 64.0), (100,) * 4)
    figures = command.as_table([linear, square]).figures
    assert figures[command.TIME] == pytest.approx(2)
    assert figures[command.MEMORY] == pytest.approx(0)
    assert figures["a: exponent of time"] == pytest.approx(1)
    assert set(command.UNITS) == set(STAGES)


def finished_runs(folder, *, without=None):
    """Runs of two stages: one in proportion to the data, one that does not grow."""
    for factor in FACTORS:
        for stage, seconds in ((1, 3.0 * factor), (2, 0.0)):
            if (factor, stage) != without:
                peak = 2**30 if stage == 2 else factor * 2**20
                marker = make_marker(stage, f"Stage {stage}", seconds=seconds, peak_bytes=peak)
                path = folder / str(factor) / "stages" / f"{stage:02d}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                marker.write(path)
    return [folder / str(factor) for factor in FACTORS]


def test_finished_runs_of_a_recipe_are_compared_stage_by_stage(tmp_path):
    runs = finished_runs(tmp_path)
    first, second = growth_of_runs(runs)
    assert first.stage == "1 Stage 1"
    assert (first.of_time, first.of_memory) == (pytest.approx(1), pytest.approx(1))
    assert (second.of_time, second.of_memory) == (pytest.approx(0), pytest.approx(0))
    arguments = [word for run in runs for word in ("--run", str(run))]
    done = CliRunner().invoke(bench, ["growth", *arguments])
    assert "3.00 6.00 12.00 24.00" in done.output
    assert "processor" not in done.output


def test_runs_that_cannot_be_compared_are_named(tmp_path):
    runs = finished_runs(tmp_path, without=(4, 2))
    with pytest.raises(BenchmarkError, match=r"4/stages/02\.json: stage 2 is not finished"):
        growth_of_runs(runs)
    with pytest.raises(BenchmarkError, match="3 runs: there must be one for each of 1, 2, 4, 8"):
        growth_of_runs(runs[:3])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchmarkError, match="empty: no stage is finished"):
        growth_of_runs([tmp_path / "empty", *runs[1:]])
    (runs[1] / "stages" / "01.json").write_text("{")
    with pytest.raises(BenchmarkError, match=r"2/stages/01\.json: the marker is damaged"):
        growth_of_runs(runs)


def test_other_stages_of_the_same_number_are_not_compared(tmp_path):
    runs = finished_runs(tmp_path)
    path = runs[1] / "stages" / "02.json"
    replace(Marker.read(path), title="Another").write(path)
    with pytest.raises(BenchmarkError, match="stage 2 is Another and Stage 2 in these runs"):
        growth_of_runs(runs)


def test_runs_are_compared_as_they_are(tmp_path):
    arguments = [word for run in finished_runs(tmp_path) for word in ("--run", str(run))]
    done = CliRunner().invoke(bench, ["growth", *arguments, "--scale", "0.5"])
    assert done.exit_code == 2
    assert "--only and --scale do not go with it" in done.output
