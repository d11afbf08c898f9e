"""The small LSTM task: gradients against autograd, and the use of context."""

import pytest
import torch

from toolkit.scaling.simulator.tasks import (
    CHUNK,
    Frames,
    SequenceTask,
    SpeechLikeConfig,
    speech_like_frames,
)

TRAIN, VALID = speech_like_frames(
    SpeechLikeConfig(frames=1030, valid_frames=256, phones=5, dimension=4)
)


@pytest.fixture(scope="module")
def task():
    return SequenceTask(TRAIN, VALID, hidden=6, seed=3)


def test_gradients_are_those_of_the_joint_minibatch_at_each_ones_weights(task):
    weights = task.initial() + 0.1 * torch.randn(3, task.size)
    gradients = task.gradients(weights, [0, 1, 2], 2 * CHUNK)
    assert gradients.shape == (3, task.size)
    alone = [task.gradients(w[None], [n], 2 * CHUNK)[0] for n, w in enumerate(weights)]
    assert torch.equal(gradients, torch.stack(alone))
    same = task.gradients(task.initial()[None], [0, 1, 2], 2 * CHUNK).mean(dim=0)
    joint = task.gradients(task.initial()[None], [0], 6 * CHUNK)[0]
    assert torch.allclose(same, joint, atol=1e-6)


def test_a_gradient_is_the_slope_of_the_loss(task):
    direction = torch.randn(task.size, generator=torch.Generator().manual_seed(0))
    slope = task.gradients(task.initial()[None], [0], 4 * CHUNK)[0] @ direction

    first_frames = CHUNK * task.sample_indices(0, 4)[:, None]
    frames = (first_frames + torch.arange(CHUNK)).flatten()
    minibatch = Frames(TRAIN.inputs[frames], TRAIN.targets[frames])
    judge = SequenceTask(TRAIN, minibatch, hidden=6)
    ahead, behind = (
        judge.evaluate(task.initial() + sign * 1e-2 * direction)[0] for sign in (1, -1)
    )
    assert (ahead - behind) / 2e-2 == pytest.approx(float(slope), rel=0.02)


def test_an_epoch_has_every_chunk_once_in_a_new_order(task):
    assert task.frames == 64 * CHUNK  # of 1030 frames
    orders = [[int(n) for n in task.sample_indices(first, 64)] for first in (0, 64)]
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert orders[0] != orders[1]
    assert task.sample_indices(60, 8).tolist() == orders[0][60:] + orders[1][:4]
    assert task.reseeded(4).sample_indices(0, 64).tolist() != orders[0]


def test_context_helps_to_classify_speech_like_frames():
    train, _ = speech_like_frames(SpeechLikeConfig(frames=8192, phones=6, dimension=4))

    def share(x):
        """Share of the classes' variance that a linear function of x explains."""
        x = torch.cat([x, torch.ones(len(x), 1)], dim=1).double()
        y = torch.nn.functional.one_hot(train.targets).double()
        fitted = x @ torch.linalg.lstsq(x, y).solution
        return 1 - float((y - fitted).square().sum() / (y - y.mean(dim=0)).square().sum())

    near = torch.cat([train.inputs.roll(by, 0) for by in (1, 0, -1, -2)], dim=1)
    assert share(near) > share(train.inputs) + 0.03
