"""A student of a BLSTM teacher's targets is better than a model of the few labels."""

import json
from dataclasses import dataclass, replace
from itertools import groupby

import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.models.scorer import load_log_priors, log_posteriors
from toolkit.models.store import KINDS, ModelError, load_model, make_model, save_model
from toolkit.ssl import scheduled
from toolkit.ssl.config import ScheduledConfig, SelectionConfig
from toolkit.ssl.scheduled import student_loss, train_student
from toolkit.ssl.targets import TargetError
from toolkit.train.config import (
    ChunkConfig,
    CrossEntropyConfig,
    SpecAugmentConfig,
    WholeUtteranceConfig,
)
from toolkit.train.cross_entropy import train_cross_entropy
from toolkit.train.errors import TrainingDataError, TrainingError

CLASSES = 6
CHUNKS = ChunkConfig(frames=16, chunks_per_batch=16)
RATES = {"initial_rate": 2e-2, "final_rate": 2e-3, "threads": 1}
STUDENT = LstmConfig(hidden=24, layers=1, lookahead=1)
WHOLE = WholeUtteranceConfig(1, 5e-3, 1e-3, batch_frames=400)
CONFIG = ScheduledConfig(
    epochs=3,
    hours_per_sub_epoch=None,
    model=STUDENT,
    chunks=CHUNKS,
    whole_utterances=WHOLE,
    valid_utterances=2,
    **RATES,
)


@pytest.fixture(scope="module")
def labelled(make_synthetic):
    return make_synthetic(24, seed=1, prefix="l")


@pytest.fixture(scope="module")
def valid(make_synthetic):
    return make_synthetic(30, seed=3, prefix="v")


@pytest.fixture(scope="module")
def teacher(labelled, valid, normaliser, tmp_path_factory):
    """A teacher trained on the labels: its folder and held-out accuracy."""
    out = tmp_path_factory.mktemp("teacher")
    config = CrossEntropyConfig(
        epochs=8,
        model=BlstmConfig(hidden=24, layers=1),
        chunks=replace(CHUNKS, left_context=4, right_context=4),
        **RATES,
    )
    headline = train_cross_entropy(
        labelled.store, labelled, normaliser, config, CLASSES, out, valid=(valid.store, valid)
    )
    return out, headline["frame_accuracy"]


@pytest.fixture(scope="module")
def unlabelled(make_synthetic, teacher, normaliser):
    """Shards with the k = 3 best targets of the teacher."""
    model = load_model(teacher[0])
    return make_synthetic(120, seed=2, shards=8).label(model, normaliser, k=3)


@pytest.fixture
def train(labelled, unlabelled, normaliser):
    def run(out, config=CONFIG, folders=unlabelled, **options):
        data = labelled.store, labelled, normaliser, config, CLASSES, out
        return train_student(folders, *data, **options)

    return run


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def history(folder):
    timed = ("seconds", "frames_per_second", "data_wait")
    records = json.loads((folder / "history.json").read_text())
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def test_a_student_beats_training_on_labels_only(
    train, labelled, valid, normaliser, teacher, tmp_path
):
    config = CrossEntropyConfig(epochs=16, model=STUDENT, chunks=CHUNKS, **RATES)
    baseline = train_cross_entropy(
        labelled.store,
        labelled,
        normaliser,
        config,
        CLASSES,
        tmp_path / "baseline",
        valid=(valid.store, valid),
    )
    config = replace(CONFIG, epochs=8, hours_per_sub_epoch=0.012)  # half of the data
    headline = train(tmp_path / "student", config, valid=(valid.store, valid))
    assert teacher[1] > baseline["frame_accuracy"] + 0.05
    assert headline["frame_accuracy"] > baseline["frame_accuracy"] + 0.03
    # and this is what the weights kept do, by the decoding path
    model, store = load_model(tmp_path / "student"), valid.store
    num_correct = frames = 0
    for name in valid.ids:
        x = stack(normaliser.apply(store.load(name), store.cmn_state(name)))
        best_senones = log_posteriors(model, [x])[0].argmax(1)
        num_correct += int((best_senones == valid.load(name)[centre(store.num_frames(name))]).sum())
        frames += len(best_senones)
    assert num_correct / frames == pytest.approx(headline["frame_accuracy"], abs=2e-3)


