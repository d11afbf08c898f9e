"""Simulated scaling: the shape of Table I, its inputs, CSVs and the page."""

import csv
import io
from dataclasses import replace

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.scaling.page import Results, audio_hours, table1_inputs
from toolkit.scaling.simulator.methods import simulate
from toolkit.scaling.simulator.run import Outcome
from toolkit.scaling.simulator.tasks import FrameTask, SyntheticConfig, synthetic_frames
from toolkit.scaling.studies import (
    ALONE_HOURS,
    PAPERS_MINIBATCHES,
    SHARED,
    TABLE1,
    Frontier,
    Reach,
    Trained,
    accuracy_variations,
    ibm,
    measured_shares,
    speedup_variations,
    stragglers,
    table1,
    table1_scenario,
)

pytestmark = pytest.mark.long

QUIET = (0.98, 1.0, 1.02)


def rows_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_gtc_is_fastest_with_32_workers_only_with_a_shared_path_between_hosts():
    scenario = table1_scenario(2560, 2, 7.0, QUIET)
    assert scenario.network.core == 0  # 25 Gbit/s of each host, as in the paper
    variations = {v.name: v for v in speedup_variations(scenario, [0.008] * 4)}
    table = variations["as in Table I"]
    assert all(b > 1.7 * a for a, b in zip(table.bmuf, table.bmuf[1:], strict=False))
    peaks = {name: variation.peak for name, variation in variations.items()}
    assert peaks.pop(SHARED) == 32
    assert set(peaks.values()) == {64}
    assert variations["workers equally fast"].bmuf[-1] > 1.15 * table.bmuf[-1]


def test_the_fitted_spread_meets_the_published_speedups_of_bmuf():
    """The spread was fitted to these values; the fit is as good as the page says."""
    table = speedup_variations(table1_scenario(2560, 2, 7.0, QUIET), [0.008] * 4)[0]
    for predicted, published in zip(table.bmuf, (7.18, 13.34, 25.46, 50.91, 97.59), strict=True):
        assert predicted == pytest.approx(published, rel=0.1)


def test_minibatches_stand_for_hours_of_audio():
    assert audio_hours(table1_scenario(360_000, 2, 7.0, QUIET)) == pytest.approx(307_200)
    short = table1_scenario(PAPERS_MINIBATCHES, 2, 7.0, QUIET)
    assert audio_hours(short) == pytest.approx(10_000, rel=1e-3)


def test_bmuf_keeps_its_accuracy_to_32_workers_loses_it_at_128_and_less_in_longer_training():
    config = SyntheticConfig(frames=8192, valid_frames=4096, classes=8, dimension=8)
    task = FrameTask(*synthetic_frames(config), hidden=(16,))
    long, short = (table1_scenario(minibatches, 2, 7.0, QUIET) for minibatches in (25_600, 12_800))
    accuracy_8, accuracy_32, accuracy_128 = (
        simulate("bmuf", n, long, task).accuracy for n in (8, 32, 128)
    )
    assert accuracy_8 > task.evaluate(task.initial())[1] + 0.2
    assert accuracy_32 == pytest.approx(accuracy_8, rel=0.03)
    assert accuracy_128 < 0.9 * accuracy_8
    assert simulate("bmuf", 128, short, task).accuracy < 0.9 * accuracy_128


def test_a_slow_worker_costs_asynchronous_methods_little():
    speed_ratios = {slow.method: slow.speedup / even.speedup for even, slow in stragglers(QUIET)}
    assert max(speed_ratios[m] for m in ("ssgd", "gtc", "bmuf", "adpsgd delayed")) < 0.15
    assert min(speed_ratios[m] for m in ("adpsgd", "asgd")) > 0.85


def test_nodes_send_less_between_hosts_than_single_workers():
    outcomes = {(o.method, o.workers): o for o, charged in ibm(QUIET) if not charged}
    assert outcomes["hadpsgd", 64].between < outcomes["ssgd", 64].between
    assert outcomes["hadpsgd", 64].sent > outcomes["adpsgd", 64].sent  # inside
    assert outcomes["hadpsgd", 64].between < outcomes["adpsgd random", 64].between / 5


def test_only_with_the_hosts_work_nodes_are_faster_than_single_workers():
    hours = {(o.method, o.workers, charged): ALONE_HOURS / o.speedup for o, charged in ibm(QUIET)}
    assert hours["adpsgd", 32, True] == pytest.approx(11.5, rel=0.03)  # fitted
    assert hours["adpsgd", 64, True] == pytest.approx(11.5 / 2, rel=0.03)
    assert hours["hadpsgd", 64, True] < 0.85 * hours["adpsgd", 64, True]
    assert hours["hadpsgd", 64, False] > 0.98 * hours["adpsgd", 64, False]


