import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.store import save_model
from toolkit.processes.devices import torch_threads
from toolkit.train.config import CtcTrainingConfig, ReaderConfig, TrainerConfig
from toolkit.train.ctc import objective
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import RecordSource
from toolkit.train.ctc.records import Records
from toolkit.train.optimizer import make_optimizer
from toolkit.tta import readers as module
from toolkit.tta.readers import (
    Measurement,
    Setting,
    choice,
    measure,
    measure_here,
    tune,
    write_synthetic_records,
)


def machine_with(rates, memory=lambda readers, batch: 0):
    """A machine with these rates (utterances/s) by (readers, batch); others do not fit."""

    def measured(readers, batch):
        if (readers, batch) not in rates:
            return None
        rate = rates[readers, batch]
        return Measurement(readers, batch, rate, 0.0, memory(readers, batch), None)

    return measured


def test_adds_readers_until_throughput_stops_rising():
    rates = {(1, 8): 10, (2, 8): 19, (4, 8): 19.5, (8, 8): 1000}
    tuned = tune(machine_with(rates), 8, 16, 8, 100)
    assert [row.readers for row in tuned.tried] == [1, 2, 4]
    assert (tuned.readers, tuned.batch) == (2, 8)
    assert choice(tuned) == "Choice: 2 readers, batch 8 (the largest allowed)."


def test_readers_stay_below_the_limit_and_the_memory():
    rates = {(n, 8): 10 * n for n in (1, 2, 4, 8)}
    assert tune(machine_with(rates), 8, 7, 8, 100).readers == 4
    assert tune(machine_with(rates), 8, 64, 8, 100).readers == 8
    by_readers = machine_with(rates, lambda readers, batch: 30 * readers)
    assert tune(by_readers, 8, 64, 8, 100).readers == 2
    with pytest.raises(ToolkitError, match="batches of 8 utterances do not fit"):
        tune(machine_with({}), 8, 4, 8, 100)


def test_doubles_the_batch_up_to_the_limit_of_memory():
    rates = {(1, 8): 10, (1, 16): 14, (1, 32): 20, (1, 64): 30}
    tuned = tune(machine_with(rates, lambda readers, batch: 3 * batch), 8, 1, 1000, 100)
    assert [row.batch for row in tuned.tried] == [8, 16, 32]
    assert (tuned.batch, tuned.reason) == (32, "64 do not fit into memory")
    assert tune(machine_with(rates), 8, 1, 20, 100).batch == 16


def test_a_larger_batch_that_gains_nothing_is_not_chosen():
    rates = {(1, 8): 10, (1, 16): 20, (1, 32): 20.9, (1, 64): 20, (1, 128): 90}
    tuned = tune(machine_with(rates), 8, 1, 1000, 100)
    assert [row.batch for row in tuned.tried] == [8, 16, 32, 64]
    assert (tuned.batch, tuned.reason) == (16, "64 fit, but do not raise the throughput")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic_records(folder, 70)
    return folder


