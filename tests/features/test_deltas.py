import numpy as np
import pytest
import torch

from tests.optional import load_torchaudio
from toolkit.features.deltas import add_deltas


def regression(values, window, length):
    """The regression of an infinite signal (a function of t), at t = 0 ... length - 1."""
    norm = sum(j * j for j in range(-window, window + 1))

    def at(t):
        return sum(j * values(t + j) for j in range(-window, window + 1)) / norm

    return at, [at(t) for t in range(length)]


@pytest.mark.parametrize("length", [1, 2, 5, 12])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_equals_nested_regressions_of_the_signal_with_repeated_ends(length, window):
    signal = np.random.default_rng(length).normal(size=length)

    def x(t):
        return signal[min(max(t, 0), length - 1)]

    first_at, first = regression(x, window, length)
    _, second = regression(first_at, window, length)
    got = add_deltas(torch.from_numpy(signal).unsqueeze(1), order=2, window=window)
    np.testing.assert_allclose(got.numpy(), np.stack([signal, first, second], 1), atol=1e-12)


def test_first_order_equals_torchaudio():
    functional = load_torchaudio("functional")
    x = torch.randn(30, 13)
    expected = functional.compute_deltas(x.t(), win_length=5).t()
    torch.testing.assert_close(add_deltas(x, order=1)[:, 13:], expected)


def test_dimensions_are_grouped_by_order_and_a_ramp_has_slope_one():
    x = torch.stack([torch.arange(20.0), torch.full((20,), 7.0)], dim=1)
    got = add_deltas(x)
    assert got.shape == (20, 6)
    slopes = x.new_tensor([1, 0, 0, 0]).expand(12, -1)  # of both columns, then their slopes
    torch.testing.assert_close(got[4:-4], torch.cat([x[4:-4], slopes], 1))


def test_no_frames():
    assert add_deltas(torch.empty(0, 13)).shape == (0, 39)
