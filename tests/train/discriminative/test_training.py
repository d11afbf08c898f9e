import json
import math
from dataclasses import replace

import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.fsa.config import Criterion
from toolkit.fsa.discriminative import PdfClasses
from toolkit.models.config import LstmConfig
from toolkit.models.scorer import load_log_priors, log_posteriors
from toolkit.models.store import load_model, save_model
from toolkit.train.config import ChunkConfig, CrossEntropyConfig, LatticeBatchConfig, SequenceConfig
from toolkit.train.corpus import select_held_out
from toolkit.train.cross_entropy import train_cross_entropy
from toolkit.train.errors import TrainingDataError, TrainingError
from toolkit.train.sequence import train_sequence

# All pdfs of the toy are speech; its lattices allow everything, so that the expected accuracy is
# the mean of softmax(kappa (log p(s|x) - log p(s))) at the right pdf.
CLASSES = PdfClasses(torch.zeros(5).bool(), torch.tensor([1, 1, 2, 2, 3]))
CONFIG = SequenceConfig(
    epochs=2,
    initial_rate=2e-3,
    final_rate=1e-3,
    criterion=Criterion(acoustic_scale=0.5),
    smoothing=0.0,
    batches=LatticeBatchConfig(utterances_per_batch=4),
    valid_utterances=4,
)


@pytest.fixture
def toy(make_stores, make_trellises):
    """40 utterances with lattices that a network can learn."""

    def make(**options):
        stores = make_stores([60 + 3 * i for i in range(40)], dimension=6, delay=0, **options)
        stores.lattices = make_trellises(stores.features)
        return stores

    return make


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    return tmp_path_factory.mktemp("start")


@pytest.fixture
def trained(start, toy):
    """A network after a short training with cross entropy."""
    if not (start / "headline.json").exists():
        stores = toy()
        config = CrossEntropyConfig(
            epochs=2,
            initial_rate=1e-2,
            final_rate=1e-2,
            valid_utterances=4,
            model=LstmConfig(hidden=16, layers=2, lookahead=1, dropout=0.1),
            chunks=ChunkConfig(frames=16, chunks_per_batch=8),
        )
        alignments = stores.alignments
        train_cross_entropy(stores.features, alignments, stores.normaliser, config, 5, start)
    return start


@pytest.fixture
def train(trained):
    def run(stores, out, config=CONFIG, **options):
        return train_sequence(
            trained,
            stores.features,
            stores.lattices,
            stores.alignments,
            CLASSES,
            stores.normaliser,
            config,
            out,
            **options,
        )

    return run


def history(out):
    return json.loads((out / "history.json").read_text())


def weights(folder):
    return load_model(folder).state_dict()


def expected_accuracy(folder, stores, names):
    """Return the expected accuracy in closed form (see CLASSES) and the cross entropy."""
    model, log_priors = load_model(folder), load_log_priors(folder)
    target_posteriors, losses = [], []
    for name in names:
        raw = stores.features.features[name].half().float()
        log_posterior = log_posteriors(model, [stack(raw)])[0]
        targets = stores.alignments.load(name)[centre(len(raw))].long()
        at_target = torch.arange(len(targets)), targets
        target_posteriors.append((0.5 * (log_posterior - log_priors)).softmax(1)[at_target])
        losses.append(-log_posterior[at_target])
    return torch.cat(target_posteriors).mean().item(), torch.cat(losses).mean().item()


def held_out_names(stores):
    return select_held_out(stores.features.features, 4)


