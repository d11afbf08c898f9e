"""Parameters and gradients of a model as one flat vector."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatParameters:
    """The trainable parameters of a model, in their order, as one vector.

    Args:
      parameters: the model's; those that require no gradient are left out.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self._sizes = [p.numel() for p in self.parameters]

    def __len__(self) -> int:
        """Number of values."""
        return sum(self._sizes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of [W] in the shapes of their parameters."""
        parts = flat.split(self._sizes)
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def weights(self) -> Tensor:
        """Copy the weights: [W]."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def set_weights(self, flat: Tensor) -> None:
        """Copy [W] into the weights."""
        with torch.no_grad():
            for parameter, values in zip(self.parameters, self.views(flat), strict=True):
                parameter.copy_(values)

    def gradients(self) -> Tensor:
        """Copy the gradients, zero where there are none: [W]."""
        return torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad.detach()).reshape(-1)
                for p in self.parameters
            ]
        )

    def set_gradients(self, flat: Tensor) -> None:
        """Set the gradients to views of [W]."""
        for parameter, values in zip(self.parameters, self.views(flat), strict=True):
            parameter.grad = values
