"""Trackers of experiments: fake ones, and MLflow and W&B if installed."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit.train.errors import TrainingError
from toolkit.train.monitor import VARIABLE, Monitor, open_tracker, run_name


class Runs:
    """A fake wandb that records logged values and fails at step `bad`."""

    def __init__(self, bad=None):
        self.begun, self.logged, self.finished, self.bad = [], [], 0, bad

    def init(self, **options):
        self.begun.append(options["name"])
        return self

    def log(self, values, step):
        if step == self.bad:
            raise ConnectionError("no server")
        self.logged.append((step, values))

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setenv(VARIABLE, "wandb")
    runs = Runs()
    monkeypatch.setitem(sys.modules, "wandb", runs)
    return runs


def test_the_numbers_of_tensorboard_go_to_the_tracker(wandb, tmp_path):
    monitor = Monitor(tmp_path / "exp/demo/.partial/17/lstm_ce", 10, None)
    monitor.start(0)
    monitor.events(5, {"epoch/loss": 2.5})
    monitor.close()
    assert wandb.begun == ["demo/lstm_ce"]
    assert wandb.logged == [(5, {"epoch/loss": 2.5})]
    assert wandb.finished == 1


def test_a_disabled_monitor_starts_no_run(wandb, tmp_path):
    monitor = Monitor(tmp_path, 10, None, enabled=False)
    monitor.start(0)
    monitor.events(5, {"epoch/loss": 2.5})
    monitor.close()
    assert wandb.begun == []


def test_a_failing_tracker_does_not_end_the_training(wandb, tmp_path, caplog):
    wandb.bad = 2
    tracker = open_tracker(tmp_path)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            tracker.log(step, {"loss": 1.0})
    tracker.close()
    assert [step for step, _ in wandb.logged] == [1]
    assert caplog.text.count("no server") == 1


def test_without_the_variable_there_is_no_tracker(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_tracker(tmp_path) is None


def test_unknown_missing_and_broken_trackers_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "notebook")
    with pytest.raises(TrainingError, match="set it to mlflow or wandb"):
        open_tracker(tmp_path)
    monkeypatch.setenv(VARIABLE, "mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(TrainingError, match="pip install mlflow"):
        open_tracker(tmp_path)

    def refuse():
        raise ValueError("no such store")

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=refuse))
    with pytest.raises(TrainingError, match="no such store"):
        open_tracker(tmp_path)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("exp/demo/lstm_ce", "demo/lstm_ce"), ("exp/demo/.partial/07/ctc", "demo/ctc")],
)
def test_runs_are_named_after_run_directory_and_network(folder, name):
    assert run_name(Path(folder)) == name


def test_mlflow_keeps_the_numbers(monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(VARIABLE, "mlflow")
    tracker = open_tracker(tmp_path / "demo/lstm_ce")
    tracker.log(1, {"epoch/loss": 2.0})
    tracker.log(2, {"epoch/loss": 1.0})
    tracker.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("asr-recipe-toolkit").experiment_id])
    assert run.info.run_name == "demo/lstm_ce"
    assert run.info.status == "FINISHED"
    metrics = client.get_metric_history(run.info.run_id, "epoch/loss")
    assert [(metric.step, metric.value) for metric in metrics] == [(1, 2.0), (2, 1.0)]


def test_wandb_keeps_the_numbers_without_a_network(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "wandb")
    tracker = open_tracker(tmp_path / "demo/lstm_ce")
    tracker.log(1, {"epoch/loss": 2.0})
    tracker.log(2, {"epoch/loss": 1.0})
    tracker.close()
    (stored,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert stored.stat().st_size > 0
