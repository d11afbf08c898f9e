"""Messages: sent values and residuals add up to the gradients, in every form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.parallel.compression import BITMAP, DENSE, NON_FINITE, SPARSE, decode, encode


def dyadic(size, seed, scale=64):
    """Multiples of 1/64, whose sums float32 holds exactly."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.round(rng.standard_normal(size) * scale) / 64).float()


def by_definition(gradient, residual, tau):
    """Strom's loop, one element after the other."""
    total, new_residual = [], []
    for value in (residual + gradient).tolist():
        sent = math.copysign(tau, value) if abs(value) > tau else 0.0
        total.append(sent)
        new_residual.append(value - sent)
    return torch.tensor(total), torch.tensor(new_residual)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 300),
    tau=st.sampled_from([0.25, 1.0, 2.5, 100.0]),
    fallback=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_messages_equal_the_definition(size, tau, fallback, seed):
    gradient, old_residual = dyadic(size, seed), dyadic(size, seed + 1, 32)
    total, expected_residual = by_definition(gradient, old_residual, tau)
    sent = int((total != 0).sum())
    capacity = size // 16 if fallback else size
    residual = old_residual.clone()
    message = encode(gradient, residual, tau, fallback)
    assert torch.equal(residual, expected_residual)
    assert int(message[0]) == (SPARSE if sent <= capacity else BITMAP)
    assert len(message) == 1 + (sent if sent <= capacity else -(-size // 16))
    out = torch.zeros(size)
    assert decode(message, tau, out) == sent
    assert torch.equal(out, total)


@pytest.mark.parametrize("steps", [1, 30])
def test_residual_and_sent_values_sum_to_the_gradients_exactly(steps):
    residual, sent, whole = torch.zeros(1000), torch.zeros(1000), torch.zeros(1000)
    for step in range(steps):
        gradient = dyadic(1000, step, 20)
        message = encode(gradient, residual, 0.5)
        decode(message, 0.5, sent)
        whole += gradient
        assert torch.equal(residual + sent, whole)
    assert sent.abs().sum() > 0


def test_threshold_0_sends_the_gradients_unchanged():
    gradient, residual, out = dyadic(50, 1), dyadic(50, 2), torch.zeros(50)
    expected = gradient + residual
    message = encode(gradient, residual, 0.0)
    assert int(message[0]) == DENSE
    assert decode(message, 0.0, out) == 50
    assert torch.equal(out, expected)
    assert not residual.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 70, 199])
@pytest.mark.parametrize("tau", [0.0, 0.01, 10.0])
def test_a_value_that_is_not_finite_is_sent_instead_of_kept_in_the_residual(bad, place, tau):
    gradient = dyadic(200, 3)
    gradient[place] = bad
    message = encode(gradient, torch.zeros(200), tau)
    assert message.tolist() == [NON_FINITE]
    with pytest.raises(FloatingPointError):
        decode(message, tau, torch.zeros(200))
