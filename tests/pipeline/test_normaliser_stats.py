import json

import numpy as np
import pytest
import torch

from toolkit.features.normalise import Cmvn
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.pipeline.steps.stats import NormaliserStats, NormaliserStatsError, merge

PRIOR = 30


def utterances(mean=15.0, std=3.0, count=12, seed=0):
    """Pairs (features, state) of three speakers, in time order within each speaker."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(3):
        state = CmnState.empty(5)
        shift = rng.normal(0, 2, 5)
        for _ in range(count // 3):
            x = torch.from_numpy(rng.normal(mean + shift, std, (rng.integers(1, 60), 5))).float()
            pairs.append((x, state))
            state = state.after(x, counted_frames(x, "fbank"))
    return pairs


def direct(utterances, prior_frames=PRIOR):
    """Frame by frame in long double, two passes: prior mean, mean and variance of the residual."""
    frames = np.concatenate([x.numpy() for x, _ in utterances]).astype(np.longdouble)
    prior = frames.mean(axis=0)
    residuals = []
    for x, state in utterances:
        total, count = state.sum.numpy().astype(np.longdouble), state.frames
        for frame in x.numpy().astype(np.longdouble):
            total, count = total + frame, count + 1
            residuals.append(frame - (prior_frames * prior + total) / (prior_frames + count))
    residuals = np.array(residuals)
    return prior, residuals.mean(axis=0), residuals.std(axis=0)


def summed(utterances):
    return merge(NormaliserStats.of(x, state, PRIOR) for x, state in utterances)


@pytest.mark.parametrize(("mean", "std"), [(15.0, 3.0), (1e4, 1.0), (-3.0, 1e-2)])
def test_one_pass_equals_two_passes_in_long_double(mean, std):
    pairs = utterances(mean, std)
    normaliser = summed(pairs).normaliser()
    prior, residual_mean, residual_std = direct(pairs)
    np.testing.assert_allclose(normaliser.prior_mean, prior.astype(float), rtol=1e-14)
    scale = max(1.0, abs(mean))
    np.testing.assert_allclose(
        normaliser.residual.mean, residual_mean.astype(float), atol=1e-14 * scale
    )
    # Sums of squares of size mean^2 cancel to those of size std^2.
    loss = 1e-14 * (1 + (mean / std) ** 2)
    np.testing.assert_allclose(normaliser.residual.std, residual_std.astype(float), rtol=loss)


def test_parts_merge_to_the_whole():
    pairs = utterances()
    whole = summed(pairs)
    parts = merge([summed(pairs[:5]), summed(pairs[5:6]), summed(pairs[6:])])
    assert parts.frames == whole.frames == sum(len(x) for x, _ in pairs)
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-15)


def test_merging_loses_nothing_over_many_parts():
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, 20000) * 10.0 ** rng.integers(-8, 9, 20000)
    parts = [NormaliserStats(1, PRIOR, "fbank", np.full(6, value)) for value in values]
    import math

    assert merge(parts).sums[0] == math.fsum(values)
    assert sum(values) != math.fsum(values)  # plain addition does lose


def test_json_keeps_every_bit_and_the_normaliser_is_the_recipes(tmp_path):
    total = summed(utterances())
    again = NormaliserStats.from_dict(json.loads(json.dumps(total.to_dict())))
    assert again.sums.tobytes() == total.sums.tobytes()
    again.normaliser().save(tmp_path / "normaliser.json")
    assert Cmvn.load(tmp_path / "normaliser.json").to_json() == total.normaliser().to_json()


def test_invalid_statistics_are_errors():
    with pytest.raises(NormaliserStatsError, match="no statistics"):
        merge([])
    with pytest.raises(NormaliserStatsError, match="no frames"):
        NormaliserStats.empty(4).normaliser()
    with pytest.raises(NormaliserStatsError, match="different"):
        merge([NormaliserStats.empty(4), NormaliserStats.empty(5)])
    with pytest.raises(NormaliserStatsError, match="different"):
        merge([NormaliserStats.empty(4, 100), NormaliserStats.empty(4, 200)])
