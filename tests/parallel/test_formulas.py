"""Methods in real processes against independent loops in numpy, step for step.

40 steps with uneven batches, momentum and clipping. Where averagings happen in the background, the
test lets each complete before the next step, and workers of a parameter server take their steps in
turn, so that there is one order to compare with.
"""

import time

import numpy as np
import pytest
import torch
from torch import nn

from tests.parallel.test_asynchronous import run_workers, strategy_of
from toolkit.parallel.config import (
    AdpsgdConfig,
    AsgdConfig,
    BmufConfig,
    GtcConfig,
    ParallelConfig,
)
from toolkit.parallel.gtc import FixedMessages

STEPS, WORKERS, RATE, MOMENTUM, CLIP = 40, 4, 0.05, 0.9, 0.2
INPUTS, OUTPUTS = 5, 3


def drawn():
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(STEPS, WORKERS, 6, INPUTS))
    outputs = inputs @ (0.3 * rng.normal(size=(INPUTS, OUTPUTS)))
    rows = rng.integers(1, 7, size=(STEPS, WORKERS))  # uneven batches
    return inputs, outputs + 0.1 * rng.normal(size=outputs.shape), rows


DATA = drawn()


def gradient(weights, *places):
    """Gradient of the mean loss over the rows of several batches at [OUTPUTS, INPUTS]."""
    inputs, outputs, rows = DATA
    x = np.concatenate([inputs[place][: rows[place]] for place in places])
    y = np.concatenate([outputs[place][: rows[place]] for place in places])
    return 2 * (x @ weights.T - y).T @ x / len(x)


def length(step, worker):
    return int(DATA[2][step, worker])


class Momentum:
    """SGD with momentum on clipped gradients."""

    def __init__(self):
        self.velocity = 0.0

    def step(self, weights, gradient):
        norm = np.linalg.norm(gradient)
        self.velocity = MOMENTUM * self.velocity + gradient * min(1.0, CLIP / (norm + 1e-6))
        return weights - RATE * self.velocity


def average(models, a, b):
    models[a] = models[b] = (models[a] + models[b]) / 2


def adpsgd():
    """Neighbours on the ring of four average in turn: 0 with 1 and 2 with 3, 0 with 3 and 2 with 1.

    An update computed at older weights is added to what an averaging has made of them.
    """
    models = [np.zeros((OUTPUTS, INPUTS)) for _ in range(WORKERS)]
    pulled, optimizers = list(models), [Momentum() for _ in models]
    for step in range(STEPS):
        for worker in range(WORKERS):
            updated = optimizers[worker].step(
                pulled[worker], gradient(pulled[worker], (step, worker))
            )
            models[worker] = models[worker] + updated - pulled[worker]
        pulled = list(models)
        yield pulled
        for asking in (0, 2):
            average(models, asking, (asking + (1 if step % 2 == 0 else -1)) % WORKERS)


