"""The mathematics of the asynchronous methods, on flat tensors in one process."""

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Learner:
    """One learner's weights, which its optimizer and averaging with others change at any time.

    Every change is atomic and relative, so that none is lost, whatever the order: what the
    optimizer found is added, and averaging with another learner moves both by half of their
    difference, in opposite directions. So the mean of all models changes by the optimizers' mean
    update and by nothing else.
    """

    def __init__(self, weights: Tensor) -> None:
        """Begin with weights [P], float32."""
        self._weights = weights.detach().clone()
        self._lock = threading.Lock()
        self.averagings = 0
        """How often it was averaged with another."""

    def weights(self) -> Tensor:
        """Copy the weights as they are now: [P]."""
        with self._lock:
            return self._weights.clone()

    def set_weights(self, weights: Tensor) -> None:
        """Take other weights [P]."""
        with self._lock:
            self._weights.copy_(weights)

    def add(self, update: Tensor) -> Tensor:
        """Add what an optimizer found from possibly older weights; return the sum, [P]."""
        with self._lock:
            self._weights += update
            return self._weights.clone()

    def answer(self, asking: Tensor) -> Tensor:
        """Go half of the way to the learner that asks for averaging.

        Args:
          asking: its weights [P] when it asked.

        Returns:
          [P]: what it has to subtract, by `finish`, to come as far towards this one.
        """
        with self._lock:
            half = (asking - self._weights) / 2
            self._weights += half
            self.averagings += 1
        return half

    def finish(self, half: Tensor) -> None:
        """Complete an averaging with what the learner that was asked gave as its `answer`."""
        with self._lock:
            self._weights -= half
            self.averagings += 1


def delayed(before: Tensor, after: Tensor, mean: Tensor) -> Tensor:
    """Combine an update with the averaging that went on while it was computed (delay by one).

    Args:
      before: [P], the weights whose gradient was computed.
      after: [P], what the optimizer made of them.
      mean: [P], the mean over all learners of their `before`.
    """
    return mean + (after - before)


class Accumulator:
    """The weights of asynchronous SGD (A19): workers add gradients and take weights at once.

    After every `parts` gradients, from whichever workers, their mean is what the optimizer uses.
    With `parts` the number of workers an update is as large as that of synchronous training; what
    differs is that nobody waits, so that gradients are of weights that may be older.

    Args:
      weights: [P] to begin with.
      optimizer: its class and settings are taken, not its state.
      parts: gradients per update.
      max_norm: longer means of gradients are scaled down to this length.
    """

    def __init__(
        self, weights: Tensor, optimizer: Optimizer, parts: int, max_norm: float = float("inf")
    ) -> None:
        self._weights = nn.Parameter(weights.detach().clone())
        self._optimizer = same_optimizer(optimizer, [self._weights])
        self._sum = torch.zeros_like(self._weights)
        self._rates: list[float] = []
        self._parts = parts
        self._max_norm = max_norm
        self._lock = threading.Lock()
        self.updates = 0
        """Number of updates made."""

    def add(self, gradient: Tensor, rate: float) -> Tensor:
        """Add a worker's gradient, and update the weights if it completes a mean.

        Args:
          gradient: [P], of the mean loss of the worker's batch.
          rate: learning rate the worker has arrived at; an update uses the mean of its gradients'.

        Returns:
          [P]: the weights with which the worker goes on.
        """
        with self._lock:
            self._sum += gradient
            self._rates.append(rate)
            if len(self._rates) == self._parts:
                self._update()
            return self._weights.detach().clone()

    def flush(self) -> None:
        """Use the gradients that do not make a full mean, if any."""
        with self._lock:
            if self._rates:
                self._update()

    def weights(self) -> Tensor:
        """Copy the weights: [P]."""
        with self._lock:
            return self._weights.detach().clone()

    def set_weights(self, weights: Tensor) -> None:
        """Take other weights [P]."""
        with self._lock:
            self._weights.data.copy_(weights)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside the weights; gradients so far are dropped."""
        with self._lock:
            return {"optimizer": self._optimizer.state_dict(), "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        with self._lock:
            self._optimizer.load_state_dict(state["optimizer"])
            self.updates = state["updates"]
            self._sum.zero_()
            self._rates.clear()

    def _update(self) -> None:
        self._weights.grad = self._sum / len(self._rates)
        nn.utils.clip_grad_norm_([self._weights], self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = sum(self._rates) / len(self._rates)
        self._optimizer.step()
        self._sum = torch.zeros_like(self._sum)
        self._rates.clear()
        self.updates += 1


def same_optimizer(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Make an optimizer of the same class and settings for other parameters, with no state.

    Those of torch that treat each weight alone do the same to a model and to its flat weights.
    """
    copy = type(optimizer)(parameters, lr=1.0)
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    for group in copy.param_groups:
        group.update(settings)
    return copy
