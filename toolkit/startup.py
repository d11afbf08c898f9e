"""Settings to make before torch and numpy are loaded: threads, BLAS kernels, oneDNN's cache.

Imported by `toolkit/__init__.py` and by `toolkit.stages.bootstrap` in whatever `python3` the shell
finds, so it runs on Python 3.8, keeps newer annotations in quotes, and imports the standard library
only.
"""

import os
import sys

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables for the number of threads, which torch and numpy read when they are
loaded."""
MARK = "TOOLKIT_ONE_THREAD_BY_DEFAULT"
"""Environment variable that is set if the toolkit, not the user, has chosen the number of
threads."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Environment variable of torchrun, which sets `OMP_NUM_THREADS` to 1 for several processes unless
it is set."""
BLAS_VARIABLE = "MKL_DEBUG_CPU_TYPE"
PRIMITIVES_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
AMD = "AuthenticAMD"


def default_to_one_thread() -> None:
    """Let torch and numpy, which must not be loaded yet, compute with one thread.

    The number of threads decides how sums are split and so their last bits: by default results
    would depend on the number of cores. Code that is faster with more threads sets torch's number,
    see `toolkit.processes.devices`. Variables that are already set stay unchanged. If
    `OMP_NUM_THREADS` is set, the others get its number, since torch uses the smallest.
    """
    # torchrun sets 1 by itself, so 1 under torchrun is not the user's choice.
    omp_threads = os.environ.get("OMP_NUM_THREADS")
    if omp_threads is None or (omp_threads == "1" and TORCHRUN in os.environ):
        os.environ[MARK] = "1"
    number = (omp_threads or "1").partition(",")[0]  # of "4,2" that of the outermost region
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, number)


def tune_blas() -> bool:
    """Let MKL before 2020.1 use its AVX2 kernels on AMD processors.

    torch 1.13.1 comes with MKL 2020.0, which uses slow kernels on processors that are not Intel's:
    40 GFLOP/s per core became 105 with the variable set. Later versions of MKL ignore it. Nothing
    is done if torch is already loaded, since that is too late, or if the user has set the variable,
    even to "".

    Returns:
      True if this call set the variable.
    """
    if BLAS_VARIABLE in os.environ or "torch" in sys.modules or not blas_setting():
        return False
    os.environ[BLAS_VARIABLE] = blas_setting()
    return True


def blas_setting() -> str:
    """Return the value that `BLAS_VARIABLE` should have: the user's, or what `tune_blas` sets."""
    return os.environ.get(BLAS_VARIABLE, "5" if cpu_field("vendor_id") == AMD else "")


def limit_primitives() -> None:
    """Let oneDNN keep 64 compiled primitives instead of 1,024, unless the user has set a number.

    A primitive is compiled for one batch size and holds its own memory, and batches of utterances
    have hundreds of sizes. After training steps of three bidirectional layers of 192 cells on
    batches of 100 lengths, a process held 1.18 GB instead of 1.57; the time was the same.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault(PRIMITIVES_VARIABLE, "64")


def cpu_field(name: str) -> "str | None":
    """Return a field of the first processor in /proc/cpuinfo; None if it does not exist."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return None
