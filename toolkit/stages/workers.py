"""Work over many items by processes, with results that do not depend on their number."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from toolkit.errors import ToolkitError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerError(ToolkitError):
    """A worker process was killed."""


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Apply `function` to every item and yield the results in the items' order.

    With one job or one item it runs in this process. Otherwise worker processes are spawned, not
    forked: k2's search leaves threads behind that do not survive a fork. Either way torch computes
    with one thread, since the number of threads decides the last bits of its sums.

    Args:
      function: picklable; an exception in it is raised here.
      items: picklable.
      jobs: processes at most; never more than there are items.

    Raises:
      WorkerError: a worker disappeared, for instance killed for want of memory.
    """
    jobs = min(jobs, len(items))
    if jobs <= 1:
        from toolkit.stages.threads import one_thread

        for item in items:
            with one_thread():
                result = function(item)
            yield result
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker process was killed, perhaps for want of memory: run the same command"
                " again (finished shards are kept), with a smaller --jobs"
            ) from error
        finally:
            for future in futures:
                future.cancel()


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone: a killed parent leaves its workers waiting."""
    multiprocessing.parent_process().join()
    os._exit(1)
