import pytest
import torch

from toolkit.train.config import TrainerConfig, make_optimizer
from toolkit.train.ctc.training import CtcTrainingConfig
from toolkit.train.schedule import exponential_rate

GRADIENTS = [0.5, -2.0, 0.1, 0.1, 30.0]


def adadelta(start, rate, rho, epsilon):
    """Zeiler's algorithm 1 with a rate, as TensorFlow applies it."""
    x, squares, updates = start, 0.0, 0.0
    for g in GRADIENTS:
        squares = rho * squares + (1 - rho) * g * g
        update = (updates + epsilon) ** 0.5 / (squares + epsilon) ** 0.5 * g
        updates = rho * updates + (1 - rho) * update * update
        x -= rate * update
    return x


@pytest.mark.parametrize(
    ("name", "rate", "rho", "epsilon"),
    [("adadelta", 1.0, 0.9, 1e-6), ("adadelta_tensorflow", 0.001, 0.95, 1e-8)],
)
def test_adadelta_has_the_constants_of_its_library(name, rate, rho, epsilon):
    assert CtcTrainingConfig(optimizer=name).rates() == (rate, rate)
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 2.0)
    config = TrainerConfig(optimizer=name, initial_rate=None, final_rate=None)
    optimizer = make_optimizer(model, config)
    for gradient in GRADIENTS:
        model.weight.grad = torch.tensor([[gradient]], dtype=torch.float64)
        optimizer.step()
    assert 2 - model.weight.item() == pytest.approx(2 - adadelta(2.0, rate, rho, epsilon))


def test_the_rate_can_be_constant():
    rates = {exponential_rate(step, 7, 0.3, 0.3) for step in range(7)}
    assert rates == {0.3}
