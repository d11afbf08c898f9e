"""The number of threads that torch computes with, where it matters for results or speed."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from toolkit.environment import usable_cpus
from toolkit.processes import ranks
from toolkit.startup import MARK


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` torch threads inside the `with` block.

    The number of threads decides how sums are split and so their last bits: PLP by kaldifeat
    differs between one thread and two.

    Args:
      count: of threads; None: in a recipe, where `OMP_NUM_THREADS` is not the user's, one for each
        core that this process may use, of which those that torchrun has started on the same machine
        have equal shares; else as many as before.
    """
    before = torch.get_num_threads()
    if count is None:
        cores = max(1, usable_cpus() // ranks.processes_here())
        count = cores if MARK in os.environ else before
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Compute with one torch thread, as worker processes do."""
    return torch_threads(1)
