"""The choice of the precision, and loss scaling in float16."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from toolkit import environment
from toolkit.parallel.config import ParallelConfig
from toolkit.train import precision as module
from toolkit.train.config import TrainerConfig
from toolkit.train.errors import TrainingError
from toolkit.train.precision import Precision

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_auto_goes_by_the_capability_and_says_so(monkeypatch, caplog, capability, expected):
    """The paper's GTX 1080 Ti, V100 and RTX 2070, and newer ones."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    chosen = Precision(TrainerConfig(amp="auto"), GPU, 1)
    assert chosen.name == expected
    with caplog.at_level("INFO"), chosen.activate():
        pass
    assert f"computing in {expected}: the GPU has capability {capability[0]}." in caplog.text


def test_auto_on_a_processor(monkeypatch):
    for has_it, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(environment, "has_bf16", lambda device, has_it=has_it: has_it)
        assert Precision(TrainerConfig(amp="auto"), CPU, 1).name == expected


def test_parallel_methods_get_unscaled_gradients(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    config = TrainerConfig(amp="fp16", parallel=ParallelConfig("gtc"))
    with pytest.raises(TrainingError, match="use `method=ssgd`"):
        Precision(config, GPU, 2)
    assert Precision(config, GPU, 1).name == "fp16"
    # Where a process skips a step that others take, these wait for it.
    with pytest.raises(TrainingError, match="use `method=ssgd`"):
        Precision(replace(config, parallel=ParallelConfig("scpsgd")), GPU, 2)
    assert Precision(replace(config, amp="auto"), GPU, 2).name == "fp32"
    assert Precision(replace(config, parallel=ParallelConfig("ssgd")), GPU, 2).name == "fp16"


def test_a_factor_halves_at_an_overflow_and_doubles_after_many_steps(monkeypatch):
    monkeypatch.setattr(module, "STEPS_BETWEEN_RISES", 3)
    precision = Precision(TrainerConfig(amp="fp16"), GPU, 1)
    model = nn.Linear(1, 1, bias=False)

    def step(gradient):
        model.weight.grad = torch.full((1, 1), gradient)
        return precision.unscale_and_clip(model, 1e9)

    assert precision.scale_loss(torch.ones(())) == 2**16
    norm, usable = step(2.0**17)
    assert (norm.item(), usable) == (2.0, True)
    assert step(float("inf"))[1] is False
    assert precision.state_dict() == {"factor": 2.0**15, "since": 0}
    assert [step(1.0)[1] for _ in range(3)] == [True] * 3
    assert precision.state_dict() == {"factor": 2.0**16, "since": 0}
    restored = Precision(TrainerConfig(amp="fp16"), GPU, 1)
    restored.load_state_dict({"factor": 2.0, "since": 1})
    assert restored.scale_loss(torch.ones(())) == 2
    for _ in range(16):
        assert step(float("nan"))[1] is False
    assert precision.state_dict()["factor"] == 1
    assert step(float("nan"))[1] is True  # for the loop to find


@pytest.mark.parametrize("enabled", [True, False])
def test_tf32_is_switched_only_for_the_training(enabled):
    def flags():
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    flags_before = flags()
    with Precision(TrainerConfig(tf32=enabled), GPU, 1).activate():
        assert flags() == (enabled, enabled)
    assert flags() == flags_before
    with Precision(TrainerConfig(), GPU, 1).activate():
        assert flags() == flags_before
