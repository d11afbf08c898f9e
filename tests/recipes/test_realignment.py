"""Rounds of realignment on drawn speech: the network's own targets, resuming inside a round."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from recipes.steps.networks import train_network
from toolkit.align.config import CorpusAlignConfig
from toolkit.align.store import (
    AlignmentStore,
    LowRateAlignments,
    OffsetAlignments,
    read_table,
    write_shard,
)
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.models.config import LstmConfig
from toolkit.train import monitor
from toolkit.train.config import ChunkConfig, CrossEntropyConfig
from toolkit.train.cross_entropy import train_cross_entropy

CONFIG = CrossEntropyConfig(
    epochs=6,
    initial_rate=2e-2,
    final_rate=2e-3,
    valid_utterances=3,
    threads=1,
    model=LstmConfig(hidden=32, layers=1, lookahead=1),
    chunks=ChunkConfig(frames=8, chunks_per_batch=4),
)


class Step:
    """A run of the stage on drawn speech and its true alignments, with an output folder."""

    jobs, device, progress = 1, "cpu", None

    def __init__(self, inputs, out, rounds, config, progress=None):
        self.inputs, self.out, self.progress = inputs, out, progress
        self.config = SimpleNamespace(ce=config, align=CorpusAlignConfig(rounds=rounds))

    def need(self, name):
        return self.inputs / name

    def make(self, name):
        return self.out

    def setting(self, name):
        return ()


@pytest.fixture(scope="module")
def inputs(speech, tmp_path_factory):
    """Outputs of earlier stages: features, alignments, senones, topology, lexicon."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("ali", "sat", "senones", "fbank"):
        (folder / name).mkdir()
    write_shard(folder / "ali/ali.000000.tar", speech.states, [])
    speech.topology.save(folder / "sat/topology.json")
    Senones.monophone(speech.topology.at_low_rate()).save(folder / "senones")
    (folder / "lang").symlink_to(speech.lang)
    (folder / "fbank/train").symlink_to(speech.cepstra)
    estimate_normaliser(FeatureStore(speech.cepstra)).save(folder / "fbank/normaliser.json")
    return folder


@pytest.fixture(scope="module")
def train(inputs):
    """Train with rounds."""

    def run(out, rounds=1, progress=None, config=CONFIG):
        step = Step(inputs, out, rounds, config, progress)
        return train_network(step, "lstm_ce", inputs / "fbank")

    return run


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    reports = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "SECONDS_BETWEEN_REPORTS", 0.0)  # one after each step
        headline = train(out, progress=lambda done, total: reports.append(done))
    return out, headline, len(reports)


def test_a_round_trains_on_the_networks_alignment(inputs, trained, speech, tmp_path):
    out, headline, _ = trained
    assert headline["frame_accuracy"] > 0.8
    folders = [out / "rounds/0" / f"ali.{offset}" for offset in range(3)]
    for folder in folders:
        outcomes = read_table(folder / "table.tsv")
        assert sorted(o.utterance for o in outcomes) == sorted(speech.transcripts)
        assert all(o.status == "ok" for o in outcomes)
    senones = Senones.load(inputs / "senones")
    first = LowRateAlignments(AlignmentStore(inputs / "ali"), speech.topology, senones)
    realigned = OffsetAlignments.open(out / "rounds/0", senones)
    agreed = total = 0
    for utterance in realigned.ids:
        truth, predicted = first.load(utterance), realigned.load(utterance)
        agreed, total = agreed + int((truth == predicted).sum()), total + len(truth)
    assert 0.7 < agreed / total < 1  # the network's own opinion, and a sound one
    # The last model is the one that these targets alone lead to.
    normaliser = Cmvn.load(inputs / "fbank/normaliser.json")
    store = FeatureStore(inputs / "fbank/train")
    train_cross_entropy(store, realigned, normaliser, CONFIG, senones.num_pdfs, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_killed_round_ends_with_the_same_bits(train, trained, tmp_path, monkeypatch, share):
    out, headline, num_reports = trained
    reports = iter(range(round(share * num_reports)))  # the second half are the round's

    def interrupt(done, total):
        if next(reports, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "SECONDS_BETWEEN_REPORTS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, progress=interrupt)
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "rounds/0/model.safetensors").exists() == (share > 0.5)
    monkeypatch.undo()
    again = train(tmp_path)
    assert again["frame_accuracy"] == headline["frame_accuracy"]
    for name in ("model.safetensors", "rounds/0/model.safetensors", "priors.json"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_without_rounds_nothing_is_aligned(train, tmp_path):
    train(tmp_path, rounds=0, config=replace(CONFIG, epochs=1))
    assert not (tmp_path / "rounds").exists()
    assert (tmp_path / "model.safetensors").exists()
