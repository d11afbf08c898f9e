"""GTC, gradient threshold compression: only large gradient elements are sent, as +-tau (C28)."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.compression import MessageCapacity, decode, decode_fixed, encode, encode_fixed
from toolkit.parallel.config import GtcConfig, ParallelConfig
from toolkit.parallel.messages import Streams, streams_of
from toolkit.parallel.ssgd import BUCKET_BYTES, Buckets
from toolkit.parallel.workers import AsyncResult, Distributed, Workers

logger = logging.getLogger(__name__)


def adapted(threshold: Any, density: Any, config: GtcConfig) -> Any:
    """Return the threshold tau, adapted after a step.

    It changes by at most 15 %, since the density follows the threshold with a delay.

    Args:
      threshold: tau of the step, a number or a scalar on a device.
      density: mean share of the elements that a worker sent, a number or a scalar on a device.
      config: the target density; 0: the threshold stays the same.
    """
    if not config.density:
        return threshold
    # tau <- tau (density / target)^0.03, with the ratio limited to [1/100, 100]: 100^0.03 = 1.15
    excess = density / config.density
    excess = excess.clamp(0.01, 100.0) if torch.is_tensor(excess) else min(100.0, max(0.01, excess))
    return threshold * excess**0.03


class GtcState:
    """The residual gradient and the threshold of one worker.

    Args:
      size: W, number of elements of the gradient.
      config: threshold and its adaptation.
    """

    def __init__(self, size: int, config: GtcConfig) -> None:
        self._config = config
        self.residual = torch.zeros(size)
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
        self.threshold = adapted(self.threshold, density, self._config)
        return total, density


class FixedMessages:
    """Messages of a fixed size for each bucket of gradients, for GPUs; an `Exchange`.

    As soon as a bucket's gradients are complete, they are encoded on a stream beside the backward
    pass, and all workers' messages are collected. After the pass the messages are decoded. A
    threshold of 0 sends everything: the gradients are summed by an all-reduce.

    Args:
      strategy: the training method, with the model's parameters as one vector.
      streams: streams of the device; by default `streams_of` it.
      max_bytes: largest size in bytes of a bucket.
    """

    def __init__(
        self, strategy: Distributed, streams: Streams | None = None, max_bytes: int = BUCKET_BYTES
    ) -> None:
        self._workers, self._config = strategy.workers, strategy.config.gtc
        device = strategy.flat.parameters[0].device
        self._streams = streams_of(device) if streams is None else streams
        self._side = self._streams.new()
        self._buckets = Buckets(strategy.flat.parameters, self._begin, max_bytes)
        self._sizes = self._buckets.sizes()
        self._residuals = [torch.zeros(size, device=device) for size in self._sizes]
        self._capacity = MessageCapacity(self._sizes, self._streams)
        self._capacities: list[int] = []  # of the buckets' messages in the current step
        self._tau = torch.full((), self._config.threshold, device=device)

    @property
    def threshold(self) -> Tensor:
        """Implement `Exchange.threshold`."""
        return self._tau

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._tau.fill_(value)

    def backward(self, loss: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Implement `Exchange.backward`."""
        weights = self._workers.all_reduce(weight.detach().float().reshape(1).clone())
        if self._config.threshold:
            self._capacities = self._capacity.next()
        with self._buckets.backward() as exchanges:
            loss.backward()
        numbers, sent = [], 0.0
        for index, (_, exchange, encoded) in enumerate(exchanges):
            self._streams.wait(encoded)
            # [B] sum of all workers' messages; [N] elements beyond the threshold by worker
            total, beyond = self._finish(index, exchange.wait())
            self._buckets.set_gradients(index, total)
            numbers.append(beyond.amax().float())
            # A message holds at most its capacity; the rest stays in the residual.
            most = self._capacities[index] if self._config.threshold else self._sizes[index]
            sent = sent + beyond.clamp(max=most).float().sum()
        density = sent / (self._workers.world_size * sum(self._sizes))
        if self._config.threshold:
            self._capacity.add(torch.stack(numbers))
        self._tau = adapted(self._tau, density, self._config)
        return weights.wait()[0], density

    def residual(self) -> Tensor:
        """Implement `Exchange.residual`."""
        return self._buckets.join(self._residuals)

    def set_residual(self, residual: Tensor) -> None:
        """Implement `Exchange.set_residual`."""
        parts = self._buckets.divide(residual)
        for of_bucket, part in zip(self._residuals, parts, strict=True):
            of_bucket.copy_(part)

    def stop(self) -> None:
        """Implement `Exchange.stop`."""
        self._buckets.remove()

    def _begin(self, index: int, gradient: Tensor) -> tuple[Tensor, AsyncResult, object]:
        """Encode a bucket's gradient and begin to collect all workers' messages.

        The gradient is returned as well, so that its memory is not reused by later operations of
        the backward pass before the side stream has read it.
        """
        ready = self._streams.record()
        with self._streams.use(self._side):
            self._streams.wait(ready)
            residual = self._residuals[index]
            # tau = 0 sends the whole residual, which is 0 afterwards.
            if not self._config.threshold:
                residual += gradient
                exchange = self._workers.all_reduce(residual.clone())
                residual.zero_()
            else:
                message = encode_fixed(gradient, residual, self._tau, self._capacities[index])
                exchange = self._workers.gather(message)
            return gradient, exchange, self._streams.record()

    def _finish(self, index: int, exchanged: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum [B] of what all workers sent, and how many elements each selected: [N]."""
        size = self._sizes[index]
        if self._config.threshold:
            return decode_fixed(exchanged, self._tau, size)
        return exchanged, torch.full((self._workers.world_size,), size, device=exchanged.device)


class Exchange(Protocol):
    """Exchange of compressed gradients between workers; keeps this worker's residual."""

    threshold: Any
    """tau, a number or a scalar on the device; the same for all workers."""

    def backward(self, loss: Tensor, weight: Tensor) -> tuple[Any, Any]:
        """Compute gradients, and replace them by the sum of all workers' messages (collective).

        Args:
          loss: the loss whose gradients are exchanged.
          weight: divisor of this worker's loss, such as its batch's frames.

        Returns:
          The sum of all workers' `weight`; the mean share of the elements that a worker sent.
        """

    def residual(self) -> Tensor:
        """Return the gradient that was not sent yet: [W] in the order of the parameters."""

    def set_residual(self, residual: Tensor) -> None:
        """Replace the residual."""

    def stop(self) -> None:
        """Release the resources of the exchange when the training ends."""


class WholeMessages:
    """The whole gradient in one message, as long as needed, for the CPU; an `Exchange`."""

    def __init__(self, strategy: Distributed) -> None:
        self._flat, self._workers = strategy.flat, strategy.workers
        self._state = GtcState(len(self._flat), strategy.config.gtc)

    @property
    def threshold(self) -> float:
        """Implement `Exchange.threshold`."""
        return self._state.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._state.threshold = value

    def backward(self, loss: Tensor, weight: Tensor) -> tuple[float, float]:
        """Implement `Exchange.backward`."""
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
        """Implement `Exchange.residual`."""
        return self._state.residual

    def set_residual(self, residual: Tensor) -> None:
        """Implement `Exchange.set_residual`."""
        self._state.residual.copy_(residual)

    def stop(self) -> None:
        """Implement `Exchange.stop`."""


class Gtc(Distributed):
    """Synchronous training with compressed gradients; all replicas stay bitwise equal.

    The threshold is compared with gradients summed over a worker's minibatch, or with their mean
    (`grad_scale`). What all workers sent is summed. With means, this sum is divided by the number
    of workers; else by the mean weight of the steps so far (frames of all workers), since a
    residual may stem from many batches. Gradient clipping and the optimizer's step follow.

    On a GPU the messages of every bucket of gradients have a fixed size, and are exchanged during
    the backward pass (`FixedMessages`).
    """

    has_equal_replicas = True

    def __init__(self, config: ParallelConfig, workers: Workers) -> None:
        super().__init__(config, workers)
        self._exchange: Exchange | None = None

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
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
        """Return the `Exchange` for the model's device."""
        if self.flat.parameters[0].device.type == "cpu":
            return WholeMessages(self)
        return FixedMessages(self)

    def stop(self, failed: bool = False) -> None:
        """Implement `Strategy.stop`."""
        if self._exchange is not None:
            self._exchange.stop()

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """Implement `Strategy.backward`."""
        summed = self.config.gtc.grad_scale == "sum"
        if accumulated and not summed:
            self.divide_gradients(weight)
        weights, density = self._exchange.backward(loss if summed else loss / weight, weight)
        self._exchanges += 1
        self._weight = self._weight + weights
        self._density = self._density + density
        # Sums of gradients: divide by the mean weight of a step; means: by the number of workers.
        scale = self._weight / self._exchanges if summed else self.workers.world_size
        for parameter in self.flat.parameters:
            parameter.grad /= scale

    def state_dict(self) -> dict[str, Any]:
        """Implement `Strategy.state_dict`: also the threshold and the sums of `report`."""
        return super().state_dict() | {
            "threshold": float(self._exchange.threshold),
            "weight": float(self._weight),
            "exchanges": self._exchanges,
            "density": float(self._density),
        }

    def rank_state_dict(self) -> dict[str, Any]:
        """Implement `Strategy.rank_state_dict`: the residual."""
        return super().rank_state_dict() | {"residual": self._exchange.residual()}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Restore a checkpoint; residuals of removed workers go to those that remain."""
        super().load_state_dict(state, rank_states)
        if not state:
            return
        self._exchange.threshold = state["threshold"]
        self._weight, self._exchanges = state["weight"], state["exchanges"]
        self._density = state["density"]
        if self.world_size_changed(state):  # from now on a step has another weight
            self._weight, self._exchanges = 0.0, 0
        # The residuals of all ranks that this one continues: their sum is what was not sent yet.
        residual = torch.zeros(len(self.flat))
        for rank_state in rank_states:
            residual += rank_state["residual"]
        self._exchange.set_residual(residual)

    def report(self) -> dict[str, float]:
        """Implement `Strategy.report`: also the mean share of elements sent, and the threshold."""
        density = float(self._density) / max(1, self.steps)
        threshold = float(self._exchange.threshold)
        return super().report() | {"density": density, "threshold": threshold}
