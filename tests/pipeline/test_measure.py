import pytest
import torch

from toolkit.models.config import BlstmConfig
from toolkit.models.lstm import BlstmModel
from toolkit.models.store import save_model
from toolkit.pipeline import measure
from toolkit.pipeline.plan import Cluster, plan


@pytest.fixture
def small_teacher(monkeypatch):
    def save(folder):
        torch.manual_seed(0)
        save_model(folder, BlstmModel(BlstmConfig(hidden=8, layers=1, output_dim=40)))
        return folder

    monkeypatch.setattr(measure, "write_teacher", save)


def test_all_steps_are_measured_and_make_a_plan(small_teacher):
    steps = measure.measure_steps(minutes=0.5, repeats=1)
    rates = steps.rates
    assert list(steps.speeds)[1:] == [
        "extract", "shuffle", "stats", "targets", "repartition",
    ]  # fmt: skip
    assert all(rate.speed > 0 and rate.read > 0 for rate in rates.steps.values())
    # 256 kbps (C35), the records, and the utterance between them that is not selected.
    assert 115e6 < rates.steps["extract"].read < 140e6
    assert 46e6 < rates.steps["extract"].written < 60e6  # 64 values of 16 bits at 100 Hz
    assert len(plan(1e6, Cluster(), rates).steps) == 4
    notes = " ".join(steps.notes)
    few, many = (
        int(notes.split(prefix)[1].split(" calls")[0].replace(",", ""))
        for prefix in ("extract, per hour of audio: ", "with an object per utterance: ")
    )
    assert many > 2 * few


def test_aggregated_objects_are_fifty_times_as_fast():
    assert measure.fetch_ratio() > 50
