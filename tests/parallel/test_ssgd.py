"""Buckets of gradients, without other workers."""

import pytest
import torch

from toolkit.parallel.ssgd import Buckets


class Alone:
    """The only worker; counts the exchanges that it begins."""

    def __init__(self):
        self.begun = 0

    def all_reduce(self, tensor, group=None):
        self.begun += 1
        return Sum(tensor)


class Sum:
    def __init__(self, tensor):
        self.wait = lambda: tensor


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


@pytest.fixture
def workers():
    return Alone()


@pytest.fixture
def buckets(model, workers):
    """Buckets so small that nearly every parameter has its own."""
    return Buckets(list(model.parameters()), lambda _, part: workers.all_reduce(part), max_bytes=40)


def step(model, workers, buckets):
    """Return how many exchanges began during the backward pass, and how many in all."""
    model.zero_grad(set_to_none=True)
    workers.begun = 0
    with buckets.backward():
        model(torch.ones(5, 3)).square().sum().backward()
        inside = workers.begun
    return inside, workers.begun


def replace_nodes(model):
    """Replace the gradient nodes, as moving the model to another device and back does."""
    model.double()
    model.float()


def test_buckets_are_added_up_during_the_backward_pass(model, workers, buckets):
    inside, whole = step(model, workers, buckets)
    assert inside == whole > 1


def test_also_after_the_model_was_on_another_device(model, workers, buckets):
    expected = step(model, workers, buckets)
    for _ in range(2):
        replace_nodes(model)
        assert step(model, workers, buckets) == expected
        assert step(model, workers, buckets) == expected
