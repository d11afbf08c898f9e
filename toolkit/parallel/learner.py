"""Update rules of the asynchronous methods, on flat tensors in one process."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.streams import HostStreams, Streams, Turns


class Learner:
    """One learner's weights, changed concurrently by its optimizer and by averaging with others.

    Every change is atomic and relative, so that none is lost, whatever the order: the optimizer's
    update is added, and an averaging of two learners moves both by half of their difference, in
    opposite directions. So the mean of all models changes by the mean of the optimizers' updates
    alone. All of it happens on the device that holds the weights.

    Args:
      weights: [P] float32, from which it starts.
      streams: of the weights' device.
    """

    def __init__(self, weights: Tensor, streams: Streams | None = None) -> None:
        self._weights = weights.detach().clone()
        self._turns = Turns(streams or HostStreams())
        self.averagings = 0
        """Number of averagings with other learners."""

    def weights(self) -> Tensor:
        """Return a copy of the current weights: [P]."""
        with self._turns.turn():
            return self._weights.clone()

    def set_weights(self, weights: Tensor) -> None:
        """Replace the weights by [P]."""
        with self._turns.turn():
            self._weights.copy_(weights)

    def add(self, update: Tensor) -> Tensor:
        """Add an optimizer's update, possibly of older weights; return the new weights [P]."""
        with self._turns.turn():
            self._weights += update
            return self._weights.clone()

    def answer(self, asking: Tensor) -> Tensor:
        """Move half of the way towards the learner that requests an averaging.

        Args:
          asking: [P] weights of that learner at its request.

        Returns:
          [P]: half of the difference, which that learner has to subtract by `finish`.
        """
        with self._turns.turn():
            half = (asking - self._weights) / 2
            self._weights += half
            self.averagings += 1
        return half

    def finish(self, half: Tensor) -> None:
        """Complete an averaging: subtract what the other learner's `answer` returned."""
        with self._turns.turn():
            self._weights -= half
            self.averagings += 1


def delay_by_one_update(before: Tensor, after: Tensor, mean: Tensor) -> Tensor:
    """Combine an update with the averaging that overlapped with its computation.

    Args:
      before: [P], the weights at which the gradient was computed.
      after: [P], the same after the optimizer's step.
      mean: [P], the mean over all learners of their `before`.
    """
    return mean + (after - before)


class ParameterServer:
    """The parameter server of asynchronous SGD (A19): workers push gradients and pull weights.

    After every `parts` gradients, from any workers, the optimizer makes a step with their mean.
    With `parts` equal to the number of workers, updates are as large as in synchronous training;
    but as no worker waits, gradients may be stale.

    Args:
      weights: [P] initial weights.
      optimizer: its class and settings are used, not its state.
      parts: number of gradients per update.
      max_norm: mean gradients of a larger norm are scaled down to it.
      streams: of the weights' device, on which the optimizer makes its steps.
      constrain: called after each update with the weights [P] and the number of updates before, to
        change them in place.
    """

    def __init__(
        self,
        weights: Tensor,
        optimizer: Optimizer,
        parts: int,
        max_norm: float = float("inf"),
        streams: Streams | None = None,
        constrain: Callable[[Tensor, int], None] = lambda weights, updates: None,
    ) -> None:
        self._weights = nn.Parameter(weights.detach().clone())
        self._constrain = constrain
        self._optimizer = optimizer_like(optimizer, [self._weights])
        self._sum = torch.zeros_like(self._weights)
        self._rates: list[float] = []
        self._parts = parts
        self._max_norm = max_norm
        self._turns = Turns(streams or HostStreams())
        self.updates = 0
        """Number of updates made."""

    def add(self, gradient: Tensor, rate: float) -> Tensor:
        """Add a worker's gradient; every `parts` gradients, update the weights.

        Args:
          gradient: [P], of the mean loss of the worker's batch.
          rate: the worker's current learning rate; an update uses the mean over its gradients.

        Returns:
          [P]: the weights from which the worker continues.
        """
        with self._turns.turn():
            self._sum += gradient
            self._rates.append(rate)
            if len(self._rates) >= self._parts:
                self._update()
            return self._weights.detach().clone()

    def flush(self) -> None:
        """Apply the gradients that are left, if there are any."""
        with self._turns.turn():
            if self._rates:
                self._update()

    def weights(self) -> Tensor:
        """Return a copy of the weights: [P]."""
        with self._turns.turn():
            return self._weights.detach().clone()

    def set_weights(self, weights: Tensor) -> None:
        """Replace the weights by [P]."""
        with self._turns.turn():
            self._weights.data.copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without weights."""
        with self._turns.turn():
            return {
                "optimizer": self._optimizer.state_dict(),
                "updates": self.updates,
                "sum": self._sum.clone(),
                "rates": list(self._rates),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        with self._turns.turn():
            self._optimizer.load_state_dict(state["optimizer"])
            self.updates = state["updates"]
            self._rates = list(state.get("rates", []))  # not in version 0.1
            self._sum.zero_()
            if self._rates:
                self._sum += state["sum"].to(self._sum.device)

    def _update(self) -> None:
        self._weights.grad = self._sum / len(self._rates)
        nn.utils.clip_grad_norm_([self._weights], self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = sum(self._rates) / len(self._rates)
        self._optimizer.step()
        self._constrain(self._weights.detach(), self.updates)
        self._sum = torch.zeros_like(self._sum)
        self._rates.clear()
        self.updates += 1


def optimizer_like(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Construct an optimizer of the same class and settings for other parameters, with no state.

    torch's element-wise optimizers do the same to a model and to its flat weights.
    """
    kind: Callable[..., Optimizer] = type(optimizer)
    copy = kind(parameters, lr=1.0)
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    for group in copy.param_groups:
        group.update(settings)
    return copy
