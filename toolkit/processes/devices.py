"""Choice of torch's device, precision and number of threads.

torch is imported when a function needs it, since command lines check `--device` without it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from toolkit.environment import usable_cpus
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.startup import MARK

if TYPE_CHECKING:
    import torch
    from torch import Tensor


DEVICE = re.compile(r"(cpu|cuda|xpu|hip|mps)(:\d+)?")
"""Names of devices to compute on."""


def check_device(requested: str | None) -> None:
    """Check that `--device` names a device, without loading torch.

    Raises:
      ToolkitError: it names no known kind of device.
    """
    if requested is not None and not DEVICE.fullmatch(requested):
        raise ToolkitError(
            f"--device {requested}: no such device; use cpu, cuda, cuda:0, cuda:1, ..."
        )


def choose_device(requested: str | None) -> str:
    """Return the device of `--device`; by default "cuda" if torch finds a GPU, else "cpu".

    Raises:
      ToolkitError: there is no such device, or a GPU is requested on a machine that has none.
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
    """Return a context with full float32 precision; cuDNN otherwise rounds to 10 bits (TF32).

    For results that must not depend on the device.
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


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` torch threads inside the `with` block.

    The number of threads decides how sums are split and so their last bits: PLP by kaldifeat
    differs between one thread and two.

    Args:
      count: number of threads. None: if the user has not set `OMP_NUM_THREADS`, one per core that
        this process may use, divided among the processes that torchrun started on this machine;
        otherwise unchanged.
    """
    import torch

    previous_count = torch.get_num_threads()
    if count is None:
        cores = max(1, usable_cpus() // ranks.processes_here())
        count = cores if MARK in os.environ else previous_count
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


def one_thread() -> AbstractContextManager[None]:
    """Compute with one torch thread, as worker processes do."""
    return torch_threads(1)
