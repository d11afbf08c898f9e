"""Which torch device to compute on, and how to compute there."""

import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


DEVICE = re.compile(r"(cpu|cuda|xpu|hip|mps)(:\d+)?")
"""Names of devices to compute on."""


def check_device(requested: str | None) -> None:
    """Check that what is given by `--device` is a name of one, without loading torch.

    Raises:
      ToolkitError: it is not.
    """
    if requested is not None and not DEVICE.fullmatch(requested):
        raise ToolkitError(f"--device {requested}: there are cpu, cuda, cuda:0, cuda:1, ...")


def choose_device(requested: str | None) -> str:
    """Return the device given by `--device`; by default "cuda" if torch finds a GPU, else "cpu".

    Raises:
      ToolkitError: it is no name of a device, or a GPU is requested on a machine that has none.
    """
    check_device(requested)
    if requested == "cpu":
        return requested
    import torch

    available = torch.cuda.is_available()
    if requested is None:
        return "cuda" if available else "cpu"
    if requested.startswith("cuda") and not available:
        raise ToolkitError(f"--device {requested}: torch finds no GPU; use --device cpu")
    return requested


def to_device(tensor: "Tensor", device: "torch.device") -> "Tensor":
    """Copy a tensor to a device without waiting; from the CPU to a GPU through pinned memory."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def full_float32(device: "torch.device") -> AbstractContextManager[None]:
    """Compute float32 with all its bits: cuDNN otherwise rounds factors to 10 bits (TF32).

    For results that shall not depend on the device.
    """
    if device.type != "cuda":
        return nullcontext()
    from torch.backends import cudnn

    return cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=False,
    )
