import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from toolkit.features.normalise import (
    Cmvn,
    GlobalStats,
    NormaliserError,
    Scope,
    estimate_normaliser,
)
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames


def loop(x, prior_mean, prior_frames, frames=0, total=0.0):
    """x_t - m_t frame by frame."""
    rows, total = [], torch.zeros(x.shape[1], dtype=torch.float64) + total
    for row in x.double():
        total = total + row
        frames += 1
        rows.append(row - (prior_frames * prior_mean + total) / (prior_frames + frames))
    return torch.stack(rows)


@pytest.fixture
def normaliser():
    generator = torch.Generator().manual_seed(0)
    residual = GlobalStats.of(0.3 + 2 * torch.randn(500, 3, generator=generator))
    return Cmvn(torch.tensor([15.0, 2.0, -4.0], dtype=torch.float64), residual, 20)


def test_equals_a_loop(normaliser):
    x = 10 + 3 * torch.randn(57, 3)
    state = CmnState(31, torch.tensor([300.0, 50.0, -90.0], dtype=torch.float64))
    stats = normaliser.residual
    for initial_state, frames, total in ((None, 0, 0.0), (state, 31, state.sum)):
        residual = loop(x, normaliser.prior_mean, 20, frames, total)
        expected = ((residual - stats.mean) / stats.std).float()
        torch.testing.assert_close(normaliser.apply(x, initial_state), expected, rtol=0, atol=2e-6)


def test_carried_state_equals_concatenation(normaliser):
    first, second = 10 + torch.randn(30, 3), 20 + torch.randn(41, 3)
    state = CmnState.empty(3)
    later = state.after(first, counted_frames(first, "fbank"))
    parts = [normaliser.apply(first, state), normaliser.apply(second, later)]
    whole = normaliser.apply(torch.cat([first, second]))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)


def test_normalisation_is_causal(normaliser):
    x = torch.randn(40, 3)
    changed = x.clone()
    changed[25:] += 100
    assert torch.equal(normaliser.apply(x)[:25], normaliser.apply(changed)[:25])


def test_whole_file_normalisation_equals_the_formulas(normaliser):
    x = 10 + 3 * torch.randn(57, 3).double()
    whole, mean, spread = replace(normaliser, scope="whole"), normaliser.prior_mean, 20
    state = CmnState(31, torch.tensor([300.0, 50.0, -90.0], dtype=torch.float64))
    for initial_state, frames, total in ((None, 0, 0.0), (state, 31, state.sum)):
        m = (spread * mean + total + x.sum(dim=0)) / (spread + frames + 57)
        squares = spread * normaliser.residual.std.square() + (x - m).square().sum(dim=0)
        expected = ((x - m) / (squares / (spread + 57)).sqrt()).float()
        torch.testing.assert_close(
            whole.apply(x.float(), initial_state), expected, rtol=0, atol=2e-6
        )


def test_a_long_whole_file_has_mean_0_and_variance_1_at_any_gain(normaliser):
    whole = replace(normaliser, scope="whole")
    x = torch.randn(20_000, 3)
    for gain, shift in ((1, 0), (5, 30)):
        y = whole.apply(gain * x + shift)
        assert y.mean(dim=0).abs().max() < 0.1
        assert (y.std(dim=0) - 1).abs().max() < 0.1
    assert whole.apply(x[:0]).shape == (0, 3)
    assert replace(whole, prior_frames=0).apply(torch.ones(1, 3)).abs().max() == 0


def test_a_global_mean_depends_on_the_training_data_alone(normaliser):
    x, fixed = 10 + 3 * torch.randn(57, 3), replace(normaliser, scope="global")
    state = CmnState(31, torch.tensor([300.0, 50.0, -90.0], dtype=torch.float64))
    stats = normaliser.residual
    expected = ((x.double() - normaliser.prior_mean - stats.mean) / stats.std).float()
    for initial_state in (None, state):
        torch.testing.assert_close(fixed.apply(x, initial_state), expected, rtol=0, atol=2e-6)
    assert torch.equal(fixed.apply(x)[20:], fixed.apply(x[20:]))
    assert [replace(fixed, scope=scope).online for scope in get_args(Scope)] == [True, False, True]


