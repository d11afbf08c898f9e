"""The mathematics of asynchronous methods against closed forms and torch's optimizers."""

import threading

import pytest
import torch
from torch import nn

from toolkit.parallel.adpsgd import Learner, delay_by_one_update
from toolkit.parallel.asgd import ParameterServer, optimizer_like


def test_updates_during_an_averaging_are_not_lost():
    active, passive = Learner(torch.tensor([4.0])), Learner(torch.tensor([8.0]))
    sent = active.weights()
    active.add(torch.tensor([1.0]))  # while the weights are on their way
    correction = passive.average_with(sent)
    passive.add(torch.tensor([2.0]))
    active.apply_correction(correction)
    assert passive.weights().item() == 4 + 2 + 2
    assert active.weights().item() == 4 + 1 + 2
    assert active.averagings == passive.averagings == 1


def test_no_change_from_many_threads_is_lost():
    learner, neighbour = Learner(torch.zeros(3)), Learner(torch.full((3,), 2.0**-10))

    def add_updates():
        for _ in range(200):
            learner.add(torch.ones(3))

    def average():
        for _ in range(200):
            learner.apply_correction(neighbour.average_with(learner.weights()))

    threads = [threading.Thread(target=target) for target in (add_updates, add_updates, average)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = learner.weights() + neighbour.weights()
    assert torch.allclose(total, torch.full((3,), 400 + 2.0**-10), atol=1e-2)


def test_delay_by_one_is_the_mean_of_the_old_models_plus_the_workers_update():
    old_weights, updates = torch.randn(4, 6), torch.randn(4, 6)
    mean = old_weights.mean(dim=0)
    new_weights = [
        delay_by_one_update(b, b + u, mean) for b, u in zip(old_weights, updates, strict=True)
    ]
    for weights, update in zip(new_weights, updates, strict=True):
        assert torch.allclose(weights, mean + update, atol=1e-6)
    # the mean of all takes the step of synchronous training
    assert torch.allclose(torch.stack(new_weights).mean(0), mean + updates.mean(0), atol=1e-6)


def quadratic(weights, target):
    return weights - target


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=1.0),
        lambda parameters: torch.optim.Adadelta(parameters, lr=1.0),
    ],
)
def test_accumulated_gradients_update_like_synchronous_training(make):
    start, targets = torch.randn(5), torch.randn(6, 3, 5)
    synchronous = nn.Parameter(start.clone())
    optimizer = make([synchronous])
    accumulator = ParameterServer(start, make([nn.Parameter(start.clone())]), parts=3)
    for step, parts in enumerate(targets):
        rate = 0.1 / (1 + step)
        weights = accumulator.weights()
        server_weights = [accumulator.add(quadratic(weights, target), rate) for target in parts]
        assert torch.equal(server_weights[0], weights)  # nothing happens before the third
        assert torch.equal(server_weights[1], weights)
        synchronous.grad = torch.stack([quadratic(weights, t) for t in parts]).mean(dim=0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert torch.allclose(server_weights[2], synchronous, atol=1e-6)
    assert accumulator.updates == 6


def test_one_part_per_update_is_plain_sgd_on_gradients_of_older_weights():
    weights = torch.tensor([1.0])
    accumulator = ParameterServer(
        weights, torch.optim.SGD([nn.Parameter(weights)], lr=1.0), parts=1
    )
    old = accumulator.weights()
    assert accumulator.add(old, 0.5).item() == 0.5
    assert accumulator.add(old, 0.5).item() == 0.0  # of the weights before


def test_large_mean_gradients_are_clipped_and_remaining_ones_used():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
    accumulator = ParameterServer(torch.zeros(2), optimizer, parts=2, max_norm=1.0)
    accumulator.add(torch.tensor([6.0, 8.0]), 1.0)
    accumulator.flush()
    assert torch.allclose(accumulator.weights(), torch.tensor([-0.6, -0.8]))
    accumulator.flush()
    assert accumulator.updates == 1


def test_loading_a_state_restores_momentum():
    def make():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0, momentum=0.9)
        return ParameterServer(torch.zeros(2), optimizer, parts=1)

    whole, first, second = make(), make(), make()
    gradients = torch.randn(4, 2)
    for gradient in gradients:
        whole.add(gradient, 0.1)
    for gradient in gradients[:2]:
        first.add(gradient, 0.1)
    second.set_weights(first.weights())
    second.load_state_dict(first.state_dict())
    for gradient in gradients[2:]:
        second.add(gradient, 0.1)
    assert torch.equal(second.weights(), whole.weights())
    assert second.updates == 4


def test_same_optimizer_copies_the_settings_but_not_the_state():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.3, betas=(0.5, 0.6), eps=1e-3)
    weight.grad = torch.ones(2)
    optimizer.step()
    copy = optimizer_like(optimizer, [nn.Parameter(torch.zeros(3))])
    assert copy.param_groups[0]["betas"] == (0.5, 0.6)
    assert copy.param_groups[0]["eps"] == 1e-3
    assert not copy.state
