"""The precision of a training: autocast, and loss scaling for float16 (A20)."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
processes skip the same steps; after one that only some skip, others wait for them for ever."""
FIRST, LEAST = 2.0**16, 1.0
"""The first factor of the loss, and the smallest; with that, an overflow is an error."""
STEPS_BETWEEN_RISES = 2000
"""Steps without an overflow after which the factor is doubled."""


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
        self._factor, self._since = FIRST, 0

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
    def used(self) -> Iterator[None]:
        """Say what was chosen, and switch TF32 on or off for a GPU, if that is set."""
        if self._reason:
            logger.info("computing in %s: %s", self.name, self._reason)
        if self._tf32 is None or self._device.type != "cuda":
            yield
            return
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = self._tf32
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss whose gradients are computed."""
        return loss * self._factor if self._scaling else loss

    def clip(self, model: nn.Module, most: float) -> tuple[Tensor, bool]:
        """Divide the gradients by the factor and scale a norm above `most` down to it.

        Returns:
          The norm, and whether to take the step: with float16 not after an overflow.
        """
        parameters = [p for p in model.parameters() if p.grad is not None]
        if self._scaling:
            for parameter in parameters:
                parameter.grad /= self._factor
        norm = nn.utils.clip_grad_norm_(parameters, most)
        return norm, not self._scaling or self._adapt(bool(torch.isfinite(norm)))

    def _adapt(self, finite: bool) -> bool:
        """Change the factor after a step; return whether to take it."""
        if not finite and self._factor > LEAST:
            self._factor, self._since = max(LEAST, self._factor / 2), 0
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
