"""Functions of the compiled loops, against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from toolkit.models import lstm_cpu

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, 88.0, -88.0, 1e4, -1e4]


@njit
def _each(function, x):
    y = np.empty_like(x)
    for k in range(len(x)):
        y[k] = function(x[k])
    return y


@njit
def sigmoid(x):
    return lstm_cpu.sigmoid(x)


@njit
def tanh(x):
    return lstm_cpu.tanh(x)


@njit
def copy(source, target):
    lstm_cpu.copy_numbers(source, target)


@pytest.mark.parametrize(
    ("function", "torch_function"), [(sigmoid, torch.sigmoid), (tanh, torch.tanh)]
)
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-7), (np.float64, 1e-15)])
def test_gate_functions_equal_torchs(function, torch_function, dtype, error):
    x = np.concatenate([np.linspace(-30, 30, 100_001), SPECIAL]).astype(dtype)
    expected = torch_function(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(_each(function, x), expected, rtol=0, atol=error)


@given(st.lists(st.floats(width=32) | st.sampled_from(SPECIAL), min_size=1, max_size=40))
def test_bfloat16_is_rounded_like_torchs(numbers):
    x = np.array(numbers, np.float32)
    bits, back = np.empty(len(x), np.uint16), np.empty_like(x)
    copy(x, bits)
    copy(bits, back)
    expected = torch.from_numpy(x).bfloat16()
    np.testing.assert_array_equal(back, expected.float().numpy())


def test_ties_are_rounded_to_even():
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], np.float32)
    bits, back = np.empty(3, np.uint16), np.empty_like(ties)
    copy(ties, bits)
    copy(bits, back)
    assert back.tolist() == [1.0, 1 + 2**-6, -1.0]
