"""Metrics of an epoch: sums of statistics over its batches, and their means."""

import torch
from torch import Tensor


def accumulate(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Add scalars to the sums of the same names, in float64."""
    for name, value in values.items():
        value = value.detach().double()
        sums[name] = sums[name] + value if name in sums else value


def means(sums: dict[str, Tensor]) -> dict[str, float]:
    """Divide the sums by that of `weight`, which is left out; the device is read once."""
    names = [name for name in sums if name != "weight"]
    if not names:
        return {}
    values = torch.stack([sums[name] for name in names]) / sums["weight"]
    return dict(zip(names, values.tolist(), strict=True))
