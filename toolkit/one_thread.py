"""How many threads libraries compute with unless they are told; runs on any Python from 3.8 on."""

import os

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by torch and numpy when they are loaded."""
MARK = "TOOLKIT_ONE_THREAD_BY_DEFAULT"
"""Set where nobody but the toolkit has chosen their number."""


def default_to_one_thread() -> None:
    """Let torch and numpy, which must not be loaded yet, compute with one thread.

    The number of threads decides how sums are split and so their last bits: by default results
    would depend on the number of cores. What gains from more threads asks torch for them, see
    `toolkit.processes.threads`. A variable that is set stays as it is.
    """
    if THREAD_VARIABLES[0] not in os.environ:
        os.environ[MARK] = "1"
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
