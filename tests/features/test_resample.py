import math

import numpy as np
import pytest
from scipy.signal import firwin, resample_poly

from toolkit.features.audio import resample
from toolkit.features.resample import LARGEST, Resampler, lowpass, steps


@pytest.fixture
def designed(monkeypatch):
    """Lengths of the filters that are designed from now on."""
    lengths = []

    def count(length, *arguments, **options):
        lengths.append(length)
        return firwin(length, *arguments, **options)

    lowpass.cache_clear()
    monkeypatch.setattr("scipy.signal.firwin", count)
    monkeypatch.setattr("scipy.signal._signaltools.firwin", count)
    return lengths


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000, 16001])
def test_the_result_is_that_of_scipy(rate):
    samples = np.random.default_rng(rate).standard_normal(rate // 2).astype(np.float32)
    common = math.gcd(rate, 16000)
    whole = resample_poly(samples, 16000 // common, rate // common)
    found = resample(samples, rate, 16000)
    assert found.dtype == np.float32
    assert np.array_equal(found, whole[: len(found)])


def test_the_filter_of_two_rates_is_designed_once(designed):
    samples = np.random.default_rng(0).standard_normal(16001).astype(np.float32)
    for _ in range(3):
        whole = resample(samples, 16001, 16000)
    stream = Resampler(16001, 16000)
    parts = [stream.push(part) for part in np.array_split(samples, 5)]
    found = np.concatenate([*parts, stream.finish()])
    np.testing.assert_allclose(found, whole, atol=1e-5)
    assert designed == [20 * 16001 + 1]


@pytest.mark.parametrize("rate", [383_987, 1_048_701, 999_999_937])
def test_rates_that_have_little_in_common_are_approximated(rate):
    up, down = steps(rate, 16000)
    assert down <= LARGEST
    assert up / down == pytest.approx(16000 / rate, rel=1e-7)


@pytest.mark.parametrize("rate", [1000, 7919, 8000, 44_101, 96_001])
def test_rates_of_audio_are_exact(rate):
    up, down = steps(rate, 16000)
    assert up * rate == 16000 * down
