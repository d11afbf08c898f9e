import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from toolkit.config.settings import result_parameters
from toolkit.train.checkpoints import changed_settings
from toolkit.train.config import CorpusTrainerConfig, CtcTrainingConfig, TrainerConfig
from toolkit.train.optimizer import exponential_rate, load_optimizer, make_optimizer

PROJECT = Path(__file__).resolve().parents[2]
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


def test_changed_settings_are_named():
    default = result_parameters(CorpusTrainerConfig())
    changed = result_parameters(CorpusTrainerConfig(valid_seed=3))
    assert changed_settings(default, default) == []
    assert (
        changed_settings(default, changed) == changed_settings(changed, default) == ["valid_seed"]
    )
    assert changed_settings({**default, "weights": "a"}, default) == ["weights"]
    assert changed_settings(default, {**default, "model": []}) == ["model"]


def test_the_rate_can_be_constant():
    rates = {exponential_rate(step, 7, 0.3, 0.3) for step in range(7)}
    assert rates == {0.3}


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_momentum_that_forgets_nothing_is_refused(momentum):
    with pytest.raises(
        ValueError, match=r"`momentum` is .* but must be (a number|at least 0 and below 1)"
    ):
        TrainerConfig(optimizer="sgd", momentum=momentum)


@pytest.mark.parametrize("name", ["adam", "sgd", "adadelta"])
def test_a_step_on_a_gpu_is_one_kernel_where_torch_has_it(name, monkeypatch):
    options = {}
    kind = {"adam": "Adam", "sgd": "SGD", "adadelta": "Adadelta"}[name]
    has_it = "fused" in inspect.signature(getattr(torch.optim, kind)).parameters
    has_it = has_it and torch.__version__ >= "2"

    class Made(torch.optim.Optimizer):
        __signature__ = inspect.signature(getattr(torch.optim, kind))

        def __init__(self, parameters, lr, fused=False, **constants):
            options.update(fused=fused)

    monkeypatch.setattr(torch.optim, kind, Made)
    model = torch.nn.Linear(1, 1)
    make_optimizer(model, TrainerConfig(optimizer=name))
    assert not options["fused"]
    on_gpu = SimpleNamespace(parameters=lambda: [SimpleNamespace(is_cuda=True)])
    make_optimizer(on_gpu, TrainerConfig(optimizer=name))
    assert options["fused"] == has_it


def test_an_optimizer_of_a_gpu_continues_on_the_cpu():
    def trained(steps, state=None):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = make_optimizer(model, TrainerConfig())
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.full((4, 3), float(step))).square().sum().backward()
            optimizer.step()
        if state is not None:
            load_optimizer(optimizer, state)
        return optimizer

    saved = trained(3).state_dict()
    saved["param_groups"][0] |= {"fused": True, "foreach": True, "betas": (0.8, 0.9)}
    loaded = trained(0, saved)
    group = loaded.param_groups[0]
    assert not group["fused"]
    assert group["foreach"] is None
    assert group["betas"] == (0.8, 0.9)
    for state, expected in zip(
        loaded.state_dict()["state"].values(), saved["state"].values(), strict=True
    ):
        assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert saved["param_groups"][0]["fused"]  # what was read is left as it is


WITHOUT_COMPILER = """
import sys
import torch
from toolkit.train.config import TrainerConfig
from toolkit.train.optimizer import load_optimizer, make_optimizer

model = torch.nn.Linear(3, 2)
for name in ("adam", "sgd", "adadelta"):
    optimizer = make_optimizer(model, TrainerConfig(optimizer=name))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        load_optimizer(optimizer, optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""


def test_training_does_not_load_the_compiler():
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["adam", "sgd", "adadelta"])
def test_steps_are_those_of_torch(name):
    config = TrainerConfig(optimizer=name, initial_rate=0.1, final_rate=0.1, momentum=0.9)
    models, calls = [torch.nn.Linear(3, 2) for _ in range(2)], []
    models[1].load_state_dict(models[0].state_dict())
    toolkit_optimizer = make_optimizer(models[0], config)
    constants = {"momentum": 0.9} if name == "sgd" else {}
    torch_optimizer = type(toolkit_optimizer).__base__(models[1].parameters(), lr=0.1, **constants)
    hooks = hasattr(toolkit_optimizer, "register_step_post_hook")  # torch 1.13 has none
    if hooks:
        toolkit_optimizer.register_step_post_hook(lambda *_: calls.append("hook"))
    for step in range(4):
        for model, optimizer in zip(models, (toolkit_optimizer, torch_optimizer), strict=True):

            def loss(model=model, optimizer=optimizer, step=step):
                optimizer.zero_grad()
                value = model(torch.full((4, 3), 1.0 + step)).square().sum()
                value.backward()
                return value

            optimizer.step(loss)
        if step == 1:  # each goes on from the other's state
            states = toolkit_optimizer.state_dict(), torch_optimizer.state_dict()
            toolkit_optimizer.load_state_dict(states[1])
            torch_optimizer.load_state_dict(states[0])
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert len(calls) == 4 * hooks