def trainings(losses, seed=0, alone=1.0):
    """One training per method and batch from 256 on, by the losses of each method."""
    yield Trained("ssgd", 64, Outcome("ssgd", 1, 1.0, loss=alone), seed)
    for method, values in losses.items():
        for batch, loss in zip((256, 384, 512), values, strict=True):
            yield Trained(method, batch, Outcome(method, 1, 1.0, loss=loss), seed)


def test_the_largest_batch_is_the_last_of_consecutive_good_ones():
    study = Frontier(methods=("scpsgd", "adpsgd", "adpsgd random", "adpsgd delayed"))
    losses = {
        "scpsgd": (1.0, 1.2, 1.0),
        "adpsgd": (1.04, 1.05, 1.3),
        "adpsgd random": (1.0, 1.0, 1.05),
        "adpsgd delayed": (1.06, 1.0, 1.0),
    }
    reached = study.reached(list(trainings(losses)))
    assert {method: str(reach) for method, reach in reached.items()} == {
        "scpsgd": "256",
        "adpsgd": "384",
        "adpsgd random": ">= 512",  # none that was tried is bad
        "adpsgd delayed": "< 256",  # none is good
    }
    ratios = [reach.ratio(reached["scpsgd"]) for reach in reached.values()]
    assert ratios == ["1.00", "1.50", ">= 2.00", "<= 1.00"]
    assert study.reached(list(trainings(losses)), tolerance=0.25)["adpsgd"] == Reach(384)
    assert study.reached(list(trainings(losses)), tolerance=0.35)["adpsgd"] == Reach(512, ">=")


def test_ratios_without_a_limit_found_are_bounds():
    assert Reach(1024).ratio(Reach(512, "<")) == ">= 2.00"
    assert Reach(1024).ratio(Reach(2048, ">=")) == "<= 0.50"
    assert Reach(1024, ">=").ratio(Reach(2048, ">=")) == "unknown"
    assert Reach(4096, ">=").ratio(Reach(2048, "<")) == ">= 2.00"


def test_a_batch_is_judged_by_the_median_over_seeds():
    study = Frontier(methods=("adpsgd",))
    nan = float("nan")  # it diverged
    by_seed = [(1.0, nan, nan), (2.0, 2.0, 2.0), (3.0, 3.1, nan)]  # alone: 1, 2, 3
    trained = [
        t
        for seed, values in enumerate(by_seed)
        for t in trainings({"adpsgd": values}, seed, alone=seed + 1.0)
    ]
    assert study.excess(trained)["adpsgd", 384] == pytest.approx(3.1 / 3)
    assert study.excess(trained)["adpsgd", 512] == float("inf")
    assert study.reached(trained)["adpsgd"] == Reach(384)


def test_the_baseline_is_one_worker_also_where_its_batch_is_tried():
    study = Frontier(first=64, methods=("ssgd", "adpsgd"))
    losses = {("ssgd", 64): 1.0, ("ssgd", 96): 1.2, ("adpsgd", 64): 1.04, ("adpsgd", 96): 1.2}
    trained = [Trained(m, b, Outcome(m, 1, 1.0, loss=loss)) for (m, b), loss in losses.items()]
    assert study.excess(trained) == losses
    assert study.reached(trained) == {"ssgd": Reach(64), "adpsgd": Reach(64)}


def test_batches_grow_by_a_half_and_a_third_in_turn():
    assert Frontier(first=4096, largest=12_288).batches() == [4096, 6144, 8192, 12_288]
    assert all(batch % 16 == 0 for batch in Frontier(first=256).batches())


def test_step_times_are_measured():
    shares = measured_shares(steps=3)
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(3)


