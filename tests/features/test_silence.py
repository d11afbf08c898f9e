"""Frames of digital silence do not count in means and statistics of any front end."""

import json
from dataclasses import replace

import pytest
import torch

from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import CmnState, FeatureStore, StoreError, write_manifest, write_shard
from toolkit.features.silence import (
    PLP_MARK,
    SILENT_AFTER,
    SilentSpans,
    counted_frames,
    fill_digital_silence,
    outside,
    spans,
)
from toolkit.pipeline.steps.stats import NormaliserStats, merge

KINDS = ("fbank", "fbank_mfcc", "mfcc", "plp")
SECOND = 16000
LOG_FLOOR = -15.942385


def speech(seconds=1.0, level=3000 / 32768, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return level * torch.randn(int(seconds * SECOND), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("voltage", [0.0, 0.1])
def test_a_constant_voltage_does_not_count(engine, kind, voltage):
    """Zeros or a constant in the middle of noise."""
    frontend = Frontend(FrontendConfig(kind), engine)
    samples = torch.cat([speech(), torch.full((SECOND,), voltage), speech(seed=1)])
    counted = counted_frames(frontend(samples), kind)
    assert counted[:99].all()
    assert not counted[103:197].any()
    assert counted[201:].all()
    (batched,) = frontend.batch([samples])
    torch.testing.assert_close(batched, frontend(samples), rtol=0, atol=2e-3)
    assert torch.equal(counted_frames(batched, kind), counted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [1e-5, 1.0 / 32768, 1.0])
def test_quiet_and_loud_noise_counts(engine, kind, level):
    features = Frontend(FrontendConfig(kind), engine)(speech(level=level))
    assert counted_frames(features, kind).all()
    assert counted_frames(features.half(), kind).all()


def test_all_frames_of_other_features_count():
    assert counted_frames(torch.full((5, 3), -100.0), "lda_mllt").all()


def test_spans_and_counted_frames_agree():
    counted = torch.tensor([False, True, True, False, False, True, False])
    assert spans(~counted) == [[0, 1], [3, 5], [6, 7]]
    assert torch.equal(outside(spans(~counted), 7), counted)
    assert spans(torch.zeros(4, dtype=torch.bool)) == []


@pytest.mark.parametrize("size", [1, 7, 500])
def test_silent_spans_of_a_stream_are_those_of_the_whole(size):
    silence, sound = torch.full((30, 4), LOG_FLOOR), torch.full((25, 4), 10.0)
    gap = silence[: SILENT_AFTER - 1]
    features = torch.cat([silence, sound, gap, sound, silence, sound, silence])
    finder = SilentSpans("fbank")
    silent = torch.cat([finder.push(x) for x in features.split(size)])
    assert spans(silent) == [[0, 30], [99 + SILENT_AFTER, 129], [154 + SILENT_AFTER, 184]]


def test_digital_silence_is_filled_with_the_quietest_frames():
    """The windows of two frames on either side contain some of it: if quiet, they are filled."""
    sound = torch.arange(44.0)[:, None] * torch.tensor([1.0, -1.0])
    silence = torch.full((6, 2), PLP_MARK)
    features = torch.cat([sound[20:], silence, sound[:20]])
    counted = counted_frames(features, "plp")
    filled = fill_digital_silence(features, counted)
    assert filled[:, 0].tolist() == [*range(20, 44), 2, 3, 4, 5, 2, 3, 4, 5, *range(2, 20)]


def test_short_sounds_between_digital_silence_fill_it():
    features = torch.tensor([[PLP_MARK], [3.0], [2.0], [PLP_MARK]])
    assert fill_digital_silence(features, features[:, 0] > 0).tolist() == [
        [2.0],
        [3.0],
        [2.0],
        [2.0],
    ]


@pytest.mark.parametrize("level", [PLP_MARK, 5.0])
def test_nothing_is_filled_without_silence_or_without_sound(level):
    features = torch.full((5, 3), level)
    assert fill_digital_silence(features, counted_frames(features, "plp")) is features


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_zeros_hardly_change_the_gmm_features_beside_them(seconds):
    """Deltas and splicing reach 8 frames into the zeros, which then look like the pause."""
    frontend, gmm = Frontend(FrontendConfig("plp")), GmmFrontend(splice=4)
    samples = torch.cat([speech(), speech(level=0.003, seed=2), speech(seed=1)])
    zeros = torch.zeros(int(seconds * SECOND))
    intact, altered = (
        frontend(samples),
        frontend(torch.cat([samples[:24000], zeros, samples[24000:]])),
    )
    counted, mean = counted_frames(altered, "plp"), intact.mean(dim=0)
    expected = gmm(intact, mean)[141:148]  # until the windows touch the zeros
    filled = gmm(fill_digital_silence(altered, counted), mean)[141:148]
    assert (filled - expected).abs().max() < 0.2 * (
        gmm(altered, mean)[141:148] - expected
    ).abs().max()


@pytest.fixture
def normaliser(small_store):
    return estimate_normaliser(small_store.store, prior_frames=20)


@pytest.mark.parametrize("scope", ["causal", "whole"])
@pytest.mark.parametrize("at", [0, 40, 90])
def test_zeros_change_no_other_normalised_frame(normaliser, scope, at):
    normaliser = replace(normaliser, scope=scope)
    x = 15 + 4 * torch.randn(90, 4)
    padded = torch.cat([x[:at], torch.full((200, 4), LOG_FLOOR), x[at:]])
    normalised = normaliser.apply(padded)
    sound = torch.cat([normalised[:at], normalised[at + 200 :]])
    torch.testing.assert_close(sound, normaliser.apply(x), rtol=0, atol=1e-5)
    assert normalised.isfinite().all()
    empty = CmnState.empty(4)
    state = empty.after(padded, counted_frames(padded, "fbank"))
    assert state.frames == 90
    torch.testing.assert_close(state.sum, x.double().sum(0))


def test_leading_zeros_are_finite_without_a_prior(normaliser):
    bare = replace(normaliser, prior_frames=0)
    zeros = torch.full((9, 4), LOG_FLOOR)
    assert bare.apply(zeros).isfinite().all()
    assert replace(bare, scope="whole").apply(zeros).isfinite().all()


def write_store(folder, small_store, padding, kind="fbank"):
    """Write the utterances of a store with frames at the energy floor in their middles."""
    config, shards = replace(small_store.config, kind=kind, num_ceps=4), []
    for index, names in enumerate(small_store.store.shards):
        rows = []
        for name in names:
            x, cut = small_store.features[name], small_store.cuts[name]
            zeros = torch.full((padding, 4), LOG_FLOOR)
            padded = torch.cat([x[:7], zeros, x[7:]])
            rows.append((cut, small_store.store.speaker(name), padded))
        written = write_shard(folder / "shards", index, rows, config)
        shards.append(dict(zip(("utterances", "frames"), written, strict=True)))
    write_manifest(folder, config, shards)
    return FeatureStore(folder)


@pytest.mark.parametrize("kind", ["fbank", "plp"])
def test_padded_training_clips_have_the_means_and_normaliser_of_clean_ones(
    small_store, tmp_path, kind
):
    clean = write_store(tmp_path / "clean", small_store, 0, kind)
    padded = write_store(tmp_path / "padded", small_store, 300, kind)
    for name in clean.ids:
        assert padded.num_frames(name) == clean.num_frames(name) + 300
        assert int(padded.counted(name).sum()) == clean.num_frames(name)
        assert padded.cmn_state(name).frames == clean.cmn_state(name).frames
        torch.testing.assert_close(padded.cmn_state(name).sum, clean.cmn_state(name).sum)
    for speaker in clean.speakers:
        torch.testing.assert_close(padded.speaker_mean(speaker), clean.speaker_mean(speaker))
    for scope in ("causal", "whole", "global"):
        clean_normaliser, padded_normaliser = (
            estimate_normaliser(s, 20, scope) for s in (clean, padded)
        )
        torch.testing.assert_close(clean_normaliser.prior_mean, padded_normaliser.prior_mean)
        torch.testing.assert_close(
            clean_normaliser.residual.mean, padded_normaliser.residual.mean, rtol=0, atol=1e-9
        )
        torch.testing.assert_close(clean_normaliser.residual.std, padded_normaliser.residual.std)


def test_one_pass_over_padded_shards_gives_the_same_normaliser(small_store, tmp_path):
    padded = write_store(tmp_path / "padded", small_store, 300)
    one_pass = merge(
        NormaliserStats.of(x, padded.cmn_state(name), 20, padded.kind) for name, x in padded.iter()
    ).normaliser()
    expected = estimate_normaliser(padded, 20)
    torch.testing.assert_close(one_pass.prior_mean, expected.prior_mean)
    torch.testing.assert_close(one_pass.residual.std, expected.residual.std)
    assert one_pass.residual.count == expected.residual.count


def test_the_normaliser_remembers_the_kind_of_its_features(normaliser, tmp_path):
    cepstral = replace(normaliser, kind="plp")
    cepstral.save(tmp_path / "normaliser.json")
    assert Cmvn.load(tmp_path / "normaliser.json").kind == "plp"


def test_a_speaker_of_silence_alone_has_a_mean_of_zero(small_store, tmp_path):
    name = small_store.store.ids[0]
    rows = [(small_store.cuts[name], "anna", torch.full((50, 4), LOG_FLOOR))]
    utterances, frames = write_shard(tmp_path / "shards", 0, rows, small_store.config)
    counts = [{"utterances": utterances, "frames": frames}]
    write_manifest(tmp_path, small_store.config, counts)
    store = FeatureStore(tmp_path)
    assert not store.counted(name).any()
    assert torch.equal(store.speaker_mean("anna"), torch.zeros(4, dtype=torch.float64))
    with pytest.raises(Exception, match="all audio is digital silence"):
        estimate_normaliser(store)


def test_damaged_spans_of_silence_are_an_error(small_store, tmp_path):
    store = write_store(tmp_path / "padded", small_store, 10)
    path = store.path / "shards" / "cuts.000000.jsonl"
    lines = path.read_text().splitlines()
    cut = json.loads(lines[0])
    assert cut["custom"]["digital_silence"] == [[7, 17]]
    for damaged_spans in ([[1]], [[1, -2]], "all"):
        cut["custom"]["digital_silence"] = damaged_spans
        path.write_text("\n".join([json.dumps(cut), *lines[1:]]) + "\n")
        with pytest.raises(StoreError, match="damaged"):
            FeatureStore(store.path)


def test_features_of_gmms_know_the_silence_of_their_cepstra(small_store, tmp_path):
    store = write_store(tmp_path / "padded", small_store, 30, "plp")
    features = GmmFeatures(store.path)
    for name in store.ids:
        assert spans(~features.counted(name)) == [[7, 37]]