def test_a_finished_training_leaves_model_history_and_log(train, labelled, unlabelled, tmp_path):
    headline = train(tmp_path)
    names = {path.name for path in tmp_path.iterdir()} - {"checkpoints", "tensorboard", "whole"}
    assert names == {
        "config.json",
        "model.safetensors",
        "priors.json",
        "history.json",
        "excluded.tsv",
        "headline.json",
    }
    assert not list(tmp_path.rglob("*epoch-*"))
    records = history(tmp_path)
    assert [r["epoch"] for r in records] == list(range(1, 9))
    assert ["agreement" in r for r in records] == [True, False] * 4
    assert ["accuracy" in r for r in records] == [False, True] * 4
    assert all("valid_accuracy" in r for r in records)
    rates = [r["rate"] for r in records]
    assert rates[4] == pytest.approx(RATES["final_rate"])
    assert rates[1] == pytest.approx(1.2 * rates[0])
    assert rates[7] == pytest.approx(1.2 * WHOLE.final_rate)
    assert headline.keys() == {
        "frame_accuracy",
        "loss",
        "divergence",
        "agreement",
        "frames_per_second",
        "hours",
        "utterances",
    }
    assert headline["hours"] == pytest.approx(sum_of_frames(unlabelled) / 360_000, rel=0.01)
    assert headline["utterances"] == 22
    assert headline["loss"] == records[6]["loss"]
    counts = json.loads((tmp_path / "priors.json").read_text())["counts"]
    torch.testing.assert_close(load_log_priors(tmp_path).exp(), torch.tensor(counts) / sum(counts))
    again = train(tmp_path, folders="nowhere")  # finished: nothing is read
    assert again == headline


def sum_of_frames(folder):
    return json.loads((folder / "features.json").read_text())["frames"]


class KilledError(Exception):
    pass


def test_a_run_killed_anywhere_ends_with_the_same_bits(train, tmp_path, monkeypatch):
    config = replace(
        CONFIG,
        average_epochs=2,
        model=replace(STUDENT, layers=2, dropout=0.2),
        chunks=replace(CHUNKS, shuffle_frames=1200),
        select=SelectionConfig("confidence", 0.7),
        specaugment=SpecAugmentConfig(frequency_masks=1, frequency_width=1),
    )
    calls, stops = [], set()

    def raise_at_a_stop(model, batch):
        if model.training:
            calls.append(type(batch).__name__)
            if len(calls) in stops:
                raise KilledError
        return student_loss(model, batch)

    monkeypatch.setattr(scheduled, "student_loss", raise_at_a_stop)
    headline = train(tmp_path / "whole", config)
    steps = len(calls)
    calls.clear()
    config = replace(config, checkpoint_seconds=0)
    # a step that was killed is called again; the last one killed is that before the last
    stops |= {round(share * steps) + number for number, share in enumerate((0.1, 0.3, 0.6))}
    stops |= {steps + 2}
    for _ in range(4):
        with pytest.raises(KilledError):
            train(tmp_path / "killed", config)
    assert len({calls[stop - 1] for stop in stops}) == 2  # in passes of both kinds
    assert list((tmp_path / "killed/whole/checkpoints").glob("epoch-*"))
    again = train(tmp_path / "killed", config)
    assert {k: v for k, v in again.items() if k != "frames_per_second"} == {
        k: v for k, v in headline.items() if k != "frames_per_second"
    }
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert history(tmp_path / "killed") == history(tmp_path / "whole")


def test_every_unlabelled_frame_is_seen_once_and_labelled_data_at_three_offsets(
    train, unlabelled, tmp_path, monkeypatch
):
    batches = []

    def record_batch(model, batch):
        if model.training:
            batches.append((type(batch).__name__, batch.frames, len(set(batch.ids))))
        return student_loss(model, batch)

    monkeypatch.setattr(scheduled, "student_loss", record_batch)
    train(tmp_path, replace(CONFIG, valid_utterances=0))
    frames = sum(n for kind, n, _ in batches if kind == "KBestBatch")
    assert abs(frames - sum_of_frames(unlabelled) / 3) <= 120  # a stack per utterance is cut
    turns = [kind for kind, _ in groupby(kind for kind, *_ in batches)]
    assert turns == ["KBestBatch", "Batch"] * 4


