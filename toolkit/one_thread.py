"""How many threads libraries compute with unless they are told; runs on any Python from 3.8 on."""

import os

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by torch and numpy when they are loaded."""
MARK = "TOOLKIT_ONE_THREAD_BY_DEFAULT"
"""Set where nobody but the toolkit has chosen their number."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Set by torchrun, which sets `OMP_NUM_THREADS` to 1 for several processes unless it is set."""


def default_to_one_thread() -> None:
    """Let torch and numpy, which must not be loaded yet, compute with one thread.

    The number of threads decides how sums are split and so their last bits: by default results
    would depend on the number of cores. What gains from more threads asks torch for them, see
    `toolkit.processes.threads`. A variable that is set stays as it is; where `OMP_NUM_THREADS` is,
    the others get its number, as torch computes with the smallest.
    """
    chosen = os.environ.get("OMP_NUM_THREADS")
    if chosen is None or (chosen == "1" and TORCHRUN in os.environ):
        os.environ[MARK] = "1"
    number = (chosen or "1").partition(",")[0]  # of the outermost of nested regions
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, number)
