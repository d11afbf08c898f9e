"""The rate of matrix products (GEMM), which limits training, and the operations of training."""

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from toolkit.models.config import LstmConfig
from toolkit.models.lstm_cpu import onednn_has_bfloat16

SIZE = 2048
GPU_SIZE = 8192
"""Rows and columns with which a GPU reaches its peak rate."""
EMULATED_SIZE = 256
"""Rows and columns in bfloat16 on a CPU without instructions for it, whose rate hardly depends on
the size: products of `SIZE` rows take 14 s there."""
REPEATS = 8


def size_on(device: torch.device) -> int:
    """Return the number of rows and columns of the matrices on a device."""
    return SIZE if device.type == "cpu" else GPU_SIZE


class Gemm:
    """Square matrix products by torch, or by numpy if faster (on the CPU, in float32).

    Args:
      device: device of the products.
      dtype: type of the matrices.
      per_unit: operations per unit of work, in which the rate is expressed.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, per_unit: float) -> None:
        emulated = device.type == "cpu" and dtype is torch.bfloat16 and not onednn_has_bfloat16()
        size = EMULATED_SIZE if emulated else size_on(device)
        a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
        candidates = [lambda: torch.mm(a, b)]
        if device.type == "cpu" and dtype is torch.float32:
            x, y = a.numpy(), b.numpy()
            candidates.append(lambda: x @ y)
        self._product = min(candidates, key=_median_seconds)
        self._amount = REPEATS * 2 * size**3 / per_unit

    def run(self) -> float:
        """Compute `REPEATS` products and return the units of work done."""
        for _ in range(REPEATS):
            self._product()
        return self._amount


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has completed all queued operations."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def synchronised(case: Any, device: torch.device) -> Callable[[], float]:
    """Return a function that runs `case` and synchronises with the device."""

    def run() -> float:
        amount = case.run()
        synchronise(device)
        return amount

    return run


def _median_seconds(product: Callable[[], float]) -> float:
    """Return the median duration of a product, after a first one that is not counted."""
    times = []
    for _ in range(4):
        begin = perf_counter()
        product()
        times.append(perf_counter() - begin)
    return statistics.median(times[1:])


def flops_per_frame(config: LstmConfig) -> int:
    """Return the number of operations to train on a frame: 2 per weight forward, 4 backward.

    Biases, activations and the look-ahead's extra frames are not counted.
    """
    hidden = config.hidden
    first = config.input_dim + hidden
    weights = 4 * hidden * (first + (config.layers - 1) * 2 * hidden) + hidden * config.output_dim
    return 6 * weights
