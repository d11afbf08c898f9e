"""Learning rates and weight decay."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from toolkit.train.config import TrainerConfig
from toolkit.train.optimizer import (
    exponential_rate,
    learning_rate_schedule,
    load_optimizer,
    make_optimizer,
)


def test_decay_is_exponential_from_initial_to_final():
    rates = [exponential_rate(step, 11, 1e-2, 1e-4) for step in range(11)]
    assert rates[0] == pytest.approx(1e-2)
    assert rates[-1] == pytest.approx(1e-4)
    quotients = [b / a for a, b in pairwise(rates)]
    assert quotients == pytest.approx([0.01**0.1] * 10)


def test_warmup_climbs_in_equal_parts_to_the_initial_rate():
    rates = [exponential_rate(step, 20, 1.0, 0.1, warmup=4) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[4:]))


def test_a_single_step_has_the_initial_rate():
    assert exponential_rate(0, 1, 1.0, 0.1) == 1.0


def rates_of(schedule, steps=(12, 9), **changes):
    config = TrainerConfig(initial_rate=1.0, final_rate=0.1, schedule=schedule, **changes)
    rate = learning_rate_schedule(config)
    return [rate(epoch, step, steps) for epoch in range(len(steps)) for step in range(steps[epoch])]


@pytest.mark.parametrize("schedule", ["exponential", "cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_a_schedule_goes_over_all_epochs_from_the_initial_rate_to_the_final_one(schedule, warmup):
    rates = rates_of(schedule, warmup_steps=warmup)
    assert rates[:warmup] == pytest.approx([(n + 1) / (warmup + 1) for n in range(warmup)])
    assert rates[warmup] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[warmup:]))


def test_a_cosine_reaches_the_mean_rate_in_the_middle():
    rates = rates_of("cosine")
    assert rates[10] == pytest.approx(0.55)
    assert rates[5] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)


def test_noam_falls_with_the_inverse_square_root_of_the_step():
    rates = rates_of("noam", warmup_steps=3)
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[15] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="needs `warmup_steps`"):
        TrainerConfig(schedule="noam")
    with pytest.raises(ValueError, match="`schedule` is 'step'"):
        TrainerConfig(schedule="step")


def test_adamw_decays_only_matrices():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    initial = {name: x.detach().clone() for name, x in model.named_parameters()}
    config = TrainerConfig(optimizer="adamw", weight_decay=0.1, initial_rate=0.5, final_rate=0.5)
    optimizer = make_optimizer(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        share = 0.05 if name == "0.weight" else 0.0
        torch.testing.assert_close(parameter.detach(), initial[name] * (1 - share))
    restored = make_optimizer(model, config)
    load_optimizer(restored, optimizer.state_dict())
    assert restored.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adamw", "weight_decay": -0.1}])
def test_weight_decay_that_no_optimizer_applies_is_refused(changes):
    with pytest.raises(ValueError, match="`weight_decay` is"):
        TrainerConfig(**{"weight_decay": 0.1, **changes})
