"""The batch of a hybrid acoustic model."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

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
        write_atomically(path, content, own=True)
