"""Finds the first step whose loss or gradient was not a finite number, without stopping a GPU."""

import math
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from toolkit.train.batches import Batch

STEPS_BEHIND = 8
"""Steps that may be under way on a GPU before their numbers are waited for."""


class FiniteCheck:
    """The numbers of the last steps, looked at as they become known.

    Reading a number from a GPU waits for all work that it was given, so that it idles until it is
    given more. Here each number is copied behind its own step, and read when the copy is done.

    Args:
      device: of the numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._steps: deque[tuple[Tensor, torch.cuda.Event | None, Batch]] = deque()

    def add(self, value: Tensor, batch: Batch) -> None:
        """Add the scalar of a step that was begun, not finite if the step went wrong."""
        copied = None
        if self._gpu:
            host = torch.empty((), dtype=value.dtype, pin_memory=True)
            value = host.copy_(value, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._steps.append((value, copied, batch))

    def known(self) -> Batch | None:
        """Return the first bad batch among the steps that are known to be done, None without.

        It waits only where more than `STEPS_BEHIND` steps are under way.
        """
        while self._steps:
            _, copied, _ = self._steps[0]
            if copied is not None and len(self._steps) <= STEPS_BEHIND and not copied.query():
                return None
            bad = self._look()
            if bad is not None:
                return bad
        return None

    def all(self) -> Batch | None:
        """Return the first bad batch among all steps, None without; waits for them."""
        while self._steps:
            bad = self._look()
            if bad is not None:
                return bad
        return None

    def _look(self) -> Batch | None:
        """Take the first step, wait for it, and return its batch if it was bad."""
        value, copied, batch = self._steps.popleft()
        if copied is not None:
            copied.synchronize()
        return None if math.isfinite(value.item()) else batch


def not_finite(batch: Batch, path: Path, epoch: int, workers: int) -> str:
    """Tell of a bad batch that was saved as `path`; `epoch` is counted from 1.

    Several workers share gradients or weights, so that a bad batch of one spoils those of all, and
    each tells of its own.
    """
    names = sorted(set(batch.ids))
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")
    others = (
        " or in what the other workers computed with then (bad_batch*.safetensors beside it), since"
        " what is not finite spreads to all,"
    )
    return (
        f"the loss or its gradient is not finite in epoch {epoch}, in the batch of {listed}; it was"
        f" saved as {path}. Look for broken features or alignments there,"
        f"{others if workers > 1 else ''} or lower initial_rate or max_gradient_norm"
    )