def test_page_and_files_hold_the_studies(tmp_path):
    task = FrameTask(*synthetic_frames(SyntheticConfig(frames=2048, valid_frames=200)), hidden=(8,))
    results = Results()
    scenario = table1_scenario(512, 2, 7.0, QUIET)
    trained = table1(scenario, task, print)
    brief = table1(replace(scenario, minibatches=256), task, print)
    results.table1(
        trained,
        brief,
        table1_inputs(scenario, task, synthetic=True),
        speedup_variations(scenario, [o.density for o in trained if o.method == "gtc"]),
        accuracy_variations(scenario, task, trained, print),
    )
    study = Frontier(first=256, largest=384, epochs=1, seeds=2)
    results.frontier(study, list(study.trained(task, print)))
    results.write(tmp_path)
    rows = rows_of(tmp_path / "table1.csv")
    expected = [(m.upper(), str(n)) for m in TABLE1 for n in TABLE1[m]]
    assert [(row["method"], row["workers"]) for row in rows] == [("S-SGD", "1"), *expected]
    assert float(rows[0]["speedup"]) == pytest.approx(1, abs=0.02)
    assert [float(row["published_speedup"]) for row in rows[1:3]] == [7.01, 12.53]
    again, *changed = rows_of(tmp_path / "table1_speedups.csv")
    for row in rows[1:]:  # time alone is that of training, but for the density of each step
        speedup = float(again[f"{row['method']} {row['workers']}"])
        assert speedup == pytest.approx(float(row["speedup"]), rel=0.1)
    kinds = {row["name"]: row["kind"] for row in rows_of(tmp_path / "table1_inputs.csv")}
    assert kinds["spread of the workers' speeds"] == "fitted"
    assert kinds["all hosts together"] == "paper"
    loss = 100 * (brief[1].accuracy / brief[0].accuracy - 1)
    assert float(rows[1]["relative_accuracy_10000h"]) == pytest.approx(loss, abs=0.01)
    assert kinds["length of training"] == "assumed"  # 512 minibatches, not those of the default
    default = table1_inputs(table1_scenario(360_000, 2, 8.0, QUIET), task, synthetic=True)
    assert {i.name: i.kind for i in default}["length of training"] == "fitted"
    assert kinds["step times / mean step time"] == "measured"
    assert kinds["model"] == "paper"
    varied = rows_of(tmp_path / "table1_accuracies.csv")
    assert varied[0]["BMUF 128"] == rows[-1]["relative_accuracy"]
    assert [int(row["hours"]) for row in varied[:2]] == [437, 109]  # 25,600 x 61.44 s
    batches = rows_of(tmp_path / "frontier.csv")
    assert {row["seed"] for row in batches} == {"0", "1"}
    alone = [row for row in batches if row["batch"] == "64"]
    assert {row["method"] for row in alone} == {"S-SGD"}
    assert len({row["loss"] for row in alone}) == 2
    tolerances = rows_of(tmp_path / "frontier_tolerances.csv")
    assert tolerances[0]["5%"].endswith("1.00)") or tolerances[0]["5%"].endswith("(unknown)")
    curves = rows_of(tmp_path / "frontier_curves.csv")
    assert {row["method"] for row in curves} >= {"S-SGD", "SCPSGD", "ADPSGD"}
    page = (tmp_path / "scaling.html").read_text(encoding="utf-8")
    assert "Table I" in page
    assert "<svg" in page
    assert "12,288" in page
    assert f"The peak is {again['peak']} in the simulated Table I; inputs that change it:" in page
    for row in changed:
        moved = row["peak"] != again["peak"]
        assert (f"{row['input']} ({row['peak']})" in page) == moved


def test_the_command_writes_the_requested_studies(tmp_path):
    result = CliRunner().invoke(main, ["scaling", "ibm", "stragglers", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "11.5" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "ibm.csv",
        "stragglers.csv",
        "scaling.html",
    }
    rows = rows_of(tmp_path / "ibm.csv")
    hours = [row["published_hours"] for row in rows]
    assert hours == ["168", "", "11.5", "", "", "", "5.2", "11.5", "", "5.2"]
    assert [row["host_work"] for row in rows] == ["free"] * 7 + ["charged"] * 3
    assert float(rows[0]["hours"]) == pytest.approx(208, rel=0.01)
    assert "208 h are assumed" in " ".join(result.output.split())
    averaged = [float(row["models_averaged_per_host_and_step"]) for row in rows]
    assert averaged[:2] == averaged[3:4] + averaged[:1] == [0, 0]  # S-SGD
    assert averaged[2] == pytest.approx(8, rel=0.05)
    assert averaged[5] < 0.9 * averaged[4]  # some of those drawn at random are busy
    assert averaged[6] == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--first", "1", "--largest", "4"], "`first` is 1"),  # its half more is 1 again
        (["--first", "15"], "`first` is 15"),
        (["--first", "24", "--largest", "23"], "`largest` is 23"),
        (["--epochs", "0"], "epochs"),
    ],
)
def test_impossible_batches_are_refused(options, message, tmp_path):
    result = CliRunner().invoke(
        main, ["scaling", "frontier", "--out", str(tmp_path / "out"), *options]
    )
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_a_batch_of_more_than_all_frames_is_refused():
    task = FrameTask(*synthetic_frames(SyntheticConfig(frames=256, valid_frames=20)), hidden=(8,))
    study = Frontier(first=256, largest=768, epochs=2, seeds=1)
    with pytest.raises(ToolkitError, match="768 frames, more than the 512 frames"):
        list(study.trained(task, print))
