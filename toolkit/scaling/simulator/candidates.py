"""What came after the papers' methods, simulated before any of it is built for real processes.

Reduced precision of what is exchanged; momentum correction for threshold compression (Lin et al.
2018, deep gradient compression); post-local SGD (Lin et al. 2020). Slow momentum (SlowMo, Wang et
al. 2020) is `bmuf` with other settings.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from toolkit.parallel.compression import decode
from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.gtc_state import GtcState
from toolkit.scaling.simulator import synchronous
from toolkit.scaling.simulator.optimizer import MOMENTUM
from toolkit.scaling.simulator.run import Outcome, Run

Rounding = Callable[[Tensor], Tensor]
"""Rounds [K, P] to what is sent of it."""


def slow_momentum(workers: int, block: int, momentum: float = 0.5) -> BmufConfig:
    """Return the settings with which `bmuf` is SlowMo: the mean of the workers, plus momentum."""
    return BmufConfig(block, momentum=momentum, rate=1 / (workers * (1 - momentum)))


def to_float16(values: Tensor) -> Tensor:
    """Round to float16, 2 bytes per value."""
    return values.half().float()


def to_8_bits(values: Tensor) -> Tensor:
    """Round to 255 steps between minus and plus the largest value of each row, 1 byte per value."""
    step = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    return (values / step).round() * step


def ssgd_rounded(run: Run, rounding: Rounding, share: float) -> Outcome:
    """S-SGD whose workers send rounded gradients, and keep what rounding has left for the next.

    Args:
      run: the training.
      rounding: of the gradients.
      share: bytes of a rounded value, as a share of a float32's.
    """
    optimizer = run.optimizers(1) if run.task else None
    left = torch.zeros(run.workers, run.task.size) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        mine = left[: len(gradients)]
        mine += gradients
        sent = rounding(mine)
        mine -= sent
        return optimizer.step(weights[None], sent.mean(dim=0, keepdim=True), rate)[0]

    exchange = lambda: synchronous.all_reduce(run, share)  # noqa: E731
    return run.finish(synchronous.train(run, update, exchange, run.exposed))


def post_local(run: Run, until: float) -> Outcome:
    """S-SGD for a share `until` of the data, then workers on their own, averaged now and then."""
    optimizer = run.optimizers(1) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        return optimizer.step(weights[None], gradients.mean(dim=0, keepdim=True), rate)[0]

    exchange = lambda: synchronous.all_reduce(run)  # noqa: E731
    weights = synchronous.train(run, update, exchange, run.exposed, until)
    return synchronous.bmuf(run, weights)


class CorrectedState(GtcState):
    """Threshold compression of a worker's momentum, in place of its gradient.

    The optimizer after the exchange has no momentum then. Where an element is sent its momentum
    begins anew, so that an old gradient does not carry on.

    Args:
      size: P.
      config: of the threshold.
    """

    def __init__(self, size: int, config: GtcConfig) -> None:
        super().__init__(size, config)
        self._velocity = torch.zeros(size)

    def encode(self, gradient: Tensor) -> Tensor:
        """See `GtcState`."""
        self._velocity.mul_(MOMENTUM).add_(gradient)
        message = super().encode(self._velocity)
        own = torch.zeros_like(self._velocity)
        decode(message, self.threshold, own)
        self._velocity[own != 0] = 0.0
        return message
