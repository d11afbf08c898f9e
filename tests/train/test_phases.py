"""Cross entropy in two phases, with masks, copies and both kinds of model."""

import json
from dataclasses import replace

import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import load_model
from toolkit.train.config import (
    ChunkConfig,
    CrossEntropyConfig,
    SpecAugmentConfig,
    WholeUtteranceConfig,
)
from toolkit.train.cross_entropy import train_cross_entropy

CONFIG = CrossEntropyConfig(
    epochs=2,
    initial_rate=2e-2,
    final_rate=1e-2,
    valid_utterances=2,
    average_epochs=2,
    model=LstmConfig(hidden=32, layers=2, lookahead=3, dropout=0.1),
    chunks=ChunkConfig(frames=16, chunks_per_batch=8),
    whole_utterances=WholeUtteranceConfig(
        epochs=3, initial_rate=1e-2, final_rate=3e-3, batch_frames=200, max_frames=40
    ),
    specaugment=SpecAugmentConfig(
        frequency_masks=1, frequency_width=1, time_masks=0.2, time_width=2
    ),
)
LENGTHS = [60 + 6 * i for i in range(24)]


@pytest.fixture
def toy(make_stores):
    return lambda **options: make_stores(LENGTHS, dimension=6, **{"delay": 0, **options})


def train(stores, out, config=CONFIG, **options):
    return train_cross_entropy(
        stores.features, stores.alignments, stores.normaliser, config, 5, out, **options
    )


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


BLSTM = BlstmConfig(hidden=8, layers=2, dropout=0.2)


@pytest.mark.parametrize("change", [{}, {"amp": "bf16", "model": BLSTM}])
def test_a_run_killed_in_either_phase_ends_with_the_same_bits(
    toy, tmp_path, interrupt_after, change
):
    config = replace(CONFIG, **change)
    headline = train(toy(), tmp_path / "whole", config)
    history = json.loads((tmp_path / "whole/history.json").read_text())
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 5]
    assert history[2]["rate"] < 1e-2  # that of its last step
    assert history[4]["rate"] == pytest.approx(3e-3)
    config = replace(config, checkpoint_seconds=0)
    interrupter = interrupt_after(7, 18, 27)
    for _ in interrupter.steps:
        with pytest.raises(KeyboardInterrupt):
            train(toy(), tmp_path / "killed", config, progress=interrupter)
    assert list((tmp_path / "killed/whole/checkpoints").glob("epoch-*"))
    again = train(toy(), tmp_path / "killed", config)
    timed = {"frames_per_second"}
    assert {k: again[k] for k in again.keys() - timed} == {
        k: headline[k] for k in headline.keys() - timed
    }
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert not list((tmp_path / "killed").rglob("*epoch-*"))
    assert not list((tmp_path / "killed").rglob("model-*"))


def test_bfloat16_trains_about_as_well(toy, tmp_path):
    config = replace(CONFIG, epochs=4, whole_utterances=WholeUtteranceConfig())
    fp32 = train(toy(), tmp_path / "fp32", config)
    bf16 = train(toy(), tmp_path / "bf16", replace(config, amp="bf16"))
    assert weights(tmp_path / "bf16") != weights(tmp_path / "fp32")
    assert bf16["loss"] == pytest.approx(fp32["loss"], rel=0.1)
    assert bf16["frame_accuracy"] == pytest.approx(fp32["frame_accuracy"], abs=0.1)
    assert all(p.dtype == torch.float32 for p in load_model(tmp_path / "bf16").parameters())


def test_progress_counts_the_steps_of_both_phases(toy, tmp_path):
    calls = []
    train(toy(), tmp_path, progress=lambda *call: calls.append(call))
    totals = {total for _, total in calls}
    assert len(totals) == 1
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1]


def test_whole_utterances_continue_from_the_chunks(toy, tmp_path):
    chunks = train(
        toy(), tmp_path / "chunks", replace(CONFIG, whole_utterances=WholeUtteranceConfig())
    )
    chunks_and_whole = train(toy(), tmp_path / "both")
    assert chunks_and_whole["frame_accuracy_chunks"] == chunks["frame_accuracy"]
    assert chunks_and_whole["frame_accuracy"] > chunks["frame_accuracy"]
    assert "frame_accuracy_chunks" not in chunks


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("exponential", "exponential"), ("cosine", "cosine"), ("noam", "exponential")],
)
def test_whole_utterances_have_separate_rates_and_no_warm_up(schedule, expected):
    config = replace(CONFIG, schedule=schedule, warmup_steps=10).whole_phase()
    assert (config.epochs, config.average_epochs, config.warmup_steps) == (3, 2, 0)
    assert (config.schedule, *config.rates()) == (expected, 1e-2, 3e-3)


def test_a_harmful_phase_is_undone(toy, tmp_path):
    config = replace(CONFIG, average_epochs=1)
    chunks = replace(config, whole_utterances=WholeUtteranceConfig())
    expected = train(toy(), tmp_path / "chunks", chunks)
    harmful = WholeUtteranceConfig(epochs=1, initial_rate=30.0, final_rate=30.0, batch_frames=200)
    harmed = train(toy(), tmp_path / "harm", replace(config, whole_utterances=harmful))
    assert harmed["frame_accuracy"] == expected["frame_accuracy"]
    assert weights(tmp_path / "harm") == weights(tmp_path / "chunks")


def test_a_bidirectional_model_learns_from_later_frames(make_stores, tmp_path):
    # An LSTM with a look-ahead of 3 cannot learn a delay of 4 frames.
    config = CrossEntropyConfig(
        epochs=9,
        initial_rate=3e-2,
        final_rate=3e-3,
        valid_utterances=4,
        model=BlstmConfig(hidden=32, layers=1),
        chunks=ChunkConfig(frames=16, chunks_per_batch=8, left_context=2, right_context=6),
    )
    stores = make_stores([120 + 3 * i for i in range(60)], dimension=6, delay=4)
    unseen = make_stores([150] * 8, dimension=6, delay=4, seed=1)
    headline = train(stores, tmp_path, config)
    assert headline["frame_accuracy"] > 0.7
    model = load_model(tmp_path)
    num_correct = frames = 0
    for name, raw in unseen.features.features.items():
        best = log_posteriors(model, [stack(raw)])[0].argmax(1)
        num_correct += int((best == unseen.alignments.load(name)[centre(len(raw))]).sum())
        frames += len(best)
    assert num_correct > 0.65 * frames


def test_copies_of_held_out_utterances_are_left_out(toy, tmp_path):
    stores, copies = toy(), toy(seed=1)
    for store in (copies.features.features, copies.alignments.targets):
        for name in list(store):
            store[f"{name}_sp0.9"] = store.pop(name)
    copies.features.shards = [[f"{n}_sp0.9" for n in shard] for shard in copies.features.shards]
    copies.features.loads = {f"{n}_sp0.9": 0 for n in copies.features.loads}
    headline = train_cross_entropy(
        [stores.features, copies.features],
        [stores.alignments, copies.alignments],
        stores.normaliser,
        replace(CONFIG, epochs=1, whole_utterances=WholeUtteranceConfig()),
        5,
        tmp_path,
    )
    assert headline["utterances"] == 44
    unread = {name for name, loads in copies.features.loads.items() if not loads}
    assert len(unread) == 2
    assert all(stores.features.loads.values())
