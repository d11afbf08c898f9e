"""Base class of accumulators: statistics summed over frames, partitions and processes."""

from dataclasses import fields
from operator import iadd
from typing import TypeVar

import torch
from torch import Tensor

Self = TypeVar("Self", bound="Accumulators")


class Accumulators:
    """Base of dataclasses whose fields are numbers and float64 tensors summed over frames."""

    def add(self: Self, other: Self) -> None:
        """Add the statistics of other frames; the same order of adding gives the same bits."""
        for field in fields(self):
            total = iadd(getattr(self, field.name), getattr(other, field.name))
            setattr(self, field.name, total)

    def __reduce__(self) -> tuple:
        """Pickle as numpy arrays: torch would pass tensors to workers by file descriptors."""
        values = [getattr(self, field.name) for field in fields(self)]
        arrays = (v.numpy() if isinstance(v, Tensor) else v for v in values)
        return _unpickled, (type(self), *arrays)


def _unpickled(kind: type[Self], *values: object) -> Self:
    return kind(*(v if isinstance(v, int | float) else torch.from_numpy(v) for v in values))
