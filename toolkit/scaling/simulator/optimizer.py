"""The optimizers of simulated workers: torch's own, on flat weights."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

OptimizerName = Literal["sgd", "momentum", "adam"]
MOMENTUM = 0.9  # of `momentum`, which is SGD with it


def make_optimizer(name: OptimizerName, weights: Iterable[nn.Parameter]) -> Optimizer:
    """Make an optimizer with torch's settings; its learning rate is set before every step."""
    if name == "adam":
        return torch.optim.Adam(weights, lr=1.0)
    return torch.optim.SGD(weights, lr=1.0, momentum=MOMENTUM if name == "momentum" else 0.0)


class Optimizers:
    """Optimizers of synchronous workers, each with its own state.

    They are element-wise, so that a single optimizer of all workers' weights is equivalent.

    Args:
      name: of the optimizer.
      workers: N.
      size: P, number of weights of a model.
    """

    def __init__(self, name: OptimizerName, workers: int, size: int) -> None:
        self._weights = nn.Parameter(torch.zeros(workers, size))
        self._optimizer = make_optimizer(name, [self._weights])

    def step(self, weights: Tensor, gradients: Tensor, rate: float) -> Tensor:
        """Return the workers' weights after a step of their optimizers.

        Args:
          weights: [N, P].
          gradients: [K, P] of the first K workers. K is less than N only at the last step, where
            the data ends; the other workers' weights are unchanged.
          rate: learning rate.

        Returns:
          [N, P].
        """
        moved = len(gradients)
        self._weights.data.copy_(weights)
        self._weights.grad = torch.zeros_like(weights)
        self._weights.grad[:moved] = gradients
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        return torch.cat([self._weights.data[:moved], weights[moved:]])
