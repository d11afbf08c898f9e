"""Precision of a training: autocast, loss scaling for float16 (A20), and steps that went wrong."""

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
"""Methods of several processes whose gradients may be scaled: they sum them, and no more. So all
processes skip the same steps; after one that only some skip, the others wait for ever."""
INITIAL_SCALE, MIN_SCALE = 2.0**16, 1.0
"""The first factor of the loss, and the smallest; with that, an overflow is an error."""
STEPS_BETWEEN_RISES = 2000
"""Steps without an overflow after which the factor is doubled."""
STEPS_BEHIND = 8
"""Steps that may be under way on a GPU before their losses are waited for."""


class Precision:
    """What a training computes in.

    With float16 the loss is multiplied by a factor, so that small gradients do not become 0. A step
    whose gradients overflow is skipped and the factor halved; after 2,000 steps without overflow it
    is doubled (the constants are torch's GradScaler's). Unlike there, the state is in every
    checkpoint, and a training that goes on has the same losses.

    Args:
      config: `amp`, `tf32`, and the method of several processes.
      device: where the training computes.
      world_size: number of processes.

    Raises:
      TrainingError: float16 was asked for where it does not work.
    """

    def __init__(self, config: TrainerConfig, device: torch.device, world_size: int) -> None:
        self._device, self._tf32 = device, config.tf32
        self.name, reason = config.amp, ""
        if config.amp == "auto":
            self.name, reason = fast_precision(device.type)
        method = config.parallel.method
        if self.name == "fp16" and world_size > 1 and method not in SCALED:
            if config.amp != "auto":
                raise TrainingError(
                    f"amp=fp16 scales gradients, which method={method} does not expect: use the"
                    " method ssgd, or amp=bf16 or fp32"
                )
            self.name, reason = "fp32", f"float16 needs scaled gradients, which {method} lacks"
        if self.name == "fp16" and device.type == "cpu" and torch.__version__ < "2.3":
            raise TrainingError("amp=fp16 on a CPU needs torch 2.3 or newer: use amp=fp32")
        self._reason = reason
        self._scaling = self.name == "fp16"
        self._factor, self._since = INITIAL_SCALE, 0

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
        """Log what was chosen, and switch TF32 on or off for a GPU inside the context, if set."""
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
        """Return the loss whose gradients are computed."""
        return loss * self._factor if self._scaling else loss

    def unscale_and_clip(self, model: nn.Module, max_norm: float) -> tuple[Tensor, bool]:
        """Divide the gradients by the factor and scale a norm above `max_norm` down to it.

        Returns:
          The norm, and whether to take the step: with float16 not after an overflow.
        """
        parameters = [p for p in model.parameters() if p.grad is not None]
        # d(factor * loss) / factor is the gradient; the norm is taken of that.
        if self._scaling:
            for parameter in parameters:
                parameter.grad /= self._factor
        norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        return norm, not self._scaling or self._adapt(bool(torch.isfinite(norm)))

    def _adapt(self, finite: bool) -> bool:
        """Change the factor after a step; return whether to take it."""
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

    Reading a number from a GPU waits for all work that it was given, so that it idles until it is
    given more. Here each number is copied behind its own step, and read when the copy is done.

    Args:
      device: of the numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._steps: deque[tuple[Tensor, torch.cuda.Event | None, Any]] = deque()

    def add(self, value: Tensor, batch: Any) -> None:
        """Add the scalar of a step that was begun, not finite if the step went wrong."""
        copied = None
        if self._is_gpu:
            host = torch.empty((), dtype=value.dtype, pin_memory=True)
            value = host.copy_(value, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._steps.append((value, copied, batch))

    def first_bad_batch(self, wait: bool = False) -> Any | None:
        """Return the first bad batch among the steps, None without.

        Args:
          wait: for all steps; else only where more than `STEPS_BEHIND` are under way, so that steps
            which are not known to be done are left for later.
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

    Several workers share gradients or weights, so that a bad batch of one spoils those of all, and
    each reports its own.
    """
    names = sorted(set(ids))
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")
    hint = (
        " or in what the other workers computed with then (bad_batch*.safetensors beside it), since"
        " what is not finite spreads to all,"
    )
    return (
        f"the loss or its gradient is not finite in epoch {epoch}, in the batch of {listed}; it was"
        f" saved as {path}. Look for broken features or alignments there,"
        f"{hint if world_size > 1 else ''} or lower initial_rate or max_gradient_norm"
    )
