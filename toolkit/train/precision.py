"""Precision of a training run: autocast, loss scaling for float16 (A20), and non-finite losses."""

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.environment import fast_precision
from toolkit.train.config import TrainerConfig
from toolkit.train.errors import TrainingError

logger = logging.getLogger(__name__)
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALED = ("ssgd",)
"""Data-parallel methods that work with scaled gradients: they only sum them, so that an overflow
makes all processes skip the same step. If only some skipped it, the others would wait for ever."""
INITIAL_SCALE, MIN_SCALE = 2.0**16, 1.0
"""The initial and the smallest factor of the loss; an overflow with the smallest is an error."""
STEPS_BETWEEN_RISES = 2000
"""Steps without an overflow after which the factor is doubled."""
STEPS_BEHIND = 8
"""Steps that may be queued on a GPU before the CPU waits for the loss of the oldest."""


class Precision:
    """The number format of a training run, and its loss scaling.

    With float16 the loss is multiplied by a factor, so that small gradients do not become 0. A step
    whose gradients overflow is skipped and the factor halved; after 2,000 steps without overflow it
    is doubled (the constants are those of torch's GradScaler). The factor is part of every
    checkpoint, so that a resumed training has the same losses.

    Args:
      config: `amp`, `tf32`, and the data-parallel method.
      device: where the training computes.
      world_size: number of processes.

    Raises:
      TrainingError: float16 is configured where it does not work.
    """

    def __init__(self, config: TrainerConfig, device: torch.device, world_size: int) -> None:
        self._device, self._tf32 = device, config.tf32
        self.name, reason = config.amp, ""
        # `auto` falls back to float32 where a configured fp16 is an error.
        if config.amp == "auto":
            self.name, reason = fast_precision(device.type)
        method = config.parallel.method
        if self.name == "fp16" and world_size > 1 and method not in SCALED:
            if config.amp != "auto":
                raise TrainingError(
                    f"`amp=fp16` scales gradients, which `method={method}` does not support: use"
                    " `method=ssgd`, `amp=bf16` or `amp=fp32`"
                )
            self.name, reason = "fp32", f"float16 scales gradients, which {method} does not support"
        if self.name == "fp16" and device.type == "cpu" and torch.__version__ < "2.3":
            raise TrainingError("`amp=fp16` on a CPU needs torch 2.3 or newer: use `amp=fp32`")
        self._reason = reason
        self._scaling = self.name == "fp16"
        self._factor, self._since = INITIAL_SCALE, 0  # `_since`: steps since the factor changed

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Return the context in which loss and outputs are computed."""
        dtype = TYPES.get(self.name, torch.bfloat16)
        with ExitStack() as contexts:
            if self.name == "fp16" and self._device.type == "cpu":  # oneDNN has no LSTM of float16
                contexts.enter_context(torch.backends.mkldnn.flags(enabled=False))
            contexts.enter_context(
                torch.autocast(self._device.type, dtype=dtype, enabled=self.name in TYPES)
            )
            yield

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Log the precision that was chosen; inside the context, set a GPU's TF32 as configured."""
        if self._reason:
            logger.info("computing in %s: %s", self.name, self._reason)
        if self._tf32 is None or self._device.type != "cuda":
            yield
            return
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        settings = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = self._tf32
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = settings

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss to compute gradients of: with float16 multiplied by the factor."""
        return loss * self._factor if self._scaling else loss

    def unscale_and_clip(self, model: nn.Module, max_norm: float) -> tuple[Tensor, bool]:
        """Divide the gradients by the factor and scale a norm above `max_norm` down to it.

        Returns:
          The norm before clipping, and whether to take the step: not after an overflow of float16.
        """
        parameters = [p for p in model.parameters() if p.grad is not None]
        # d(factor * loss) / factor is the gradient; the norm is taken of that.
        if self._scaling:
            for parameter in parameters:
                parameter.grad /= self._factor
        norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        return norm, not self._scaling or self._adapt(bool(torch.isfinite(norm)))

    def _adapt(self, finite: bool) -> bool:
        """Change the loss scale if necessary; return whether to take the step."""
        # Overflow: halve and skip. Otherwise double after 2,000 steps in a row.
        if not finite and self._factor > MIN_SCALE:
            self._factor, self._since = max(MIN_SCALE, self._factor / 2), 0
            logger.debug("gradients overflowed; the loss is now scaled by %g", self._factor)
            return False
        self._since += 1
        if self._since == STEPS_BETWEEN_RISES:
            self._factor, self._since = 2 * self._factor, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; empty without scaling."""
        return {"factor": self._factor, "since": self._since} if self._scaling else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            self._factor, self._since = state["factor"], state["since"]


class NonFiniteDetector:
    """Finds the first step whose loss or gradient was not finite, without stopping a GPU.

    Reading a number from a GPU waits until its queue is empty; the GPU then idles until it gets
    more work. Here a copy of each number is queued after its step, and read once the copy is done.

    Args:
      device: device of the numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._steps: deque[tuple[Tensor, torch.cuda.Event | None, Any]] = deque()

    def add(self, value: Tensor, batch: Any) -> None:
        """Queue a scalar of the latest step for the check; NaN or infinity means that it failed."""
        copied = None
        if self._is_gpu:
            host = torch.empty((), dtype=value.dtype, pin_memory=True)
            value = host.copy_(value, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._steps.append((value, copied, batch))

    def first_bad_batch(self, wait: bool = False) -> Any | None:
        """Return the batch of the first step that was not finite, or None.

        Args:
          wait: wait for all steps. Otherwise wait only while more than `STEPS_BEHIND` are queued;
            later steps are checked by a later call.
        """
        while self._steps:
            # The oldest step; its number is read once its copy to the host is done.
            value, copied, batch = self._steps[0]
            if copied is not None:
                behind = len(self._steps) > STEPS_BEHIND
                if not (wait or behind or copied.query()):
                    return None
                copied.synchronize()
            self._steps.popleft()
            if not math.isfinite(value.item()):
                return batch
        return None


def non_finite_message(ids: Sequence[str], path: Path, epoch: int, world_size: int) -> str:
    """Describe a bad batch that was saved as `path`; `epoch` is counted from 1.

    Workers share gradients or weights, so that one worker's bad batch makes all losses infinite or
    NaN. Each worker then reports its own batch.
    """
    names = sorted(set(ids))
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")
    places = "there"
    if world_size > 1:
        places = "there and in the other workers' batches (bad_batch*.safetensors beside it)"
    return (
        f"the loss or its gradient is not finite in epoch {epoch}, in the batch of {listed}. The"
        f" batch was saved as {path}. Look for broken features or alignments {places}, or lower"
        " `initial_rate` or `max_gradient_norm`"
    )
