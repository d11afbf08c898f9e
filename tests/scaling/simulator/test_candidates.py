"""Later methods in the simulator, compared with their limiting cases."""

from dataclasses import replace

import pytest
import torch

from tests.scaling.simulator.test_simulate import PLAIN, task  # noqa: F401
from toolkit.parallel.bmuf import BmufState
from toolkit.parallel.config import GtcConfig
from toolkit.scaling.simulator import methods
from toolkit.scaling.simulator.methods import simulate
from toolkit.scaling.simulator.run import Run


def run(task, scenario=PLAIN, workers=4):  # noqa: F811
    return Run("x", workers, scenario, task)


def test_exact_rounding_is_plain_ssgd_with_fewer_bytes(task):  # noqa: F811
    rounded = methods.ssgd_rounded(run(task), lambda x: x.clone(), 0.25)
    exact = simulate("ssgd", 4, PLAIN, task)
    assert rounded.loss == pytest.approx(exact.loss, abs=1e-6)
    assert rounded.sent == pytest.approx(exact.sent / 4)


@pytest.mark.parametrize(
    ("rounding", "within"), [(methods.to_float16, 1e-3), (methods.to_8_bits, 1 / 127)]
)
def test_rounding_is_as_fine_as_its_bits(rounding, within):
    values = torch.randn(3, 1000)
    error = (rounding(values) - values).abs().amax(dim=1) / values.abs().amax(dim=1)
    assert 0 < error.max() <= within


def test_the_remainder_of_rounding_is_sent_later(task):  # noqa: F811
    """Coarse rounding without a remainder would lose the small gradients."""
    coarse = lambda x: torch.where(x.abs() > 0.05, x.sign() * 0.05, torch.zeros_like(x))  # noqa: E731
    rounded = methods.ssgd_rounded(run(task), coarse, 1.0)
    exact = simulate("ssgd", 4, PLAIN, task)
    untrained = task.evaluate(task.initial())[0]
    assert rounded.loss < untrained - 0.5 * (untrained - exact.loss)


def test_post_local_is_ssgd_or_bmuf_at_its_limits(task):  # noqa: F811
    assert methods.post_local(run(task), 0.0).loss == simulate("bmuf", 4, PLAIN, task).loss
    whole = methods.post_local(run(task), 1.0)
    assert whole.loss == pytest.approx(simulate("ssgd", 4, PLAIN, task).loss, abs=1e-6)


def test_slow_momentum_adds_the_last_move_to_the_mean():
    state = BmufState(torch.zeros(1), 4, methods.slow_momentum(4, 2, momentum=0.5))
    state.step(torch.tensor([1.0]))
    assert state.global_weights.item() == pytest.approx(1.0)  # the mean, as plain averaging
    state.step(state.broadcast_weights + 1.0)
    assert state.global_weights.item() == pytest.approx(1.0 + 0.5 + 1.0)


def test_corrected_momentum_sends_the_momentum_and_resets_it_where_sent(task):  # noqa: F811
    free = replace(PLAIN, gtc=GtcConfig(threshold=0.0, grad_scale="mean"), minibatches=120)
    state = methods.CorrectedState(2, GtcConfig(threshold=1.0))
    sent = []
    for _ in range(3):
        message = state.encode(torch.tensor([0.6, 0.1]))
        sent.append(len(message) > 1)
    assert sent == [False, True, True]
    # 0.6, 0.6 + 1.14 - 1 = 0.74 and no momentum then, 0.74 + 0.6 - 1; with it 0.74 + 1.626 - 1
    assert state.residual.tolist() == pytest.approx([0.34, 0.1 + 0.19 + 0.271])
    outcome = methods.compressed(run(task, free, 1), methods.CorrectedState, "sgd")
    assert outcome.accuracy > task.evaluate(task.initial())[1]
