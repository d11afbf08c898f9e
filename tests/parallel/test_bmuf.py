"""Block momentum against averaging, closed forms and the equations written out."""

import pytest
import torch

from toolkit.parallel.bmuf import BmufState
from toolkit.parallel.config import BmufConfig

START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
DRIFT = torch.tensor([0.25, 1.0, -3.0], dtype=torch.float64)


def test_no_momentum_and_rate_1_over_n_is_model_averaging():
    state = BmufState(START, 4, BmufConfig(momentum=0.0, rate=0.25))
    assert state.block_rate(0) == 1
    for block in range(5):
        mean = START * (block + 2)
        torch.testing.assert_close(state.step(mean), mean)
        torch.testing.assert_close(state.global_weights, mean)


@pytest.mark.parametrize("nbm", ["seed", "nesterov"])
def test_one_worker_is_plain_training(nbm):
    state = BmufState(START, 1, BmufConfig(nbm=nbm))
    assert (state.block_momentum(0), state.block_rate(0)) == (0, 1)
    for block in range(4):
        torch.testing.assert_close(state.step(START - block), START - block)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("rate", [1.0, 1.5])
@pytest.mark.parametrize("nbm", ["seed", "nesterov"])
def test_gain_under_a_constant_drift(ranks, rate, nbm):
    """Workers that move by d per block move the global model by N * C * d, or (1 + eta) times it.

    So C = 1 and eta = 1 - 1/N are CNTK's rule zeta = 1, and `seed` gains 2N - 1.
    """
    state = BmufState(START, ranks, BmufConfig(rate=rate, nbm=nbm))
    assert state.block_rate(0) == pytest.approx(rate)
    previous_weights = state.global_weights
    for _ in range(60 * ranks):
        previous_weights = state.global_weights
        state.step(state.broadcast_weights + DRIFT)
    gain = ranks * rate * ((2 - 1 / ranks) if nbm == "seed" else 1)
    torch.testing.assert_close(state.global_weights - previous_weights, gain * DRIFT)


def test_the_equations_of_the_paper_written_out():
    """Equations 2 to 6, with W separate from W_g."""
    means = [START + DRIFT, START - 2 * DRIFT, START * 0.3, DRIFT]
    eta, zeta = 0.75, 1.2 * 4 * 0.25
    seed = BmufState(START, 4, BmufConfig(rate=1.2, nbm="seed"))
    true = BmufState(START, 4, BmufConfig(rate=1.2, nbm="nesterov"))
    shifted, delta = START, torch.zeros(3, dtype=torch.float64)
    apart, ahead, delta_true = START, START, torch.zeros(3, dtype=torch.float64)
    for mean in means:
        delta = eta * delta + zeta * (mean - shifted)
        shifted = shifted + delta + eta * delta
        torch.testing.assert_close(seed.step(mean), shifted)
        assert torch.equal(seed.global_weights, seed.broadcast_weights)
        previous = delta_true
        delta_true = eta * delta_true + zeta * (mean - ahead)
        apart = apart + delta_true
        # the same as moving the shifted model: Wg - eta * D(t-1) + (1 + eta) * D(t)
        moved = ahead - eta * previous + (1 + eta) * delta_true
        ahead = apart + eta * delta_true
        torch.testing.assert_close(moved, ahead)
        torch.testing.assert_close(true.step(mean), ahead)
        torch.testing.assert_close(true.global_weights, apart)


def test_nesterov_damps_a_quadratic_better_than_the_paper_s_step():
    """Each worker goes a tenth of the way to the optimum, 0, in a block; N = 64."""
    left = {}
    for nbm in ("seed", "nesterov"):
        state = BmufState(torch.ones(1, dtype=torch.float64), 64, BmufConfig(nbm=nbm))
        for _ in range(3000):
            state.step(0.9 * state.broadcast_weights)
        left[nbm] = abs(float(state.global_weights))
    assert left["nesterov"] < 1e-20 < left["seed"] < 1e-3


def test_warm_up_blocks_are_averaged():
    state = BmufState(START, 8, BmufConfig(warmup=2))
    for block in range(2):
        mean = START + block
        state.step(mean)
        torch.testing.assert_close(state.global_weights, mean)
    model, momentum = state.global_weights, state.momentum
    torch.testing.assert_close(state.broadcast_weights, model + 0.875 * momentum)
    state.step(state.broadcast_weights)  # no move of the workers: only momentum
    torch.testing.assert_close(state.global_weights, model + 0.875 * momentum)


def test_a_restored_state_continues_like_the_original():
    a = BmufState(START, 4, BmufConfig())
    a.step(START + DRIFT)
    b = BmufState(torch.zeros(3, dtype=torch.float64), 4, BmufConfig())
    b.load_state_dict(a.state_dict())
    for mean in (DRIFT, START):
        assert torch.equal(a.step(mean), b.step(mean))
        assert torch.equal(a.global_weights, b.global_weights)


@pytest.mark.parametrize(
    "changes", [{"block": 0}, {"momentum": 1.0}, {"rate": 0.0}, {"warmup": -1}, {"nbm": "no"}]
)
def test_impossible_configurations_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        BmufConfig(**changes)
