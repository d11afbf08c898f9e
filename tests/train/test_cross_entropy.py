import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.models.config import LstmConfig, TdnnfConfig
from toolkit.models.scorer import load_log_priors, log_posteriors
from toolkit.models.store import load_model
from toolkit.train.batches import Batch
from toolkit.train.config import ChunkConfig, CrossEntropyConfig
from toolkit.train.cross_entropy import train_cross_entropy
from toolkit.train.errors import TrainingDataError, TrainingError

CONFIG = CrossEntropyConfig(
    epochs=9,
    initial_rate=3e-2,
    final_rate=3e-3,
    valid_utterances=4,
    model=LstmConfig(hidden=48, layers=1, lookahead=3),
    chunks=ChunkConfig(frames=16, chunks_per_batch=8),
)


def train(stores, out, config=CONFIG, **options):
    return train_cross_entropy(
        stores.features, stores.alignments, stores.normaliser, config, 5, out, **options
    )


@pytest.fixture
def toy(make_stores):
    """60 utterances whose targets are shown `delay` low-rate frames later."""
    return lambda delay, **options: make_stores(
        [120 + 3 * i for i in range(60)], dimension=6, delay=delay, **options
    )


def frame_accuracy(out, stores, offset):
    """Accuracy of the saved model at an offset, computed by the decoding path."""
    model = load_model(out)
    correct, frames = 0, 0
    for name, raw in stores.features.features.items():
        posteriors = log_posteriors(model, [stack(raw, offset)])[0]
        targets = stores.alignments.load(name)[centre(len(raw), offset)]
        correct += int((posteriors.argmax(1) == targets).sum())
        frames += len(targets)
    return correct / frames


@pytest.mark.parametrize("delay", [0, 3])
def test_learns_targets_up_to_the_lookahead(toy, tmp_path, delay):
    headline = train(toy(delay), tmp_path)
    assert headline["frame_accuracy"] > 0.95
    assert headline["utterances"] == 56
    unseen = toy(delay, seed=1)
    for offset in range(3):  # one offset per epoch in rotation: the model has seen all three
        assert frame_accuracy(tmp_path, unseen, offset) > 0.95


def test_the_focal_loss_of_the_page_learns_and_is_part_of_the_training(toy, tmp_path):
    page = (Path(__file__).parents[2] / "docs/packages/train.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(def focal.*?)```", page, re.DOTALL)
    namespace = {}
    exec(block, namespace)
    focal = namespace["focal"]
    logits, targets = torch.randn(2, 3, 4), torch.randint(4, (2, 3))
    batch = Batch(["a", "b"], logits, targets, torch.ones(2, 3), torch.tensor([3, 3]), 6)
    loss, sums = focal(lambda inputs, lengths: (inputs, None), batch)
    probabilities = logits.double().softmax(-1).gather(2, targets[:, :, None])
    expected = -((1 - probabilities) ** 2 * probabilities.log()).sum()
    torch.testing.assert_close(loss.double(), expected)
    assert sums["weight"] == 6
    stores = toy(0)
    assert train(stores, tmp_path, objective=focal)["frame_accuracy"] > 0.95
    history = (tmp_path / "history.json").read_bytes()
    assert train(stores, tmp_path)["frame_accuracy"] > 0.95  # trained anew, not taken as finished
    assert (tmp_path / "history.json").read_bytes() != history


def test_targets_beyond_the_lookahead_cannot_be_learnt(toy, tmp_path):
    # one frame more than the look-ahead, with the training that suffices for 0 and 3
    headline = train(toy(4), tmp_path)
    assert headline["frame_accuracy"] < 0.4


def test_a_finished_training_leaves_model_priors_and_history(toy, tmp_path):
    stores = toy(0)
    del stores.alignments.targets["utt007"]
    headline = train(stores, tmp_path, replace(CONFIG, epochs=2))
    names = {path.name for path in tmp_path.iterdir()} - {"checkpoints", "tensorboard"}
    assert names == {
        "config.json",
        "model.safetensors",
        "priors.json",
        "history.json",
        "excluded.tsv",
        "headline.json",
    }
    assert not list((tmp_path / "checkpoints").iterdir())
    assert (tmp_path / "excluded.tsv").read_text() == "utt007\tno alignment\n"
    model = load_model(tmp_path)
    assert (model.config.input_dim, model.config.output_dim) == (18, 5)
    assert headline["loss"] == json.loads((tmp_path / "history.json").read_text())[-1]["loss"]
    priors = load_log_priors(tmp_path)
    counts = json.loads((tmp_path / "priors.json").read_text())["counts"]
    assert sum(counts) < sum(map(len, stores.alignments.targets.values()))  # some are held out
    torch.testing.assert_close(priors.exp(), torch.tensor(counts) / sum(counts))


