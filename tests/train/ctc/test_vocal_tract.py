import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.train.specaugment import warp_mel

EDGES = (20.0, 8000.0)


def mel(hertz):
    return 1127 * np.log1p(hertz / 700)


def warp_frequency(hertz, factor, high):
    """Kaldi's piecewise linear warp without a lower cutoff."""
    knee = 0.8 * high
    above = factor * knee + (hertz - knee) * (high - factor * knee) / (high - knee)
    return np.where(hertz < knee, factor * hertz, above)


@given(
    bins=st.integers(2, 90),
    factors=st.lists(st.floats(0.76, 1.24), min_size=1, max_size=3),
    edges=st.sampled_from([EDGES, (0.0, 4000.0), (125.0, 7500.0)]),
)
def test_each_frame_is_interpolated(bins, factors, edges):
    low, high = edges
    rng = np.random.default_rng(bins)
    inputs = rng.normal(size=(len(factors), 4, bins + 2)).astype(np.float32)
    warped = warp_mel(torch.from_numpy(inputs), torch.tensor(factors), bins, edges)
    centres = np.linspace(mel(low), mel(high), bins + 2)
    hertz = 700 * np.expm1(centres[1:-1] / 1127)
    for row, factor in enumerate(factors):
        at = mel(warp_frequency(hertz, factor, high))
        for frame in range(4):
            expected = np.interp(at, centres[1:-1], inputs[row, frame, :bins])
            np.testing.assert_allclose(warped[row, frame, :bins], expected, atol=2e-3)
    np.testing.assert_array_equal(warped[..., bins:], inputs[..., bins:])


def test_a_factor_of_one_changes_nothing():
    inputs = torch.randn(2, 5, 93)
    torch.testing.assert_close(
        warp_mel(inputs, torch.ones(2), 80, EDGES), inputs, atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_tone_goes_where_the_factor_says(factor):
    """The features of a tone at 1 kHz, warped, have their peak where 1 kHz / factor has its."""
    frontend = Frontend(FrontendConfig("fbank", num_mel_bins=80), engine="torch")

    def energies(hertz):
        samples = torch.sin(torch.arange(16000) * (2 * torch.pi * hertz / 16000))
        return frontend(samples)[50]

    warped = warp_mel(energies(1000.0)[None, None], torch.tensor([factor]), 80, EDGES)[0, 0]
    assert abs(warped.argmax() - energies(1000.0 / factor).argmax()) <= 1
    assert abs(warped.argmax() - energies(1000.0).argmax()) >= 1
