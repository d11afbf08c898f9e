"""Messages of a fixed size: Strom's definition if all values fit; otherwise they are sent later."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parallel.test_compression import by_definition, dyadic
from toolkit.parallel.compression import (
    MIN_ELEMENTS,
    STEPS_BEHIND,
    MessageCapacity,
    decode_fixed,
    encode_fixed,
)
from toolkit.parallel.messages import HostStreams


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 300),
    tau=st.sampled_from([0.25, 1.0, 2.5, 100.0]),
    seed=st.integers(0, 1 << 30),
)
def test_messages_with_room_for_all_values_equal_the_definition(size, tau, seed):
    gradient, old_residual = dyadic(size, seed), dyadic(size, seed + 1, 32)
    total, expected_residual = by_definition(gradient, old_residual, tau)
    residual = old_residual.clone()
    message = encode_fixed(gradient, residual, torch.tensor(tau), size)
    assert torch.equal(residual, expected_residual)
    decoded, numbers = decode_fixed(message[None], torch.tensor(tau), size)
    assert numbers.tolist() == [int((total != 0).sum())]
    assert torch.equal(decoded, total)


@pytest.mark.parametrize("capacity", [5, 20])
def test_values_that_do_not_fit_are_sent_later(capacity):
    residuals = [torch.zeros(200) for _ in range(3)]
    sent, whole, tau = torch.zeros(200), torch.zeros(200), torch.tensor(0.5)
    for step in range(6):
        parts = [dyadic(200, 10 * step + n, 40) for n in range(3)]
        whole += sum(parts)
        pairs = zip(parts, residuals, strict=True)
        messages = torch.stack(
            [encode_fixed(part, residual, tau, capacity) for part, residual in pairs]
        )
        assert messages.shape == (3, capacity + 1)
        decoded, numbers = decode_fixed(messages, tau, 200)
        assert (numbers > capacity).any()
        sent += decoded
        assert torch.equal(sent + sum(residuals), whole)
    for _ in range(600):
        messages = [
            encode_fixed(torch.zeros(200), residual, tau, capacity) for residual in residuals
        ]
        sent += decode_fixed(torch.stack(messages), tau, 200)[0]
    assert torch.equal(sent + sum(residuals), whole)
    assert max(residual.abs().max() for residual in residuals) <= 0.5


def test_an_index_of_31_bits_keeps_its_highest_bit():
    index = torch.tensor([(1 << 31) - 1, 5, 1 << 30], dtype=torch.int32)
    words = (index << 1) | 1
    assert ((words.long() & 0xFFFFFFFF) >> 1).tolist() == index.tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_makes_the_sums_of_all_workers_nan(bad):
    gradient = dyadic(50, 3)
    messages = [encode_fixed(gradient, torch.zeros(50), torch.tensor(1.0), 10)]
    gradient[7] = bad
    messages.append(encode_fixed(gradient, torch.zeros(50), torch.tensor(1.0), 10))
    assert decode_fixed(torch.stack(messages), torch.tensor(1.0), 50)[0].isnan().all()


def test_the_capacity_follows_the_number_sent_two_steps_before():
    capacity = MessageCapacity([16 * 1000, 16], HostStreams())
    assert capacity.next() == [1000, MIN_ELEMENTS]
    sent = [300.0, 400.0, 900.0, 100.0]
    capacities = []
    for number in sent:
        capacity.add(torch.tensor([number, 1.0]))
        capacities.append(list(capacity.next()))
    assert STEPS_BEHIND == 2
    assert capacities == [
        [1000, MIN_ELEMENTS],
        [600, MIN_ELEMENTS],
        [800, MIN_ELEMENTS],
        [1000, MIN_ELEMENTS],
    ]
