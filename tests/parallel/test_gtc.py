"""The mathematics of threshold compression over several workers."""

from types import SimpleNamespace

import pytest
import torch

from toolkit.parallel.config import GtcConfig, ParallelConfig
from toolkit.parallel.gtc import Gtc, GtcState


def gradients(workers, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-64, 65, (workers, size), generator=generator) / 64


def test_threshold_0_equals_an_all_reduce():
    states = [GtcState(40, GtcConfig(threshold=0.0)) for _ in range(3)]
    for step in range(4):
        parts = gradients(3, 40, step)
        messages = [state.encode(part) for state, part in zip(states, parts, strict=True)]
        for state in states:
            total, density = state.decode(messages)
            assert torch.equal(total, parts.sum(dim=0))
            assert density == 1


def test_sent_values_and_residuals_sum_to_all_gradients_exactly():
    states = [GtcState(500, GtcConfig(threshold=1.5)) for _ in range(4)]
    whole, sent = torch.zeros(500), torch.zeros(500)
    shares = []
    for step in range(20):
        parts = gradients(4, 500, step)
        whole += parts.sum(dim=0)
        messages = [state.encode(part) for state, part in zip(states, parts, strict=True)]
        totals = [state.decode(messages)[0] for state in states]
        for total in totals:
            assert torch.equal(total, totals[0])
        assert set((totals[0] / 1.5).tolist()) <= set(range(-4, 5))
        sent += totals[0]
        shares.append(float((totals[0] != 0).float().mean()))
        assert torch.equal(sent + sum(state.residual for state in states), whole)
    assert 0 < max(shares) < 1


@pytest.mark.parametrize("begin", [1e-3, 5.0])
def test_an_adapted_threshold_reaches_its_density(begin):
    states = [GtcState(20_000, GtcConfig(threshold=begin, density=0.01)) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    densities = []
    for _ in range(300):
        messages = [s.encode(torch.randn(20_000, generator=generator)) for s in states]
        results = [state.decode(messages) for state in states]
        densities.append(results[0][1])
        assert states[0].threshold == states[1].threshold
    assert sum(densities[-100:]) / 100 == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("changes", [{"threshold": -1.0}, {"grad_scale": "max"}, {"density": 1.0}])
def test_impossible_configurations_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        GtcConfig(**changes)


@pytest.mark.parametrize(("rank", "optimizer"), [(0, "Adam"), (1, "Adam"), (0, "SGD")])
def test_the_first_worker_warns_of_adam(rank, optimizer, caplog):
    workers = SimpleNamespace(
        rank=rank, world_size=2, barrier=lambda: None, broadcast=lambda weights: None
    )
    model = torch.nn.Linear(3, 2)
    strategy = Gtc(ParallelConfig("gtc"), workers)
    strategy.start(model, getattr(torch.optim, optimizer)(model.parameters(), lr=0.1))
    warned = ["set parallel.method=ssgd, or optimizer=sgd" in text for text in caplog.messages]
    assert warned == [True] * (rank == 0 and optimizer == "Adam")
