"""Frames of a run directory: which utterances are trained on, validated on and left out."""

import pytest
import torch

from toolkit.align.store import Outcome, write_shard
from toolkit.features import shards
from toolkit.features.augment import original_id
from toolkit.features.config import FrontendConfig
from toolkit.features.low_frame_rate import stack
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Tree
from toolkit.scaling import studies
from toolkit.scaling.simulator.tasks import FrameTask
from toolkit.scaling.studies import frames_of, make_task

FRAMES = 30  # of an utterance, at 10 ms
ORIGINALS = 40
FRONTEND = FrontendConfig(num_mel_bins=4)


def cut(name, speaker):
    supervision = {"id": name, "speaker": speaker}
    times = {"start": 0.0, "duration": FRAMES / 100, "channel": 0}
    return {"id": name, **times, "supervisions": [supervision]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Features that identify their utterance; one speaker per 10, a faster copy of each."""
    folder = tmp_path_factory.mktemp("run")
    topology = Topology(("SIL", "SPN", "A", "B"))
    topology.save(folder / "sat" / "topology.json")
    low = topology.at_low_rate()
    Senones(low, Tree.monophone(low)).save(folder / "senones")
    names = [f"u{n:02d}{copy}" for n in range(ORIGINALS) for copy in ("", "_sp0.9")]
    states = torch.tensor([topology.state_id(phone, 0) for phone in (1, 3, 4)])
    utterances, aligned = [], {}
    for number, name in enumerate(names):
        torch.manual_seed(number)
        features = torch.randn(FRAMES, 4)
        utterances.append((cut(name, f"s{number // 20}"), f"s{number // 20}", features))
        aligned[name] = states.repeat_interleave(FRAMES // 3)
    del aligned["u07"]
    done = shards.write_shard(folder / "fbank" / "train" / shards.SHARDS, 0, utterances, FRONTEND)
    sizes = [{"utterances": done[0], "frames": done[1]}]
    shards.write_manifest(folder / "fbank" / "train", FRONTEND, sizes)
    estimate_normaliser(FeatureStore(folder / "fbank" / "train")).save(
        folder / "fbank" / "normaliser.json"
    )
    outcomes = [Outcome(name, "ok", -1.0, 10.0, "") for name in aligned]
    write_shard(folder / "ali" / "ali.000000.tar", aligned, outcomes)
    return folder


def utterances(run, frames):
    """Return the utterances of these stacked frames, in order."""
    store = FeatureStore(run / "fbank" / "train")
    normaliser = Cmvn.load(run / "fbank" / "normaliser.json")
    names_by_frame = {}
    for name in store.ids:
        inputs = stack(normaliser.apply(store.load(name), store.cmn_state(name)))
        names_by_frame[tuple(inputs[0].tolist())] = name
    return [
        names_by_frame[tuple(first.tolist())] for first in frames.inputs[:: FRAMES // 3].float()
    ]


def test_copies_of_held_out_utterances_are_left_out(run):
    trained, aside = (utterances(run, frames) for frames in frames_of(run))
    assert len(aside) == ORIGINALS // 10
    assert not {original_id(name) for name in trained} & set(aside)
    assert all(original_id(name) == name for name in aside if name != "u07_sp0.9")
    assert len(trained) == len(set(trained)) == 2 * (ORIGINALS - len(aside)) - 1
    assert "u07" not in trained  # it has no alignment


def test_targets_belong_to_the_frames(run):
    train, _ = frames_of(run)
    topology = Topology.load(run / "sat" / "topology.json").at_low_rate()
    phones = Senones.load(run / "senones").phone_of_pdf[train.targets]
    assert len(train.inputs) == len(phones)
    first = [topology.phones[phone - 1] for phone in phones[: FRAMES // 3]]
    assert first == ["SIL"] * 3 + ["A"] * 4 + ["B"] * 3  # 10 frames of each; centres at 1, 4, ...


def test_utterances_are_chosen_from_all_speakers_by_the_seed(run, monkeypatch):
    monkeypatch.setattr(studies, "MOST_FRAMES", 20 * FRAMES // 3)
    chosen = [utterances(run, frames_of(run, seed)[0]) for seed in (0, 0, 1)]
    assert [len(names) for names in chosen] == [20, 20, 20]
    assert chosen[0] == chosen[1] != chosen[2]
    store = FeatureStore(run / "fbank" / "train")
    assert len({store.speaker(name) for name in chosen[0]}) > 2


def test_the_task_is_trained_and_evaluated_on_these_frames(run, monkeypatch):
    monkeypatch.setattr(studies, "MOST_FRAMES", 20 * FRAMES // 3)
    loaded, expected = make_task(run, seed=1), FrameTask(*frames_of(run, seed=1), seed=1)
    weights = expected.initial()
    assert torch.equal(loaded.initial(), weights)
    gradients = (x.gradients(weights[None], [0], x.frames) for x in (loaded, expected))
    assert torch.equal(*gradients)
    assert loaded.evaluate(weights) == expected.evaluate(weights)
