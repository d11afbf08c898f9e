"""Linear prediction against linear systems and spectra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.features.cepstra import PerceptualLinearPrediction, cepstrum, durbin, lifter
from toolkit.features.filterbank import mel_points

SPECTRA = st.lists(st.floats(1e-3, 1e3), min_size=16, max_size=16)
SMOOTH = st.lists(st.floats(0.1, 10), min_size=16, max_size=16)
"""Whose poles are far enough from the unit circle for a spectrum of 4,096 points."""


def autocorrelation(spectrum, order):
    """Of a power spectrum at 16 frequencies from 0 to the Nyquist frequency: [order + 1]."""
    return torch.fft.irfft(torch.tensor(spectrum, dtype=torch.complex128))[: order + 1]


@settings(deadline=None)
@given(st.lists(SPECTRA, min_size=1, max_size=3))
def test_durbin_solves_the_normal_equations(spectra):
    order = 6
    frames = torch.stack([autocorrelation(spectrum, order) for spectrum in spectra], dim=1)
    predictor, energy = durbin(frames)
    for t in range(len(spectra)):
        r = frames[:, t]
        matrix = torch.stack([r[(torch.arange(order) - i).abs()] for i in range(order)])
        expected = torch.linalg.solve(matrix, -r[1:])
        torch.testing.assert_close(predictor[:, t], expected, rtol=1e-6, atol=1e-9)
        assert float(energy[t]) == pytest.approx(float(r[0] + expected @ r[1:]), rel=1e-6)


def test_a_tone_leaves_a_hundred_thousandth_per_order():
    tone = torch.cos(torch.arange(3, dtype=torch.float64))[:, None]
    _, energy = durbin(tone)
    assert float(energy) == pytest.approx((1 - math.cos(1) ** 2) * 1e-5)


@settings(deadline=None)
@given(SMOOTH)
def test_the_cepstrum_is_that_of_the_filters_spectrum(spectrum):
    predictor, _ = durbin(autocorrelation(spectrum, 4)[:, None])
    size = 4096
    polynomial = torch.cat([torch.ones(1, dtype=torch.float64), predictor[:, 0]])
    log_power = -2 * torch.fft.rfft(polynomial, n=size).abs().log()
    expected = torch.fft.irfft(log_power, n=size)[1:5]  # of both sides: half of each on either
    torch.testing.assert_close(cepstrum(predictor)[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_silence_is_not_a_number_and_loudness_adds_to_c0_alone():
    plp = PerceptualLinearPrediction(mel_points(23, 20.0, 8000.0), 13)
    energies = 1e6 * torch.rand(2, 23) + 1e5
    assert plp(torch.zeros(1, 23)).isnan().any()
    low, high = plp(energies), plp(1e6 * energies)
    torch.testing.assert_close(high[:, 1:], low[:, 1:], rtol=0, atol=1e-4)
    # Kaldi's exponent is 0.33333
    assert float((high - low)[0, 0]) == pytest.approx(0.33333 * math.log(1e6), abs=1e-4)


def test_the_lifter_is_highest_in_its_middle():
    assert float(lifter(13)[0]) == 1
    assert float(lifter(13)[11]) == 12
