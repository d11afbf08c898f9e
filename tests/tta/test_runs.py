import json

import numpy as np
import pytest

from tests.markers import make_marker
from toolkit.train.runlog import RUN_LOG
from toolkit.tta.machine import Price
from toolkit.tta.runs import BenchRunError, read_platforms, recipe_folder, stage_times

EPOCH = 10 * 2.0 + 0.5 + 0.25 + 1 + 4 + 1  # seconds of a fake epoch, see FakeTraining


def read_platform(folder, **options):
    (platform,) = read_platforms([str(folder)], **options)
    return platform


def test_times_follow_from_the_planted_curve(training):
    platform = read_platform(training("a", cer=(40, 20, 12, 9, 8)))
    epochs = [(3 + n * EPOCH) / 60 for n in range(1, 6)]
    assert platform.tta("cer", 12, 3) == pytest.approx(epochs[3])  # medians 20, 12, 9
    assert platform.tta("wer", 24, 3) == pytest.approx(epochs[3])
    assert platform.tta("cer", 8, 3) is None
    assert platform.dawnbench("cer", 12) == pytest.approx(epochs[2])
    assert platform.mlperf("cer", 12) is None


def test_repeats_are_one_platform_with_their_median_and_mlperfs_mean(training):
    about = {"name": "machine"}
    curves = [(20, 9, 9), (20, 20, 9), (9, 9, 9)]
    folders = [training(f"r{n}", cer=cer, about=about) for n, cer in enumerate(curves)]
    (platform,) = read_platforms(map(str, folders))
    assert platform.name == "machine"
    assert len(platform.runs) == 3
    assert platform.times("cer", 10, 1) == pytest.approx([(3 + n * EPOCH) / 60 for n in (2, 3, 1)])
    assert platform.mlperf("cer", 10) == pytest.approx((3 + 2 * EPOCH) / 60)
    assert platform.dawnbench("cer", 10) == pytest.approx((3 + EPOCH) / 60)
    assert platform.tta("cer", 10, 3) == pytest.approx((3 + 3 * EPOCH) / 60)


def test_rates_and_states_add_up(training):
    run = read_platform(training("a", batch=8, step=2.0)).first
    assert run.log.examples == 5 * 10 * 8
    assert run.log.examples_per_second == pytest.approx(4.0)
    states = run.states
    assert states["training"] == 100
    assert states["evaluating"] == 20
    assert states["swapping"] == 10
    assert states["sentences"] == 2.5
    assert states["saving"] == 1.25
    assert states["start-up and rest"] == pytest.approx(3.0)
    assert sum(states.values()) == pytest.approx(run.log.seconds)
    assert run.examples_until((3 + EPOCH) / 60) == 80


def test_throughput_dips_where_models_are_swapped(training):
    run = read_platform(training("a")).first
    ends, rates = run.throughput
    assert len(ends) == 50
    slow = 8 / (2 + 0.25 + 1 + 4 + 1)  # the first entry of an epoch but the first
    assert rates[10] == pytest.approx(slow)
    assert run.dip == pytest.approx(1 - slow / 4.0)
    assert read_platform(training("b", cer=(40,))).first.dip is None


def test_losses_are_smoothed_as_far_as_the_log_allows(training):
    from scipy.ndimage import gaussian_filter1d

    run = read_platform(training("a", cer=[9] * 25)).first
    raw = np.array([step.loss for step in run.steps])
    assert run.losses()[1] == pytest.approx(gaussian_filter1d(raw, 10.0, mode="nearest"))
    short = read_platform(training("b", cer=[9] * 2)).first
    raw = np.array([step.loss for step in short.steps])
    assert short.losses()[1] == pytest.approx(gaussian_filter1d(raw, 1.0, mode="nearest"))


def test_names_come_from_the_user_the_log_the_recipe_or_the_folder(training, tmp_path):
    folder, named_folder = training("plain"), training("named", about={"name": "from the log"})
    inside = training("exp/demo/ctc")
    _write_marker(tmp_path / "exp" / "demo" / "stages" / "03.json")
    platforms = read_platforms(
        [f"mine={folder}", str(named_folder), str(tmp_path / "exp" / "demo")]
    )
    assert [platform.name for platform in platforms] == ["mine", "from the log", "demo"]
    assert recipe_folder(inside) == (tmp_path / "exp" / "demo").resolve()
    assert stage_times(inside) == [(3, "Extract features", 12.5)]
    assert recipe_folder(folder) is None
    assert stage_times(folder) == []


def test_damaged_markers_are_left_out(training, tmp_path):
    folder = training("demo/ctc")
    _write_marker(tmp_path / "demo" / "stages" / "03.json")
    (tmp_path / "demo" / "stages" / "04.json").write_text("{")
    assert len(stage_times(folder)) == 1


def test_prices_belong_to_namesakes_or_to_the_only_platform(training):
    folder = training("a")
    assert read_platform(folder, prices=[Price("a", total=3.0)]).price.total == 3.0
    renamed = read_platform(folder, prices=[Price("Sys1$", total=3.0)])
    assert (renamed.name, renamed.price.total) == ("Sys1$", 3.0)
    second = training("b")
    with pytest.raises(BenchRunError, match="price for the platform 'c'"):
        read_platforms([str(folder), str(second)], [Price("c", total=1.0)])


def test_wrong_folders_are_refused(training, tmp_path):
    folder = training("a")
    with pytest.raises(BenchRunError, match="given twice"):
        read_platforms([str(folder), f"x={folder}"])
    with pytest.raises(BenchRunError, match=r"no log\.jsonl.*none of its folders"):
        read_platforms([str(tmp_path / "nowhere")])
    training("b")
    with pytest.raises(BenchRunError, match="several of its folders"):
        read_platforms([str(tmp_path)])
    with pytest.raises(BenchRunError, match="no run given"):
        read_platforms([])


def test_a_running_training_can_be_looked_at(training):
    folder = training("a")
    log = folder / RUN_LOG
    lines = log.read_text().splitlines(keepends=True)
    until = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "evaluated")
    log.write_text("".join(lines[: until - 3]) + '{"event": "st')
    platform = read_platform(folder)
    assert platform.tta("cer", 10, 3) is None
    assert platform.first.log.examples > 0


def _write_marker(path):
    make_marker(3, "Extract features", seconds=12.5).write(path)
