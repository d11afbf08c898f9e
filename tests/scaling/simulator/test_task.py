"""The simulator's problem: gradients against autograd, order of the data, what is learned."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from toolkit.scaling.simulator.tasks import Frames, FrameTask, SyntheticConfig, synthetic_frames


@pytest.fixture(scope="module")
def task():
    config = SyntheticConfig(frames=1000, valid_frames=400, classes=7, dimension=5)
    return FrameTask(*synthetic_frames(config), hidden=(6, 8), seed=3)


def by_autograd(task, frames, weights, chosen):
    weights = weights.clone().requires_grad_()
    sizes = [5, 6, 8, 7]
    x, position = frames.inputs[chosen], 0
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        matrix = weights[position : position + inputs * outputs].view(inputs, outputs)
        position += inputs * outputs
        x = x @ matrix + weights[position : position + outputs]
        position += outputs
        x = x.relu() if index < 2 else x
    functional.cross_entropy(x, frames.targets[chosen]).backward()
    assert position == task.size
    return weights.grad


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_equal_autograds(task, shared):
    config = SyntheticConfig(frames=1000, valid_frames=400, classes=7, dimension=5)
    frames, _ = synthetic_frames(config)
    weights = torch.stack([task.initial() + 0.1 * torch.randn(task.size) for _ in range(3)])
    weights = weights[:1] if shared else weights
    gradients = task.gradients(weights, [4, 0, 31], frames=8)
    for row, number in enumerate([4, 0, 31]):
        chosen = task.sample_indices(number * 8, 8)
        worker_weights = weights[0 if shared else row]
        assert torch.allclose(
            gradients[row], by_autograd(task, frames, worker_weights, chosen), atol=1e-6
        )


def test_every_epoch_sees_every_frame_once_in_another_order(task):
    epochs = [
        torch.cat([task.sample_indices(e * 1000 + i, 50) for i in range(0, 1000, 50)])
        for e in (0, 1)
    ]
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, torch.arange(1000))
    assert not torch.equal(*epochs)
    across = task.sample_indices(990, 20)
    assert torch.equal(across, torch.cat([epochs[0][990:], epochs[1][:10]]))


def test_another_seed_draws_other_weights_and_another_order(task):
    reseeded = task.reseeded(4)
    assert reseeded.size == task.size
    assert not torch.equal(reseeded.initial(), task.initial())
    assert not torch.equal(reseeded.sample_indices(0, 50), task.sample_indices(0, 50))
    again = reseeded.reseeded(3)
    assert torch.equal(again.initial(), task.initial())
    assert torch.equal(again.sample_indices(0, 50), task.sample_indices(0, 50))


def test_the_task_can_be_learned_but_not_perfectly(task):
    weights = task.initial()
    initial = task.evaluate(weights)
    for number in range(600):
        weights -= 0.2 * task.gradients(weights[None], [number], 16)[0]
    loss, accuracy = task.evaluate(weights)
    assert loss < initial[0]
    assert initial[1] + 0.2 < accuracy < 0.99


def test_loss_and_accuracy_are_those_of_the_logits():
    inputs = torch.eye(3)
    frames = Frames(inputs, torch.tensor([0, 1, 2]))
    task = FrameTask(frames, frames, hidden=())
    weights = torch.cat([10 * torch.eye(3).flatten(), torch.zeros(3)])
    loss, accuracy = task.evaluate(weights)
    assert accuracy == 1
    assert loss == pytest.approx(functional.cross_entropy(10 * inputs, frames.targets).item())