def test_training_starts_from_other_weights(train, teacher, tmp_path):
    train(tmp_path / "first")
    config = replace(CONFIG, epochs=1, initial_rate=1e-9, final_rate=1e-9, valid_utterances=0)
    config = replace(config, whole_utterances=replace(WHOLE, epochs=0), hours_per_sub_epoch=0.004)
    train(tmp_path / "second", config, start=tmp_path / "first")
    first, second = load_model(tmp_path / "first"), load_model(tmp_path / "second")
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match="but the student has"):
        train(tmp_path / "third", config, start=teacher[0])


@dataclass(frozen=True)
class OwnConfig:
    """Configuration of a custom network without dropout."""

    input_dim: int
    output_dim: int
    hidden: int = 4
    lookahead = 0


class OwnModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.output = torch.nn.Linear(config.input_dim, config.output_dim)

    def forward(self, inputs, lengths=None):
        return self.output(inputs), None


def test_a_custom_network_starts_from_other_weights(train, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "own", (OwnConfig, OwnModel))
    config = replace(
        CONFIG, model=OwnConfig(0, 0), epochs=1, whole_utterances=replace(WHOLE, epochs=0)
    )
    train(tmp_path / "first", config)
    train(tmp_path / "second", config, start=tmp_path / "first")
    with pytest.raises(ModelError, match="but the student has"):
        train(tmp_path / "third", replace(config, model=STUDENT), start=tmp_path / "first")


def test_mismatched_settings_and_stores_are_refused(
    train, labelled, unlabelled, normaliser, tmp_path, monkeypatch
):
    config = replace(CONFIG, epochs=1, checkpoint_seconds=0)
    data = labelled.store, labelled, normaliser, config, 7, tmp_path / "a"
    with pytest.raises(TrainingDataError, match="have 6 senones, but the alignments have 7"):
        train_student(unlabelled, *data)
    with pytest.raises(TargetError, match="not a folder of targets"):
        train(tmp_path / "b", config, folders=labelled.folder)
    with pytest.raises(TrainingDataError, match="too few for sub-epochs"):
        train(tmp_path / "c", replace(config, epochs=40))

    calls = []

    def stop(model, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise KilledError
        return student_loss(model, batch)

    monkeypatch.setattr(scheduled, "student_loss", stop)
    with pytest.raises(KilledError):
        train(tmp_path / "d", config)
    with pytest.raises(TrainingError, match="labelled_rate_factor"):
        train(tmp_path / "d", replace(config, labelled_rate_factor=1.5))
    save_model(tmp_path / "start", make_model(replace(STUDENT, input_dim=15, output_dim=CLASSES)))
    with pytest.raises(TrainingError, match="initial weights"):
        train(tmp_path / "d", config, start=tmp_path / "start")


def test_other_targets_need_a_new_selection(train, unlabelled, normaliser, tmp_path, monkeypatch):
    """After a kill, targets of another teacher make the training select again."""

    def raise_at_a_stop(model, batch):
        raise KilledError

    monkeypatch.setattr(scheduled, "student_loss", raise_at_a_stop)
    config = replace(CONFIG, select=SelectionConfig("confidence", 0.5))
    with pytest.raises(KilledError):
        train(tmp_path, config)
    path = tmp_path / "selection.0.json"
    selection = path.read_bytes()
    with pytest.raises(KilledError):
        train(tmp_path, config)
    assert path.read_bytes() == selection
    targets = unlabelled / "targets.json"
    manifest = targets.read_text()
    targets.write_text(json.dumps({**json.loads(manifest), "teacher": {"weights": "another"}}))
    try:
        with pytest.raises(KilledError):
            train(tmp_path, config)
    finally:
        targets.write_text(manifest)
    assert json.loads(path.read_text())["data"] != json.loads(selection)["data"]


@pytest.mark.parametrize(
    "wrong", [{"hours_per_sub_epoch": 0.0}, {"labelled_rate_factor": 0.0}, {"epochs": 0}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ScheduledConfig(**wrong)


def test_defaults_are_the_papers_numbers():
    config = ScheduledConfig()
    assert (config.epochs + config.whole_utterances.epochs) * config.hours_per_sub_epoch == 990_000
    assert (config.epochs, config.whole_utterances.epochs) == (15, 3)
