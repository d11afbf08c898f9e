"""Phones of recognised drawn speech, and training on them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.dummies import dummy_recording
from toolkit.align.store import AlignmentStore
from toolkit.corpus.manifest import make_cut
from toolkit.features.config import FrontendConfig
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import SHARDS, FeatureStore, shard_writer, write_manifest
from toolkit.features.shards import write_shard as write_features
from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.denominator import make_denominator, phone_ngram
from toolkit.fsa.numerator import PhoneTimes
from toolkit.models.config import LstmConfig
from toolkit.ssl.config import RecognisedPhonesConfig
from toolkit.ssl.recognition import DamagedPhonesError, RecognisedPhones
from toolkit.train.config import LfmmiChunkConfig, LfmmiConfig
from toolkit.train.errors import TrainingDataError
from toolkit.train.lfmmi import AlignedPhones, train_lfmmi

CONFIG = RecognisedPhonesConfig(samples=40, alternatives=5)


@pytest.fixture(scope="module")
def done(system, unlabelled, tmp_path_factory):
    out, progress = tmp_path_factory.mktemp("phones"), []
    headline = system.recognise(
        unlabelled.cepstra, out, CONFIG, progress=lambda *call: progress.append(call)
    )
    return out, headline, progress


@pytest.fixture
def phones(done, unlabelled):
    return RecognisedPhones(done[0], FeatureStore(unlabelled.cepstra), CONFIG.samples)


def test_the_spoken_phones_are_among_the_alternatives(done, phones, unlabelled):
    _, headline, progress = done
    assert set(phones.ids) <= set(unlabelled.transcripts)
    assert headline["utterances"] == 18
    assert headline["recognised"] == len(phones.ids) >= 17
    recognised = {name: phones.load(name) for name in phones.ids}
    best_correct = any_correct = close_times = 0
    for name, alternatives in recognised.items():
        states = unlabelled.states[name]
        assert alternatives.frames == len(states)
        assert len(alternatives.times) <= CONFIG.alternatives
        assert list(alternatives.weights) == sorted(alternatives.weights, reverse=True)
        assert 0 < alternatives.weights.sum() <= 1
        truth = PhoneTimes.of(states.long(), unlabelled.topology)
        phone_sequences = [times.phones.tolist() for times in alternatives.times]
        assert len(
            {tuple(zip(t.phones, t.begins, strict=True)) for t in alternatives.times}
        ) == len(phone_sequences)
        best_correct += truth.phones.tolist() == phone_sequences[0]
        any_correct += truth.phones.tolist() in phone_sequences
        if phone_sequences[0] == truth.phones.tolist():
            close_times += 1
            assert np.abs(alternatives.times[0].begins - truth.begins).max() <= 9
    assert close_times > 4
    assert any_correct >= best_correct > 0.3 * len(recognised)
    assert headline["best"] == pytest.approx(
        np.mean([alternatives.weights[0] for alternatives in recognised.values()])
    )
    assert headline["hours"] == pytest.approx(sum(x.frames for x in recognised.values()) / 360_000)
    assert progress[-1][0] == progress[-1][1]


def test_fewer_alternatives_are_the_likeliest(done, phones, system, unlabelled, tmp_path):
    system.recognise(unlabelled.cepstra, tmp_path, replace(CONFIG, alternatives=1))
    single = RecognisedPhones(tmp_path, FeatureStore(unlabelled.cepstra), CONFIG.samples)
    assert single.ids == phones.ids
    alone = [single.load(name) for name in single.ids]
    assert {len(alternatives.times) for alternatives in alone} == {1}
    assert done[1]["alternatives"] > 1


def test_finished_shards_are_not_computed_again(done, system, unlabelled, tmp_path):
    out, headline, _ = done
    times_before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert system.recognise(unlabelled.cepstra, out, CONFIG) == headline
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == times_before
    for number in range(2):
        with shard_writer(tmp_path / f"phones.{number:06d}.tar"):
            pass  # nothing was recognised
    with pytest.raises(TrainingDataError, match="none of the 18 utterances"):
        system.recognise(unlabelled.cepstra, tmp_path, CONFIG)


@pytest.mark.parametrize(
    "rows",
    [[[5, 1, 3]], [[5, 1, 0], [5, -2, 3]], [[0, 1, 0]], [[5, 0, 0]], torch.zeros(0, 3)],
    ids=str,
)
def test_damaged_phones_are_named(rows, unlabelled, tmp_path):
    path = tmp_path / "phones.000000.tar"
    with shard_writer(path) as writer:
        writer.add_array("anna-00", torch.as_tensor(rows, dtype=torch.int32).numpy())
    store = RecognisedPhones(tmp_path, FeatureStore(unlabelled.cepstra), 10)
    with pytest.raises(DamagedPhonesError, match=r"phones.000000.*anna-00.*recognise"):
        store.load("anna-00")


def copy_with_new_ids(path, out):
    """Copy a feature store with ids that differ from the labelled speech."""
    store, sizes = FeatureStore(path), []
    config = FrontendConfig(num_mel_bins=store.dimension)
    for number, names in enumerate(store.shards):
        rows = [
            (make_cut(f"lake-{name}", dummy_recording(0), "", speaker), speaker, store.load(name))
            for name in names
            for speaker in [store.speaker(name)]
        ]
        written = write_features(out / SHARDS, number, rows, config)
        sizes.append(dict(zip(("utterances", "frames"), written, strict=True)))
    write_manifest(out, config, sizes)
    return FeatureStore(out)


@pytest.mark.parametrize("recognised", [18, 4], ids="of 18: {}".format)
def test_a_network_learns_from_both_kinds_of_speech(
    recognised, phones, system, unlabelled, tmp_path
):
    """It learns even if few of the unlabelled utterances were recognised."""
    speech = system.speech
    lake_phones = SimpleNamespace(
        ids=[f"lake-{name}" for name in phones.ids[:recognised]],
        load=lambda name: phones.load(name.removeprefix("lake-")),
        transcribed=False,
    )
    aligned = AlignedPhones(AlignmentStore(system.folder), speech.topology)
    sentences = [aligned.load(name).phones.tolist() for name in aligned.ids]
    sentences += [t.phones.tolist() for name in phones.ids for t in phones.load(name).times]
    ngram = phone_ngram(sentences, PhoneNgramConfig(3, extra_states=0))
    denominator = make_denominator(ngram, system.senones)
    config = LfmmiConfig(
        epochs=2,
        initial_rate=2e-2,
        final_rate=5e-3,
        valid_utterances=0,
        threads=1,
        model=LstmConfig(hidden=16, layers=1, lookahead=1),
        chunks=LfmmiChunkConfig(max_frames=20, left_context=2, batch_frames=200),
    )
    headline = train_lfmmi(
        [FeatureStore(speech.cepstra), copy_with_new_ids(unlabelled.cepstra, tmp_path / "lake")],
        [aligned, lake_phones],
        system.senones,
        denominator,
        Cmvn.load(system.normaliser),
        config,
        tmp_path / "model",
    )
    assert headline["utterances"] == len(aligned.ids) + len(lake_phones.ids)
    assert -1.5 < headline["objective"] < 0
    assert (tmp_path / "model" / "excluded.tsv").read_text() == ""


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"alternatives": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RecognisedPhonesConfig(**wrong)