def test_synthetic_records_are_like_read_sentences(records):
    synthetic = Records(records)
    assert len(synthetic) == 70
    assert synthetic.dimension == 93
    assert 200 <= synthetic.frames.min() <= synthetic.frames.max() <= 1670
    assert synthetic.frames.mean() == pytest.approx(1210, rel=0.1)
    assert np.array_equal(synthetic.label_lengths, synthetic.frames * 15 // 100)
    stored = sum(path.stat().st_size for path in (records / "files").iterdir())
    assert 0.55 < stored / (synthetic.frames.sum() * 93 * 2) < 0.8  # speech: 0.65
    [batch] = RecordSource(records, ReaderConfig(70, 0), 0).batches(0)
    assert batch.labels.max() <= 28


@pytest.mark.long
def test_readers_are_measured_in_a_separate_process(records):
    setting = Setting(records, ReaderConfig(4, 1, 2, pad_to=1670), seconds=0.1)
    measurement = measure(setting)
    assert (measurement.readers, measurement.batch) == (1, 4)
    assert measurement.rate > 0
    assert 0 < measurement.waiting <= 1
    assert measurement.memory > 100e6  # two processes with torch


@pytest.mark.parametrize(
    ("training", "kind"),
    [
        (TrainerConfig(threads=1, amp="bf16", optimizer="adam"), torch.optim.Adam),
        (Setting.training, torch.optim.Adadelta),
    ],
)
def test_trains_with_the_given_threads_precision_and_optimizer(
    records, tmp_path, monkeypatch, training, kind
):
    runs = []

    class Objective(CtcLoss):
        def __call__(self, model, batch):
            ones = torch.ones(1, 1, device=batch.inputs.device)
            runs.append((torch.get_num_threads(), (ones @ ones).dtype))
            return super().__call__(model, batch)

    def make(network, config):
        optimizer = make_optimizer(network, config)
        assert isinstance(optimizer, kind)
        return optimizer

    model = CtcModel(CtcConfig(channels=(4,), hidden=4, lstm_layers=1))
    save_model(tmp_path, model)
    monkeypatch.setattr(objective, "CtcLoss", Objective)
    monkeypatch.setattr("toolkit.train.trainer.make_optimizer", make)
    readers = ReaderConfig(2, readers=0, buffer=2)
    with torch_threads(2):
        measure_here(Setting(records, readers, str(tmp_path), training, seconds=0.01))
        assert torch.get_num_threads() == 2
    dtype = torch.bfloat16 if training.amp == "bf16" else torch.float32
    assert set(runs) == {(training.threads or 2, dtype)}


def test_prints_the_settings_it_tried_and_chose(records, tmp_path, monkeypatch):
    settings = []

    def fake_measure(setting):
        settings.append(setting)
        config = setting.readers
        return Measurement(
            config.readers, config.utterances_per_batch, 30.0, 0.25, 2_500_000_000, 7_000_000_000
        )

    monkeypatch.setattr(module, "measure", fake_measure)
    monkeypatch.setattr(module, "machine", lambda: {"cpu": "8086", "cpus": 1})
    path = tmp_path / "tuned.json"
    options = ["--records", str(records), "--batch", "6", "--pad-to", "1670", "--order", "buckets"]
    options += ["--threads", "1", "--amp", "auto", "--optimizer", "adam"]
    result = CliRunner().invoke(
        main, ["tta", "readers", *options, "--memory", "3", "--json", str(path)]
    )
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "Choice: 1 reader, batch 6 (24 fit, but do not raise the throughput)." in printed
    assert "25 %" in result.output
    tried = [
        (setting.readers.readers, setting.readers.utterances_per_batch) for setting in settings
    ]
    assert tried == [(1, 6), (2, 6), (1, 12), (1, 24)]
    assert {(s.records, s.readers.pad_to, s.readers.order) for s in settings} == {
        (records, 1670, "buckets")
    }
    training = TrainerConfig(threads=1, amp="auto", optimizer="adam", initial_rate=None)
    assert {setting.training for setting in settings} == {training}
    tuned = json.loads(path.read_text())
    training_settings = [tuned["settings"][name] for name in ("threads", "amp", "optimizer")]
    assert training_settings == [1, "auto", "adam"]
    assert (tuned["readers"], tuned["batch"], tuned["tried"][0]["rate"]) == (1, 6, 30.0)


def test_generates_records_without_a_folder(monkeypatch):
    recorded = SimpleNamespace(utterances=0)

    def fake_measure(setting):
        recorded.utterances, recorded.training = len(Records(setting.records)), setting.training
        return Measurement(1, 1, 1.0, 0.0, 0, None)

    monkeypatch.setattr(module, "measure", fake_measure)
    monkeypatch.setattr(module, "SYNTHETIC_UTTERANCES", 3)
    result = CliRunner().invoke(main, ["tta", "readers", "--max-readers", "1", "--max-batch", "24"])
    assert result.exit_code == 0, result.output
    assert recorded.utterances == 3
    like = CtcTrainingConfig()
    for name in ("threads", "amp", "optimizer", "initial_rate"):
        assert getattr(recorded.training, name) == getattr(like, name)


@pytest.mark.parametrize(
    "option", ["--batch", "--max-batch", "--max-readers", "--buffer", "--pad-to"]
)
def test_sizes_below_one_are_refused(option):
    result = CliRunner().invoke(main, ["tta", "readers", option, "0"])
    assert result.exit_code == 2, result.output
    assert option in result.output


def test_a_largest_batch_below_the_first_is_refused():
    result = CliRunner().invoke(main, ["tta", "readers", "--max-batch", "23"])
    assert result.exit_code == 2
    assert "--max-batch 23 is below --batch 24" in result.output
