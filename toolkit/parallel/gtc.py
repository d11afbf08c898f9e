"""GTC, gradient threshold compression: only large gradient elements are sent, as +-tau (C28)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.compression import decode, encode
from toolkit.parallel.config import GtcConfig
from toolkit.parallel.distributed import Distributed


class GtcState:
    """The residual gradient and the threshold of one worker.

    Args:
      size: W, elements of the gradient.
      config: threshold and its adaptation.
      device: device of the gradients.
    """

    def __init__(self, size: int, config: GtcConfig, device: torch.device | str = "cpu") -> None:
        self._config = config
        self.residual = torch.zeros(size, device=device)
        """[W] sum of all gradients minus what has been sent."""
        self.threshold = config.threshold
        """tau, the same for all workers."""

    def encode(self, gradient: Tensor) -> Tensor:
        """Add a gradient [W]; return the message to all workers, including this one."""
        return encode(gradient, self.residual, self.threshold, self._config.dense_fallback)

    def decode(self, messages: Sequence[Tensor]) -> tuple[Tensor, float]:
        """Sum the messages of all workers, in the same order on each.

        Returns:
          [W], bitwise equal on every worker; and the mean share of elements that a worker sent.

        Raises:
          FloatingPointError: a worker's gradient was not finite.
        """
        total = torch.zeros_like(self.residual)
        sent = sum(decode(message, self.threshold, total) for message in messages)
        density = sent / (len(messages) * len(total))
        if self._config.density:
            # At most 15 % per step, since the density follows the threshold with a delay.
            excess = max(0.01, min(100.0, density / self._config.density))
            self.threshold *= excess**0.03
        return total, density


class Gtc(Distributed):
    """Synchronous training with compressed gradients; all replicas stay bitwise equal.

    The threshold is compared with gradients summed over a worker's minibatch, or with their mean
    (`grad_scale`). Gradient clipping and the optimizer's step come after the sum over the workers,
    which is divided by the mean weight of a step so far (frames of all workers), or by the number
    of workers: a residual may stem from many batches.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        device = self.flat.parameters[0].device
        self._state = GtcState(len(self.flat), self.config.gtc, device)
        self._weight = 0.0  # total over all workers' batches so far
        self._exchanges = 0
        self._density = 0.0  # summed over the exchanges

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """See `Strategy`."""
        summed = self.config.gtc.grad_scale == "sum"
        (loss if summed else loss / weight).backward()
        message = self._state.encode(self.flat.gradients())
        messages, weights = self.workers.all_gather(message, float(weight))
        self._exchanges += 1
        self._weight += sum(weights)
        scale = self._weight / self._exchanges if summed else self.workers.world_size
        try:
            total, density = self._state.decode(messages)
        except FloatingPointError:
            total, density = torch.full_like(self._state.residual, float("nan")), 0.0
        self._density += density
        self.flat.set_gradients(total / scale)

    def state(self) -> dict[str, Any]:
        """See `Strategy`; the workers' weights are compared."""
        self.check_replicas()
        return super().state() | {
            "threshold": self._state.threshold,
            "weight": self._weight,
            "exchanges": self._exchanges,
            "density": self._density,
        }

    def rank_state(self) -> dict[str, Any]:
        """See `Strategy`: the residual."""
        return super().rank_state() | {"residual": self._state.residual}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; residuals of removed workers are added to those that remain."""
        super().load_state(state, own)
        if not state:
            return
        self._state.threshold = state["threshold"]
        self._weight, self._exchanges = state["weight"], state["exchanges"]
        self._density = state["density"]
        if self.world_size_changed(state):  # from now on a step has another weight
            self._weight, self._exchanges = 0.0, 0
        self._state.residual.zero_()
        for held in own:
            self._state.residual += held["residual"].to(self._state.residual.device)

    def report(self) -> dict[str, float]:
        """See `Strategy`: also the mean share of elements sent, and the threshold."""
        density = self._density / max(1, self.steps)
        return super().report() | {"density": density, "threshold": self._state.threshold}
