"""Repeats of a CTC training with other seeds, and MLPerf's rule over them."""

import csv
import json

import pytest
import torch
from click.testing import CliRunner

from tests.recipes.tiny_ctc import tiny_recipe
from toolkit.cli import main
from toolkit.decode.ctc.search import GreedyDecoder
from toolkit.models.config import CtcConfig
from toolkit.models.store import load_model
from toolkit.train.runlog import Created, read_run_log
from toolkit.tta import training
from toolkit.tta.training import TrainingPlan, layers_of


@pytest.fixture
def exp(tmp_path, monkeypatch):
    """A finished training; its search is greedy, which needs no compilation."""
    monkeypatch.setattr(
        "toolkit.decode.ctc.evaluation.PrefixDecoder", lambda units, config: GreedyDecoder(units)
    )
    folder = tmp_path / "exp"
    recipe = tiny_recipe(tmp_path, "in_place")
    with pytest.raises(SystemExit) as end:
        recipe.main(["--exp", str(folder), "--device", "cpu", "--jobs", "1"])
    assert end.value.code == 0
    return folder


def bench(*arguments):
    return CliRunner().invoke(main, ["tta", *map(str, arguments)])


def losses(folder):
    return [record["loss"] for record in json.loads((folder / "history.json").read_text())]


def test_one_command_trains_three_runs(exp, tmp_path):
    arguments = ["--runs", 3, "--device", "cpu", "--cer", "100", "--wer", "100", f"this={exp}"]
    result = bench(*arguments, "--out", tmp_path / "tta")
    assert result.exit_code == 0, result.output
    folders = [exp / "ctc", exp / "repeats" / "2", exp / "repeats" / "3"]
    assert len({tuple(losses(folder)) for folder in folders}) == 3
    times = []
    for folder in folders:
        log = read_run_log(folder)
        assert (
            log.of(Created)[0].about["settings"]["evaluation"]
            == "prefixes, width 4, all utterances"
        )
        times.append(log.seconds)
    with (tmp_path / "tta" / "tta.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["mlperf_minutes"]) > 0 for row in rows)
    page = (tmp_path / "tta" / "index.html").read_text()
    assert ">batches of 4<" in page  # the block diagram
    assert "Medians over the runs of a platform" in page
    times_before = [(folder / "model.safetensors").stat().st_mtime_ns for folder in folders]
    assert bench(*arguments, "--out", tmp_path / "again").exit_code == 0
    assert [(folder / "model.safetensors").stat().st_mtime_ns for folder in folders] == times_before


def test_a_repeat_with_the_same_seed_has_the_same_losses(exp):
    plan = TrainingPlan.read(exp / "ctc")
    assert plan.train.model == load_model(exp / "ctc").config
    torch.manual_seed(1)
    training.train_by_plan(plan, exp, exp / "repeats" / "same", "cpu", 1, "a test")
    assert losses(exp / "repeats" / "same") == losses(exp / "ctc")


def test_the_layers_are_those_of_the_network():
    config = CtcConfig(bidirectional=True)
    layers = layers_of(config, 93, 30)
    assert layers == [
        ("93 values", "input"),
        ("convolution 11 / 2", "93 to 600"),
        ("5 x BLSTM", "600 to 1600"),
        ("linear, softmax", "1600 to 30"),
    ]
    assert layers_of(object(), 93, 30)[1] == ("object", "")


def test_repeats_that_are_impossible_are_refused(exp, tmp_path):
    (exp / "ctc" / "training.json").unlink()
    result = bench("--runs", 2, "--device", "cpu", exp, "--out", tmp_path / "tta")
    assert result.exit_code == 1
    assert "contains no training.json" in result.output
    assert "--force 7" in result.output
