"""GTC, gradient threshold compression: only large gradient elements are sent, as +-tau (C28)."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.gtc_buckets import FixedMessages
from toolkit.parallel.gtc_state import GtcState
from toolkit.parallel.process_group import Workers

logger = logging.getLogger(__name__)


class Exchange(Protocol):
    """A worker's side of the exchange: its residual, and what the messages of all add up to."""

    threshold: Any
    """tau, a number or a scalar on the device; the same for all workers."""

    def backward(self, loss: Tensor, weight: Tensor) -> tuple[Any, Any]:
        """Compute gradients and replace them by the sum of what all workers sent (all).

        Args:
          loss: whose gradients are exchanged.
          weight: of this worker's batch.

        Returns:
          The sum of the workers' weights; the mean share of the elements that a worker sent.
        """

    def residual(self) -> Tensor:
        """Return what was not sent yet: [W] in the order of the parameters."""

    def set_residual(self, residual: Tensor) -> None:
        """Replace it."""

    def stop(self) -> None:
        """The training ends."""


class WholeMessages:
    """The whole gradient in one message of the length that it needs: on the CPU."""

    def __init__(self, strategy: Distributed) -> None:
        self._flat, self._workers = strategy.flat, strategy.workers
        self._state = GtcState(len(self._flat), strategy.config.gtc)

    @property
    def threshold(self) -> float:
        """See `Exchange`."""
        return self._state.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._state.threshold = value

    def backward(self, loss: Tensor, weight: Tensor) -> tuple[float, float]:
        """See `Exchange`."""
        loss.backward()
        message = self._state.encode(self._flat.gradients())
        messages, weights = self._workers.all_gather(message, float(weight))
        try:
            total, density = self._state.decode(messages)
        except FloatingPointError:
            total, density = torch.full_like(self._state.residual, float("nan")), 0.0
        self._flat.set_gradients(total)
        return sum(weights), density

    def residual(self) -> Tensor:
        """See `Exchange`."""
        return self._state.residual

    def set_residual(self, residual: Tensor) -> None:
        """See `Exchange`."""
        self._state.residual.copy_(residual)

    def stop(self) -> None:
        """See `Exchange`."""


class Gtc(Distributed):
    """Synchronous training with compressed gradients; all replicas stay bitwise equal.

    The threshold is compared with gradients summed over a worker's minibatch, or with their mean
    (`grad_scale`). Gradient clipping and the optimizer's step come after the sum over the workers,
    which is divided by the mean weight of a step so far (frames of all workers), or by the number
    of workers: a residual may stem from many batches.

    On a GPU the messages of every bucket of gradients have a fixed size, and are exchanged during
    the backward pass (`toolkit.parallel.gtc_buckets`).
    """

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._exchange: Exchange | None = None

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self.stop()
        if isinstance(optimizer, torch.optim.Adam) and self.workers.rank == 0:
            # Adam divides by the root of the mean square, which rare elements of +-tau dominate.
            logger.warning(
                "gradient threshold compression with Adam trains worse than synchronous SGD with"
                " Adam: set parallel.method=ssgd, or optimizer=sgd"
            )
        self._exchange = self.make_exchange()
        self._exchanges = 0
        # On a GPU these are scalars there: total weight of all batches so far, and the sum of the
        # densities of all exchanges.
        self._weight = self._density = 0.0

    def make_exchange(self) -> Exchange:
        """Return how messages are exchanged on the model's device."""
        if self.flat.parameters[0].device.type == "cpu":
            return WholeMessages(self)
        return FixedMessages(self)

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        if self._exchange is not None:
            self._exchange.stop()

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """See `Strategy`."""
        summed = self.config.gtc.grad_scale == "sum"
        if accumulated and not summed:
            self.divide_gradients(weight)
        weights, density = self._exchange.backward(loss if summed else loss / weight, weight)
        self._exchanges += 1
        self._weight = self._weight + weights
        self._density = self._density + density
        scale = self._weight / self._exchanges if summed else self.workers.world_size
        for parameter in self.flat.parameters:
            parameter.grad /= scale

    def state_dict(self) -> dict[str, Any]:
        """See `Strategy`; the workers' weights are compared."""
        self.check_replicas()
        return super().state_dict() | {
            "threshold": float(self._exchange.threshold),
            "weight": float(self._weight),
            "exchanges": self._exchanges,
            "density": float(self._density),
        }

    def rank_state_dict(self) -> dict[str, Any]:
        """See `Strategy`: the residual."""
        return super().rank_state_dict() | {"residual": self._exchange.residual()}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; residuals of removed workers are added to those that remain."""
        super().load_state_dict(state, rank_states)
        if not state:
            return
        self._exchange.threshold = state["threshold"]
        self._weight, self._exchanges = state["weight"], state["exchanges"]
        self._density = state["density"]
        if self.world_size_changed(state):  # from now on a step has another weight
            self._weight, self._exchanges = 0.0, 0
        residual = torch.zeros(len(self.flat))
        for rank_state in rank_states:
            residual += rank_state["residual"]
        self._exchange.set_residual(residual)

    def report(self) -> dict[str, float]:
        """See `Strategy`: also the mean share of elements sent, and the threshold."""
        density = float(self._density) / max(1, self.steps)
        threshold = float(self._exchange.threshold)
        return super().report() | {"density": density, "threshold": threshold}