def test_speakers_are_held_out_where_there_are_enough(toy, tmp_path, caplog):
    caplog.set_level("INFO")
    config = replace(CONFIG, epochs=1)
    assert train(toy(0), tmp_path / "one", config)["held_out_speakers"] == 0
    assert "of speakers who are trained on (1 speakers" in caplog.text
    stores = toy(0)
    stores.features.speaker = lambda name: f"s{int(name[3:]) % 12}"
    headline = train(stores, tmp_path / "twelve", config)
    assert headline["held_out_speakers"] == 1
    assert headline["utterances"] == 55
    assert "5 utterances held out, of whole speakers (1 of 12): s" in caplog.text
    reseeded = train(stores, tmp_path / "seed", replace(config, valid_seed=1))
    assert reseeded["frame_accuracy"] != headline["frame_accuracy"]


def test_held_out_data_without_a_usable_utterance_are_refused(toy, tmp_path):
    valid = toy(0, seed=1)
    valid.alignments.targets = {}
    message = "none of the 60 given held-out utterances .* as utt000 .no alignment"
    with pytest.raises(TrainingDataError, match=message):
        train(toy(0), tmp_path, valid=(valid.features, valid.alignments))


def test_a_factorised_network_is_trained_and_constrained(toy, tmp_path):
    model = TdnnfConfig(hidden=24, bottleneck=8, strides=(1, 3, 3), final=8)
    chunks = ChunkConfig(frames=16, chunks_per_batch=8, left_context=3, right_context=3)
    config = replace(CONFIG, initial_rate=1e-2, epochs=3, model=model, chunks=chunks)
    assert train(toy(2), tmp_path, config)["frame_accuracy"] > 0.9
    deviations = []
    for weight in load_model(tmp_path).semi_orthogonal:
        matrix = weight.detach().flatten(1)
        product = matrix @ matrix.t()
        scale = product.square().sum() / product.trace()
        deviations.append(float((product / scale - torch.eye(8)).norm()))
    assert sum(deviations) / len(deviations) < 0.5  # without the constraint 1.7
    with pytest.raises(ValueError, match=r"2 frames of context.*depend on 3.*chunks\.left_context"):
        replace(config, chunks=replace(chunks, left_context=2))


def test_a_killed_run_continues_and_a_finished_one_is_not_repeated(toy, tmp_path):
    config = replace(CONFIG, epochs=2, checkpoint_seconds=0)
    headline = train(toy(0), tmp_path / "whole", config)

    class KilledError(Exception):
        pass

    stores = toy(0)
    calls = []

    def normalise(features, state):
        calls.append(1)
        if len(calls) == 100:
            raise KilledError
        return features + state

    stores.normaliser.apply = normalise
    small = replace(config, chunks=replace(config.chunks, shuffle_frames=1000))
    with pytest.raises(KilledError):
        train(stores, tmp_path / "killed", small)
    assert list((tmp_path / "killed/checkpoints").glob("epoch-*"))
    expected = train(toy(0), tmp_path / "small", small)
    continued = train(toy(0), tmp_path / "killed", small)
    assert continued["loss"] == expected["loss"]
    weights = [tmp_path / name / "model.safetensors" for name in ("killed", "small")]
    assert weights[0].read_bytes() == weights[1].read_bytes()

    untouched = toy(0)
    untouched.features.load = None
    assert train(untouched, tmp_path / "whole", config) == headline


def test_other_settings_do_not_continue_a_partial_run(toy, tmp_path):
    stores = toy(0)
    loads = []

    def load(name):
        loads.append(name)
        if len(loads) > 100:
            raise OSError("gone")
        return stores.features.features[name]

    stores.features.load = load
    config = replace(
        CONFIG, checkpoint_seconds=0, chunks=ChunkConfig(16, 0, 8, shuffle_frames=1000)
    )
    with pytest.raises(OSError, match="gone"):
        train(stores, tmp_path, config)
    with pytest.raises(TrainingError, match="seed"):
        train(toy(0), tmp_path, replace(config, seed=1))


def test_several_stores_can_have_separate_validation_data(make_stores, tmp_path):
    first, second, valid = (make_stores([60] * 6, seed=seed) for seed in range(3))
    headline = train_cross_entropy(
        [first.features, second.features],
        [first.alignments, second.alignments],
        first.normaliser,
        replace(CONFIG, epochs=1),
        5,
        tmp_path,
        valid=(valid.features, valid.alignments),
    )
    assert headline["utterances"] == 12
    assert all(valid.features.loads.values())
    assert all(first.features.loads.values())
    assert all(second.features.loads.values())


def test_too_many_exclusions_stop_the_training(toy, tmp_path):
    stores = toy(0)
    for name in list(stores.alignments.targets)[::2]:
        del stores.alignments.targets[name]
    with pytest.raises(TrainingDataError, match="cannot be used for training"):
        train(stores, tmp_path)
    assert len((tmp_path / "excluded.tsv").read_text().splitlines()) == 30


@pytest.mark.parametrize("wrong", [{"valid_utterances": -1}, {"max_excluded": 1.5}, {"epochs": 0}])
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CrossEntropyConfig(**wrong)
