"""One thread of torch for results that must not depend on the machine's load or `--jobs`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread inside the `with` block, as worker processes do.

    The number of threads decides how sums are split and so their last bits: PLP by kaldifeat
    differs between one thread and two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
