"""What the training loop and an objective see of the data."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    """[N, T] int64; anything where the weight is 0."""
    weights: Tensor
    """[N, T] float32: 0 for padding and for context that is not scored."""
    lengths: Tensor
    """[N] int64, on the CPU: how many of the T frames are real; the others hold anything."""
    frames: int
    """Number of scored frames, the sum of the weights."""

    _computed: ClassVar[tuple[str, ...]] = ("inputs", "targets", "weights")
    """What computing needs on the device."""

    def to(self, device: torch.device) -> "Batch":
        """Move the tensors that computing needs; from pinned memory without waiting."""
        if device.type == "cpu":
            return self
        return self._with(lambda x: x.to(device, non_blocking=True))

    def pin(self) -> "Batch":
        """Copy into pinned memory, from where a GPU fetches it while it computes."""
        return self._with(Tensor.pin_memory)

    def _with(self, moved: Callable[[Tensor], Tensor]) -> "Batch":
        """Copy, of the same class, what is used on the device."""
        return replace(self, **{name: moved(getattr(self, name)) for name in self._computed})

    def save(self, path: Path) -> None:
        """Write the batch as safetensors, with the utterance ids as metadata, to look into it.

        Every rank may write one.
        """
        tensors = {
            name: getattr(self, name).cpu().contiguous() for name in (*self._computed, "lengths")
        }
        content = save(tensors, metadata={"ids": json.dumps(self.ids)})
        write_atomically(path, content, own=True)


class DataSource(Protocol):
    """An endless supply of epochs whose order is a pure function of (seed, epoch)."""

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """Count the batches that each of `ranks` processes gets in an epoch (from 0)."""

    def batches(self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """Yield the batches of one process from its step `start` on, without making those before.

        Step s of rank r is batch s * ranks + r of the epoch's order.
        """