def hadpsgd():
    """Two nodes, of workers 0 and 1 and of 2 and 3; each has the gradient of its joint batch."""
    models = [np.zeros((OUTPUTS, INPUTS)) for _ in range(2)]
    pulled, optimizers = list(models), [Momentum() for _ in models]
    for step in range(STEPS):
        for node in range(2):
            joint_gradient = gradient(pulled[node], (step, 2 * node), (step, 2 * node + 1))
            models[node] = (
                models[node] + optimizers[node].step(pulled[node], joint_gradient) - pulled[node]
            )
        pulled = list(models)
        yield [pulled[worker // 2] for worker in range(WORKERS)]
        average(models, 0, 1)


def delayed():
    """The mean of the models before the step, plus the worker's own update."""
    models = [np.zeros((OUTPUTS, INPUTS)) for _ in range(WORKERS)]
    optimizers = [Momentum() for _ in models]
    for step in range(STEPS):
        mean = sum(models) / WORKERS
        for worker, weights in enumerate(list(models)):
            updated = optimizers[worker].step(weights, gradient(weights, (step, worker)))
            models[worker] = mean + updated - weights
        yield list(models)


def ssgd():
    weights, optimizer = np.zeros((OUTPUTS, INPUTS)), Momentum()
    for step in range(STEPS):
        joint_gradient = gradient(weights, *((step, worker) for worker in range(WORKERS)))
        weights = optimizer.step(weights, joint_gradient)
        yield [weights] * WORKERS


def scpsgd():
    weights, optimizers = np.zeros((OUTPUTS, INPUTS)), [Momentum() for _ in range(WORKERS)]
    for step in range(STEPS):
        updated = [
            optimizer.step(weights, gradient(weights, (step, worker)))
            for worker, optimizer in enumerate(optimizers)
        ]
        weights = sum(updated) / WORKERS
        yield [weights] * WORKERS


def gtc(tau, summed):
    """All send +-tau for values beyond tau; the step has the scale of mean gradients."""

    def steps():
        weights, optimizer = np.zeros((OUTPUTS, INPUTS)), Momentum()
        residuals = np.zeros((WORKERS, OUTPUTS, INPUTS))
        frames, shares = 0, []
        for step in range(STEPS):
            for worker in range(WORKERS):
                factor = length(step, worker) if summed else 1
                residuals[worker] += factor * gradient(weights, (step, worker))
            sent = tau * np.sign(residuals) * (np.abs(residuals) > tau)
            residuals -= sent
            shares.append((sent != 0).mean())
            frames += sum(length(step, worker) for worker in range(WORKERS))
            divisor = frames / (step + 1) if summed else WORKERS
            weights = optimizer.step(weights, sent.sum(axis=0) / divisor)
            yield [weights] * WORKERS
        assert 0.1 < np.mean(shares) < 0.9

    return steps


def bmuf(block, keep_ahead):
    """Equations 2 to 6 of the paper with eta = 3/4 and zeta = 1; Nesterov's step in either form."""

    def steps():
        eta, optimizers = 1 - 1 / WORKERS, [Momentum() for _ in range(WORKERS)]
        begin = model = delta = np.zeros((OUTPUTS, INPUTS))
        models = [begin] * WORKERS
        for step in range(STEPS):
            models = [
                optimizer.step(weights, gradient(weights, (step, worker)))
                for worker, (weights, optimizer) in enumerate(zip(models, optimizers, strict=True))
            ]
            if (step + 1) % block == 0:
                delta = eta * delta + sum(models) / WORKERS - begin
                model = (begin if keep_ahead else model) + delta
                begin = model + eta * delta
                models = [begin] * WORKERS
            yield models

    return steps


def asgd(parts):
    """Workers in turn push a gradient at the weights that they pulled one round before."""

    def steps():
        server_weights, optimizer = np.zeros((OUTPUTS, INPUTS)), Momentum()
        pulled, pushed = [server_weights] * WORKERS, []
        for step in range(STEPS):
            for worker in range(WORKERS):
                pushed.append(gradient(pulled[worker], (step, worker)))
                if len(pushed) == parts:
                    server_weights = optimizer.step(server_weights, sum(pushed) / parts)
                    pushed = []
                pulled[worker] = server_weights
            yield list(pulled)

    return steps


def turns(config, rank):
    """In which turn a worker ends its step, and the number of turns.

    Learners that answer add their updates before those that request an averaging for theirs.
    """
    if config.method == "asgd":
        return rank, WORKERS
    if config.method == "adpsgd" and config.adpsgd.pattern == "fixed":
        return 1 - rank % 2, 2
    if config.method == "hadpsgd":
        return 1 - rank // 2, 2
    return 0, 1


def follow(config, rank, strategy=None):
    """Train as the loop does; return the weights after every step."""
    strategy = strategy or strategy_of(config)
    model = nn.Linear(INPUTS, OUTPUTS, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    strategy.start(model, optimizer)
    inputs, outputs, rows = DATA
    turn_of_rank, num_turns = turns(config, rank)
    weights = []
    for step in range(STEPS):
        x = torch.from_numpy(inputs[step, rank][: rows[step, rank]]).float()
        y = torch.from_numpy(outputs[step, rank][: rows[step, rank]]).float()
        optimizer.zero_grad(set_to_none=True)
        strategy.backward((model(x) - y).square().sum(), torch.tensor(float(len(x))))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        for turn in range(num_turns):
            if num_turns > 1:
                strategy.barrier()
            if turn == turn_of_rank:
                strategy.after_step()
        weights.append(model.weight.detach().tolist())
        wait_for_averaging(strategy, rank)
    strategy.end_epoch()
    strategy.stop()
    return weights


def wait_for_averaging(strategy, rank):
    """Wait until a rank whose model is averaged with a neighbour's has averaged in every step."""
    end = time.monotonic() + 60
    while "averagings" in strategy.report() and rank in strategy.learners():
        if round(strategy.report()["averagings"] * strategy.steps) == strategy.steps:
            break
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ParallelConfig("ssgd"), ssgd),
        (ParallelConfig("scpsgd"), scpsgd),
        (ParallelConfig("adpsgd"), adpsgd),
        (ParallelConfig("adpsgd", adpsgd=AdpsgdConfig(pattern="delayed")), delayed),
        (ParallelConfig("hadpsgd", adpsgd=AdpsgdConfig(workers_per_node=2)), hadpsgd),
        (ParallelConfig("gtc", gtc=GtcConfig(threshold=2.0)), gtc(2.0, summed=True)),
        (
            ParallelConfig("gtc", gtc=GtcConfig(threshold=0.2, grad_scale="mean")),
            gtc(0.2, summed=False),
        ),
        (ParallelConfig("bmuf", bmuf=BmufConfig(block=7)), bmuf(7, keep_ahead=False)),
        (ParallelConfig("bmuf", bmuf=BmufConfig(block=5, nbm="seed")), bmuf(5, keep_ahead=True)),
        (ParallelConfig("asgd", asgd=AsgdConfig(max_gradient_norm=CLIP)), asgd(WORKERS)),
        (
            ParallelConfig("asgd", asgd=AsgdConfig(gradients_per_update=3, max_gradient_norm=CLIP)),
            asgd(3),
        ),
    ],
    ids=[
        *("ssgd", "scpsgd", "adpsgd", "delayed", "hadpsgd"),
        *("gtc-sum", "gtc-mean", "bmuf", "bmuf-seed", "asgd", "asgd-3"),
    ],
)
def test_weights_after_every_step_equal_the_formula(config, expected):
    weights = np.array(run_workers(WORKERS, lambda rank: follow(config, rank)))
    expected_weights = np.array(list(expected())).swapaxes(0, 1)
    assert np.abs(expected_weights[:, -1]).max() > 0.2
    assert np.abs(weights - expected_weights).max() < 1e-6


@pytest.mark.parametrize("tau", [0.2, 0.0])
def test_messages_of_a_fixed_size_give_the_weights_of_the_formula(tau):
    """Runs the exchange for GPUs on the CPU."""
    config = ParallelConfig("gtc", gtc=GtcConfig(threshold=tau, grad_scale="mean"))

    def follow_rank(rank):
        strategy = strategy_of(config)
        strategy.make_exchange = lambda: FixedMessages(strategy)
        return follow(config, rank, strategy)

    weights = np.array(run_workers(WORKERS, follow_rank))
    expected_weights = np.array(
        list((gtc(tau, summed=False) if tau else mean_of_means)())
    ).swapaxes(0, 1)
    assert np.abs(expected_weights[:, -1]).max() > 0.2
    assert np.abs(weights - expected_weights).max() < 1e-6


def mean_of_means():
    """Threshold 0 with mean gradients: workers count equally, whatever their batches' lengths."""
    weights, optimizer = np.zeros((OUTPUTS, INPUTS)), Momentum()
    for step in range(STEPS):
        gradients = [gradient(weights, (step, worker)) for worker in range(WORKERS)]
        weights = optimizer.step(weights, sum(gradients) / WORKERS)
        yield [weights] * WORKERS
