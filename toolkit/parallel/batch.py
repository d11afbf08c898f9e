"""Batches, and the protocol of the data sources that the training loop reads them from."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class Batch:
    """Rows of equal size: chunks, or whole utterances padded on the right."""

    ids: list[str]
    """Utterance of each row, length N."""
    inputs: Tensor
    """[N, T + lookahead, D] float32."""
    targets: Tensor
    """[N, T] int64; undefined where the weight is 0."""
    weights: Tensor
    """[N, T] float32: 0 for padding and for context that is not scored."""
    lengths: Tensor
    """[N] int64, on the CPU: number of valid frames of each row; the others are undefined."""
    frames: int
    """Number of scored frames, the sum of the weights."""

    _computed: ClassVar[tuple[str, ...]] = ("inputs", "targets", "weights")
    """Names of the tensors that are needed on the device."""

    def to(self, device: torch.device) -> "Batch":
        """Move the tensors that are needed on a device; without blocking from pinned memory."""
        if device.type == "cpu":
            return self
        return self._with(lambda x: x.to(device, non_blocking=True))

    def pin(self) -> "Batch":
        """Copy into pinned memory, from which copies to a GPU overlap with computation."""
        return self._with(Tensor.pin_memory)

    def _with(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply a function to the tensors that are needed on the device."""
        return replace(self, **{name: function(getattr(self, name)) for name in self._computed})

    def save(self, path: Path) -> None:
        """Write the batch as safetensors, with the utterance ids as metadata, for inspection.

        May be called on every rank.
        """
        tensors = {
            name: getattr(self, name).cpu().contiguous() for name in (*self._computed, "lengths")
        }
        content = save(tensors, metadata={"ids": json.dumps(self.ids)})
        write_atomically(path, content, every_rank=True)


class DataSource(Protocol):
    """Training data: batches in an order that is a pure function of (seed, epoch)."""

    def steps(self, epoch: int, world_size: int = 1) -> int:
        """Count the batches that each of `world_size` processes gets in an epoch (from 0)."""

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Yield the batches of one process from its step `start` on; earlier ones are not computed.

        Step s of rank r is batch s * world_size + r of the epoch's order.
        """


class BatchesAhead:
    """A data source that loads batches before they are needed.

    Args:
      data: the batches.
      ahead: returns the items of an iterator in their order, but computes them earlier.
    """

    def __init__(
        self, data: DataSource, ahead: Callable[[Iterator[Batch]], Iterator[Batch]]
    ) -> None:
        self._data, self._ahead = data, ahead

    def steps(self, epoch: int, world_size: int = 1) -> int:
        """See `DataSource`."""
        return self._data.steps(epoch, world_size)

    def batches(
        self,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
        number: int | None = None,
    ) -> Iterator[Batch]:
        """See `DataSource`; at most `number` batches."""
        batches = self._data.batches(epoch, start, rank, world_size)
        return self._ahead(islice(batches, number))


class Meeting:
    """Comes in place of a batch where all ranks write a checkpoint, see `MEETING`."""


MEETING = Meeting()
"""The only one of its kind."""
