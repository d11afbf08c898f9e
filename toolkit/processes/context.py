"""How worker processes come about: forked from a process that has imported what they need."""

import multiprocessing
import os
import sys
import tempfile
from multiprocessing.context import BaseContext

PACKAGES = ("toolkit", "local", "recipes")
LONGEST_FOLDER = 64
"""Bytes of the temporary folder's path: the server's socket lies below it, and a socket's path ends
after 107."""


def worker_context() -> BaseContext:
    """Return the context in which to start processes that compute.

    They are never forked from this process: k2's search leaves threads behind that do not survive
    that, nor does CUDA. On Linux they are forked from multiprocessing's server, which computes
    nothing. It starts with the first of them and imports then what this process has imported of the
    project, once instead of in each of them: a recipe's modules take some four seconds of processor
    time. Its environment variables are those of that moment; `start_worker` takes over today's.
    Elsewhere they are spawned.
    """
    if sys.platform != "linux" or len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # In the order of their imports, on which the choice of the BLAS depends.
    context.set_forkserver_preload([m for m in sys.modules if m.partition(".")[0] in PACKAGES])
    return context