def test_training_raises_the_held_out_criterion(toy, train, trained, tmp_path):
    stores = toy()
    headline = train(stores, tmp_path)
    assert headline["after"] > headline["before"] + 0.02
    assert headline["utterances"] == 36
    assert headline["missing"] == 0
    records = history(tmp_path)
    assert [record["epoch"] for record in records] == [0, 1, 2]
    assert records[0]["valid_accuracy"] == headline["before"]
    assert records[2]["accuracy"] > records[1]["accuracy"]
    assert records[1]["loss"] == pytest.approx(-records[1]["accuracy"])
    names = {path.name for path in tmp_path.iterdir()} - {"checkpoints", "tensorboard"}
    assert names == {path.name for path in trained.iterdir()} - {"checkpoints", "tensorboard"}
    assert not list((tmp_path / "checkpoints").iterdir())
    assert (tmp_path / "priors.json").read_bytes() == (trained / "priors.json").read_bytes()
    assert load_model(tmp_path).config == load_model(trained).config
    # the figures of the log are those of the stored models
    for folder, figure in ((trained, headline["before"]), (tmp_path, headline["after"])):
        accuracy, loss = expected_accuracy(folder, stores, held_out_names(stores))
        assert accuracy == pytest.approx(figure, abs=1e-5)
        assert any(loss == pytest.approx(r["valid_cross_entropy"], abs=1e-5) for r in records)


@pytest.mark.parametrize(
    ("criterion", "score"), [("mpfe", "valid_accuracy"), ("mmi", "valid_loss")]
)
def test_each_criterion_is_raised(toy, train, tmp_path, criterion, score):
    config = replace(CONFIG, criterion=Criterion(criterion, 0.5, boost=0.1))
    headline = train(toy(), tmp_path, config)
    assert headline["after"] > headline["before"] + 0.01
    sign = 1 if score == "valid_accuracy" else -1
    assert headline["after"] == max(sign * record[score] for record in history(tmp_path))
    assert ("valid_accuracy" in history(tmp_path)[0]) == (criterion != "mmi")


def test_the_criterion_of_mmi_is_reported_without_smoothing(toy, train, tmp_path):
    config = replace(CONFIG, criterion=Criterion("mmi", 0.5), smoothing=0.3)
    headline = train(toy(), tmp_path, config)
    records = history(tmp_path)
    criteria = [(0.3 * r["valid_cross_entropy"] - r["valid_loss"]) / 0.7 for r in records]
    assert headline["before"] == pytest.approx(criteria[0])
    assert headline["after"] == pytest.approx(max(criteria))


def test_a_harmful_epoch_is_reported_and_the_initial_network_kept(
    toy, train, trained, tmp_path, caplog
):
    caplog.set_level("INFO")
    headline = train(toy(), tmp_path, replace(CONFIG, initial_rate=3.0, final_rate=3.0))
    assert headline["after"] == headline["before"]
    for name, value in weights(trained).items():
        assert torch.equal(weights(tmp_path)[name], value)
    assert "epoch 1 lowered the held-out criterion" in caplog.text
    assert "kept the initial weights" in caplog.text


def test_the_best_epoch_is_kept(toy, train, tmp_path, caplog):
    stores = toy()
    rising = replace(CONFIG, epochs=3, initial_rate=1e-3, final_rate=3.0)
    headline = train(stores, tmp_path, rising)
    scores = [record["valid_accuracy"] for record in history(tmp_path)]
    assert 0 < scores.index(max(scores)) < 3
    assert headline["after"] == max(scores)
    accuracy, _ = expected_accuracy(tmp_path, stores, held_out_names(stores))
    assert accuracy == pytest.approx(max(scores), abs=1e-5)
    assert "epoch 3 lowered the held-out criterion" in caplog.text
    assert "kept the initial weights" not in caplog.text


def test_smoothing_is_cross_entropy(toy, train, tmp_path):
    records = {}
    for h in (0.0, 0.3, 1.0):
        train(toy(), tmp_path / f"{h}", replace(CONFIG, smoothing=h, epochs=1))
        records[h] = history(tmp_path / f"{h}")[0]
        r = records[h]
        expected = h * r["valid_cross_entropy"] - (1 - h) * r["valid_accuracy"]
        assert r["valid_loss"] == pytest.approx(expected)
    last = [history(tmp_path / f"{h}")[1]["valid_cross_entropy"] for h in (0.0, 0.3, 1.0)]
    assert last[2] < last[1] < last[0]


class KilledError(Exception):
    pass


def stores_that_fail_at(stores, call):
    """Return stores whose lattices raise from the given call on."""
    load, calls = stores.lattices.load, []

    def until(name):
        calls.append(name)
        if len(calls) >= call:
            raise KilledError
        return load(name)

    stores.lattices.load = until
    return stores


