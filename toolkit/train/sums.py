"""Sums of statistics over the batches of an epoch, and the means that they make."""

from torch import Tensor


def add(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Add scalars to those of the same names, in float64."""
    for name, value in values.items():
        value = value.detach().double()
        sums[name] = sums[name] + value if name in sums else value


def means(sums: dict[str, Tensor]) -> dict[str, float]:
    """Divide sums by that of `weight`, which is left out."""
    return {k: (v / sums["weight"]).item() for k, v in sums.items() if k != "weight"}
