"""The torch front end's first half against float64 and against one frame at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.features import filterbank
from toolkit.features.filterbank import FilterBank, mel, mel_filters, mel_points


@given(st.floats(0, 24000))
def test_the_mel_scale_is_rounded_once_per_operation(hertz):
    assert float(mel(torch.tensor(hertz))) == pytest.approx(
        1127 * math.log(1 + hertz / 700), rel=3e-7, abs=1e-4
    )


@pytest.mark.parametrize(("bins", "size", "rate"), [(23, 512, 16000), (40, 256, 8000)])
def test_filters_rise_and_fall_from_peak_to_peak(bins, size, rate):
    low, high = 20.0, rate / 2 - 100
    points = torch.linspace(
        1127 * math.log(1 + low / 700), 1127 * math.log(1 + high / 700), bins + 2,
        dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(mel_points(bins, low, high).double(), points, rtol=0, atol=1e-3)
    filters = mel_filters(mel_points(bins, low, high), size, rate)
    assert filters.shape == (size // 2, bins)
    assert filters.min() == 0
    for i in range(size // 2):
        position = (1127 * math.log(1 + i * rate / size / 700) - points[0]) / (
            points[1] - points[0]
        )
        for m in range(bins):
            expected = max(0.0, 1 - abs(float(position) - (m + 1)))
            assert float(filters[i, m]) == pytest.approx(expected, abs=2e-5)


@pytest.fixture
def filters():
    return mel_filters(mel_points(23, 20.0, 8000.0), 512, 16000)


@pytest.fixture
def bank(filters):
    return FilterBank(filters, 400, 160)


@pytest.mark.parametrize("length", [400, 479, 480, 1040, 5000])
def test_every_frame_is_what_its_samples_give_mirrored_at_the_ends(bank, filters, length):
    samples = 1000 * torch.randn(length)
    energies = bank(samples)
    assert energies.shape == ((length + 80) // 160, 23)
    for t, found in enumerate(energies):
        places = [160 * t + 80 - 200 + i for i in range(400)]
        frame = samples.double()[[_mirrored(place, length) for place in places]]
        frame = frame - frame.mean()
        frame = frame - 0.97 * torch.cat([frame[:1], frame[:-1]])
        window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(400).double() / 399)
        power = torch.fft.rfft(frame * window**0.85, n=512).abs().square()[:-1]
        expected = power @ filters.double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


def _mirrored(place, length):
    return -1 - place if place < 0 else min(place, 2 * length - 1 - place)


def test_blocks_of_frames_give_what_all_at_once_give(bank, monkeypatch):
    samples = 1000 * torch.randn(16000)
    whole = bank(samples)
    monkeypatch.setattr(filterbank, "BLOCK", 7)
    torch.testing.assert_close(bank(samples), whole, rtol=1e-5, atol=0)


def test_constant_samples_have_no_energy(bank):
    assert bank(torch.full((4000,), 12345.0)).max() < 1e-6
