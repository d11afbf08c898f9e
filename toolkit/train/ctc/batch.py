"""A batch of whole utterances with label sequences."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class CtcBatch:
    """Utterances padded on the right to one length, the longest's or a fixed one (A8)."""

    ids: list[str]
    """Utterance of each row, length N."""
    inputs: Tensor
    """[N, T, D] float32; undefined beyond an utterance's end."""
    input_lengths: Tensor
    """[N] int64, on the CPU: number of valid frames of each row."""
    labels: Tensor
    """[N, L] int64, without blanks; undefined beyond a row's length."""
    label_lengths: Tensor
    """[N] int64, on the CPU."""
    frames: int
    """Number of valid frames, the sum of `input_lengths`."""
    views: int = 1
    """How often each utterance is there: rows n and n + N / views are the same one, masked
    differently."""

    @property
    def utterances(self) -> int:
        """Number of utterances, each counted once."""
        return len(self.ids) // self.views

    def to(self, device: torch.device) -> "CtcBatch":
        """Move the tensors that are needed on a device; without blocking from pinned memory."""
        if device.type == "cpu":
            return self
        return self._with(lambda x: x.to(device, non_blocking=True))

    def pin(self) -> "CtcBatch":
        """Copy into pinned memory, from which copies to a GPU overlap with computation."""
        return self._with(Tensor.pin_memory)

    @staticmethod
    def of_views(views: "Sequence[CtcBatch]") -> "CtcBatch":
        """Join batches of the same utterances."""
        first, several = views[0], len(views)
        return CtcBatch(
            ids=first.ids * several,
            inputs=torch.cat([view.inputs for view in views]),
            input_lengths=first.input_lengths.repeat(several),
            labels=first.labels.repeat(several, 1),
            label_lengths=first.label_lengths.repeat(several),
            frames=first.frames * several,
            views=several,
        )

    def _with(self, function: Callable[[Tensor], Tensor]) -> "CtcBatch":
        return replace(self, inputs=function(self.inputs), labels=function(self.labels))

    def save(self, path: Path) -> None:
        """Write the batch as safetensors, with the utterance ids as metadata, for inspection.

        May be called on every rank.
        """
        tensors = {
            name: getattr(self, name).cpu().contiguous()
            for name in ("inputs", "input_lengths", "labels", "label_lengths")
        }
        content = save(tensors, metadata={"ids": json.dumps(self.ids)})
        write_atomically(path, content, every_rank=True)

    def label_sequences(self) -> list[list[int]]:
        """Return the labels of each row, without padding."""
        rows = self.labels.tolist()
        return [row[:n] for row, n in zip(rows, self.label_lengths.tolist(), strict=True)]
