"""What a worker of GTC keeps between steps: the residual gradient and the threshold (C28)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from toolkit.parallel.compression import decode, encode
from toolkit.parallel.config import GtcConfig


def adapted(threshold: Any, density: Any, config: GtcConfig) -> Any:
    """Return tau after a step in which a worker sent a share `density` of its elements.

    Changes by at most 15 %, since the density follows the threshold with a delay. Both may be
    numbers, or scalars on a device.
    """
    if not config.density:
        return threshold
    excess = density / config.density
    excess = excess.clamp(0.01, 100.0) if torch.is_tensor(excess) else min(100.0, max(0.01, excess))
    return threshold * excess**0.03


class GtcState:
    """The residual gradient and the threshold of one worker.

    Args:
      size: W, elements of the gradient.
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