def test_a_killed_run_ends_with_the_same_bits(toy, train, tmp_path):
    config = replace(CONFIG, checkpoint_seconds=0, average_epochs=2)
    headline = train(toy(), tmp_path / "whole", config)

    def without_times(records):
        timed = ("frames_per_second", "seconds", "data_wait")
        return [{k: v for k, v in record.items() if k not in timed} for record in records]

    # Epoch 0, two epochs and the average read 4, 2 x 40 and 4 lattices.
    for call in (26, 60, 87):
        with pytest.raises(KilledError):
            train(stores_that_fail_at(toy(), call), tmp_path / f"{call}", config)
        assert list((tmp_path / f"{call}/checkpoints").iterdir())
        continued = train(toy(), tmp_path / f"{call}", config)
        assert without_times([continued]) == without_times([headline])
        records = [without_times(history(tmp_path / name)) for name in (f"{call}", "whole")]
        assert records[0] == records[1]
        folders = [tmp_path / name for name in (f"{call}", "whole")]
        assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1

    untouched = toy()
    untouched.features.load = None
    assert train(untouched, tmp_path / "whole", config) == headline


def test_exclusions_are_listed_and_too_many_refused(toy, train, tmp_path):
    stores = toy()
    del stores.lattices.lengths["utt007"]
    config = replace(CONFIG, epochs=1, batches=LatticeBatchConfig(4, max_frames=58))
    train(stores, tmp_path / "some", config)
    lines = (tmp_path / "some/excluded.tsv").read_text().splitlines()
    assert lines == ["utt007\tno lattice", "utt039\t59 frames of 30 ms, more than 58"]
    with pytest.raises(TrainingDataError, match="cannot be used for training"):
        train(stores, tmp_path / "none", replace(config, max_excluded=0.01))


def test_other_settings_do_not_continue_a_partial_run(toy, train, tmp_path):
    config = replace(CONFIG, checkpoint_seconds=0)
    with pytest.raises(KilledError):
        train(stores_that_fail_at(toy(), 80), tmp_path, config)
    with pytest.raises(TrainingError, match="criterion"):
        train(toy(), tmp_path, replace(config, criterion=Criterion(acoustic_scale=0.4)))


def test_another_network_does_not_continue_a_partial_run(toy, train, trained, tmp_path):
    with pytest.raises(KilledError):
        train(
            stores_that_fail_at(toy(), 80), tmp_path / "out", replace(CONFIG, checkpoint_seconds=0)
        )
    weights_before = (trained / "model.safetensors").read_bytes()
    network = load_model(trained)
    torch.nn.init.zeros_(network.output.bias)
    save_model(trained, network)
    try:
        with pytest.raises(TrainingError, match="initial weights"):
            train(toy(), tmp_path / "out", replace(CONFIG, checkpoint_seconds=0))
    finally:
        (trained / "model.safetensors").write_bytes(weights_before)


def test_held_out_data_without_a_usable_utterance_are_refused(toy, train, tmp_path):
    valid = toy(seed=1)
    valid.lattices.lengths = {}
    aside = (valid.features, valid.lattices, valid.alignments)
    message = "none of the 40 given held-out utterances .* as utt000 .no lattice"
    with pytest.raises(TrainingDataError, match=message):
        train(toy(), tmp_path, replace(CONFIG, epochs=1), valid=aside)


def test_held_out_data_can_be_separate_or_absent(toy, train, tmp_path):
    valid = toy(seed=1)
    aside = (valid.features, valid.lattices, valid.alignments)
    headline = train(toy(), tmp_path / "given", replace(CONFIG, epochs=1), valid=aside)
    assert headline["utterances"] == 40
    assert all(valid.features.loads.values())
    config = replace(CONFIG, epochs=1, valid_utterances=0)
    headline = train(toy(), tmp_path / "none", config)
    assert headline["utterances"] == 40
    assert headline["before"] == headline["after"] == 0
    assert math.isfinite(history(tmp_path / "none")[1]["accuracy"])


@pytest.mark.parametrize(
    "wrong", [{"smoothing": 1.5}, {"max_excluded": -1}, {"valid_utterances": -1}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SequenceConfig(**wrong)
