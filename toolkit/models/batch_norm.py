"""Batch normalisation of padded sequences, computed without the padding (A15)."""

import torch
from torch import Tensor, nn


class MaskedBatchNorm(nn.Module):
    """Normalises each feature over the real frames of a batch: (x - mean) / sqrt(var + epsilon).

    Differs from `nn.BatchNorm1d` in what it takes as the batch: padding counts neither in the
    batch's statistics nor in the running ones, and comes out as 0. Computed in float32 (or wider)
    under autocast too.

    Args:
      features: F.
      epsilon: the paper's delta; its value is not given, torch's default is 1e-5.
      momentum: weight of a batch in the running statistics, as in torch.
    """

    def __init__(self, features: int, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Normalise, in training with the batch's own statistics, else with the running ones.

        Args:
          x: [N, T, F].
          mask: [N, T] bool, true for real frames; None: all are. The values of
            other frames are not used.

        Returns:
          [N, T, F], of the weight's type.
        """
        x = x.to(self.weight.dtype)
        padding = None if mask is None else ~mask[:, :, None]
        if not self.training:
            scale = self.weight * (self.running_var + self.epsilon).rsqrt()
            y = torch.addcmul(self.bias - self.running_mean * scale, x, scale)
            return y if padding is None else y.masked_fill(padding, 0)
        if padding is None:
            count = x.shape[0] * x.shape[1]
        else:
            x = x.masked_fill(padding, 0)
            count = mask.sum().clamp(min=1)
        mean = x.sum(dim=(0, 1)) / count
        centred = x - mean
        if padding is not None:
            centred = centred.masked_fill(padding, 0)
        var = centred.square().sum(dim=(0, 1)) / count
        self._track(mean.detach(), var.detach(), count)
        y = torch.addcmul(self.bias, centred, self.weight * (var + self.epsilon).rsqrt())
        return y if padding is None else y.masked_fill(padding, 0)

    def _track(self, mean: Tensor, var: Tensor, count: Tensor | int) -> None:
        """Update the running statistics; the variance there is the unbiased estimate."""
        fewer = count - 1
        fewer = fewer.clamp(min=1) if isinstance(fewer, Tensor) else max(fewer, 1)
        unbiased = var * (count / fewer)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