def test_the_scope_comes_back_from_disk_and_is_causal_in_older_files(normaliser, tmp_path):
    path = tmp_path / "normaliser.json"
    normaliser.save(path)
    assert "scope" not in json.loads(path.read_text())
    assert Cmvn.load(path).scope == "causal"
    whole = replace(normaliser, scope="whole")
    whole.save(path)
    assert Cmvn.load(path).to_json() == whole.to_json()
    path.write_text(whole.to_json().replace('"whole"', '"half"'))
    with pytest.raises(NormaliserError, match="`scope`, 'half', is not a known value"):
        Cmvn.load(path)


@pytest.mark.parametrize("name", ["prior_mean", "sum", "sumsq"])
def test_values_beyond_any_feature_are_refused(normaliser, tmp_path, name):
    path = tmp_path / "normaliser.json"
    record = json.loads(normaliser.to_json())
    (record if name in record else record["residual"])[name][0] = 1e308
    path.write_text(json.dumps(record))
    with pytest.raises(NormaliserError, match=rf"{path}: .*beyond the range of float32"):
        Cmvn.load(path)


def test_does_not_drift_after_hours_of_a_speaker(normaliser):
    frames = 50_000_000
    mean = torch.tensor([15.0, 2.0, -4.0], dtype=torch.float64)
    x = mean.float() + torch.randn(100, 3)
    normalised = normaliser.apply(x, CmnState(frames, frames * mean))
    expected = (x.double() - mean - normaliser.residual.mean) / normaliser.residual.std
    torch.testing.assert_close(normalised.double(), expected, rtol=0, atol=1e-5)


def test_without_a_prior_the_first_frame_is_its_own_mean(normaliser):
    bare = Cmvn(normaliser.prior_mean, GlobalStats(1, torch.zeros(3), torch.ones(3)), 0)
    assert torch.equal(bare.apply(torch.randn(5, 3))[0], torch.zeros(3))


def test_parts_of_the_statistics_merge_to_the_whole():
    x = 1000 + torch.randn(300, 4)
    merged = GlobalStats.of(x[:120]) + GlobalStats.of(x[120:]) + GlobalStats.empty(4)
    torch.testing.assert_close(merged.mean, x.double().mean(0))
    torch.testing.assert_close(merged.std, x.double().std(0, unbiased=False), rtol=1e-6, atol=0)


def test_a_constant_dimension_stays_finite():
    stats = GlobalStats.of(torch.full((50, 1), 3.7))
    assert stats.std.item() >= 1e-5


def test_a_normaliser_is_saved_bit_for_bit(normaliser, tmp_path):
    normaliser.save(tmp_path / "normaliser.json")
    loaded = Cmvn.load(tmp_path / "normaliser.json")
    x = torch.randn(20, 3)
    assert torch.equal(loaded.apply(x), normaliser.apply(x))
    assert loaded.prior_frames == 20
    (tmp_path / "normaliser.json").write_text(json.dumps({"prior_frames": 3}))
    with pytest.raises(NormaliserError, match=r"normaliser\.json"):
        Cmvn.load(tmp_path / "normaliser.json")


def test_refuses_another_front_end(normaliser):
    with pytest.raises(NormaliserError, match="front end"):
        normaliser.apply(torch.randn(5, 4))


def test_estimated_over_a_store(small_store):
    estimated = estimate_normaliser(small_store.store, prior_frames=20)
    frames = torch.cat(list(small_store.features.values())).double()
    torch.testing.assert_close(estimated.prior_mean, frames.mean(0), rtol=1e-12, atol=0)
    speakers = {}
    for name, x in small_store.features.items():
        speakers.setdefault(name[:4], []).append(x)
    residual = torch.cat(
        [loop(torch.cat(features), frames.mean(0), 20) for features in speakers.values()]
    )
    torch.testing.assert_close(estimated.residual.mean, residual.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(estimated.residual.std, residual.std(0, unbiased=False))
    store = small_store.store
    whole = estimate_normaliser(store, prior_frames=20, scope="whole")
    assert torch.equal(whole.prior_mean, estimated.prior_mean)
    residual = [whole.subtract_mean(store.load(n), store.cmn_state(n)) for n in store.ids]
    expected = GlobalStats.of(torch.from_numpy(np.concatenate(residual)))
    torch.testing.assert_close(whole.residual.std, expected.std)
    assert whole.residual.count == expected.count
    normalised = torch.cat([estimated.apply(store.load(n), store.cmn_state(n)) for n in store.ids])
    torch.testing.assert_close(normalised.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(normalised.std(0, unbiased=False), torch.ones(4))
