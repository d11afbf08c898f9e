"""Metrics of an epoch: sums of statistics over its batches, and their means."""

from torch import Tensor


def accumulate(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Add scalars to the sums of the same names, in float64."""
    for name, value in values.items():
        value = value.detach().double()
        sums[name] = sums[name] + value if name in sums else value


def means(sums: dict[str, Tensor]) -> dict[str, float]:
    """Divide the sums by that of `weight`; `weight` itself is left out."""
    return {k: (v / sums["weight"]).item() for k, v in sums.items() if k != "weight"}
