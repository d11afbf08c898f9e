"""Optimizers, and learning rates as pure functions of the step."""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from toolkit.train.config import TrainerConfig

ADADELTA = {
    "adadelta": {"rho": 0.9, "eps": 1e-6},
    "adadelta_tensorflow": {"rho": 0.95, "eps": 1e-8},
}
"""AdaDelta's decay and epsilon: torch's defaults and TensorFlow's."""
Schedule = Callable[[int, int, Sequence[int]], float]
"""Called as schedule(epoch from 0, step in the epoch from 0, steps of every epoch)."""


def make_optimizer(model: nn.Module, config: TrainerConfig) -> Optimizer:
    """Construct the configured optimizer; `Trainer` sets its rate before every step.

    On a GPU, a step of Adam, AdamW or SGD is one kernel (torch's `fused`), if torch offers it.
    """
    rate, _ = config.rates()
    parameters: Any = model.parameters()
    constants: dict[str, Any] = {}
    if config.optimizer == "adam":
        kind: type[Optimizer] = torch.optim.Adam
    elif config.optimizer == "adamw":
        kind = torch.optim.AdamW
        # Biases and the scales of normalisations have one dimension; they do not decay.
        everything = list(parameters)
        parameters = [
            {"params": [p for p in everything if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in everything if p.dim() <= 1], "weight_decay": 0.0},
        ]
    elif config.optimizer in ADADELTA:
        kind, constants = torch.optim.Adadelta, ADADELTA[config.optimizer]
    else:
        kind, constants = torch.optim.SGD, {"momentum": config.momentum}
    return _uncompiled(kind)(parameters, lr=rate, **constants, **_fused(kind, model))


@cache
def _uncompiled(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """Return a subclass whose methods do not load torch's compiler.

    Torch's own methods load it at their first call, only to exclude themselves from compilation;
    this takes 1 s and 156 MB in each process. Objects of the subclass cannot be pickled, but their
    states can.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


def _fused(kind: type[Optimizer], model: nn.Module) -> dict[str, bool]:
    """Return the argument that selects torch's fused step, if torch and the device have it."""
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    # Torch 1.13 has it for Adam, but then cannot resume from a checkpoint.
    has_fused = torch.__version__ >= "2" and "fused" in inspect.signature(kind).parameters
    return {"fused": True} if on_gpu and has_fused else {}


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore an optimizer's state on its own device, which may differ from the checkpoint's.

    Args:
      optimizer: result of `make_optimizer`.
      state: result of `state_dict`, perhaps on another device.
    """
    # The state also names an implementation, which depends on the device: keep this optimizer's.
    groups = [
        {**saved, **{name: group[name] for name in ("fused", "foreach") if name in group}}
        for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


def exponential_rate(step: int, total: int, initial: float, final: float, warmup: int = 0) -> float:
    """Return the learning rate of a step: linear warm-up, then exponential decay (C7).

    Args:
      step: counted from 0.
      total: steps of the whole training, warm-up included.
      initial: rate of the first step after the warm-up (step 0 without a warm-up).
      final: rate of the last step.
      warmup: number of warm-up steps, in which the rate rises linearly to `initial`, from above 0.
    """
    if step < warmup:
        return initial * (step + 1) / (warmup + 1)
    decaying = max(1, total - warmup - 1)
    # initial (final / initial)^(t / T), t steps after the warm-up: the same factor at every step,
    # `final` at the last one (t = T)
    return initial * (final / initial) ** min(1.0, (step - warmup) / decaying)


def cosine_rate(step: int, total: int, initial: float, final: float, warmup: int = 0) -> float:
    """Return the learning rate of a step: linear warm-up, then half a period of a cosine.

    As in Loshchilov and Hutter 2017, without restarts. The arguments are those of
    `exponential_rate`.
    """
    if step < warmup:
        return initial * (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total - warmup - 1))
    # final + (initial - final) (1 + cos(pi t / T)) / 2, their equation 5, with t / T = `done`
    return final + (initial - final) * (1 + math.cos(math.pi * done)) / 2


def noam_rate(step: int, initial: float, warmup: int) -> float:
    """Return the learning rate of a step: linear warm-up, then the inverse square root of the step.

    As in Vaswani et al. 2017, except that there the highest rate follows from the network's size.

    Args:
      step: counted from 0.
      initial: the highest rate, of step `warmup`.
      warmup: steps of linear warm-up.
    """
    # min(t / W, sqrt(W / t)) with t = step + 1 and W = warmup + 1: their equation 3, scaled so that
    # the highest rate is `initial`
    return initial * min((step + 1) / (warmup + 1), ((warmup + 1) / (step + 1)) ** 0.5)


def scheduled_rate(config: TrainerConfig, step: int, total: int) -> float:
    """Return the configured rate of a step, counted from 0, of a training of `total` steps."""
    initial, final = config.rates()
    if config.schedule == "noam":
        return noam_rate(step, initial, config.warmup_steps)
    rate = cosine_rate if config.schedule == "cosine" else exponential_rate
    return rate(step, total, initial, final, config.warmup_steps)


def learning_rate_schedule(config: TrainerConfig) -> Schedule:
    """Return the configured learning rate as a function of the step, see `Schedule`."""

    def rate(epoch: int, step: int, steps: Sequence[int]) -> float:
        return scheduled_rate(config, sum(steps[:epoch]) + step, sum(steps))

    return rate
