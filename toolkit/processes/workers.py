"""Worker processes that map a function over items; results do not depend on their number."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from time import process_time
from typing import TypeVar

from toolkit.errors import ToolkitError
from toolkit.processes.context import deaf_to_interrupts, worker_context

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerError(ToolkitError):
    """A worker process was killed."""


class WorkerPool:
    """Worker processes that live for several calls of `map`; use it in a `with` statement.

    With one job this process does the work itself, otherwise processes of `worker_context`. Either
    way torch computes with one thread, since the number of threads decides the last bits of its
    sums.

    Args:
      jobs: number of processes.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs, self._shared = jobs, _shared is not None
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            self._pool = (_shared or {}).get(jobs) or _new_pool(jobs)
            if _shared is not None:
                _shared[jobs] = self._pool

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Apply `function` to every item and yield the results in the items' order.

        Args:
          function: picklable; an exception in it is raised here.
          items: picklable.

        Raises:
          WorkerError: a worker was killed, for instance because memory ran out.
        """
        global _spent
        if self._pool is None:
            from toolkit.processes.threads import one_thread

            for item in items:
                with one_thread():
                    result = function(item)
                yield result
            return
        with deaf_to_interrupts():
            futures = deque(self._pool.submit(_timed, function, item) for item in items)
        try:
            while futures:  # let go one by one, with their results
                result, seconds = futures.popleft().result()
                _spent += seconds
                yield result
        except BrokenProcessPool as error:
            if self._shared and _shared is not None:
                _shared.pop(self._jobs, None)
            raise WorkerError(
                "a worker process was killed, perhaps because memory ran out: run the same command"
                " again (finished work is kept), with a smaller --jobs"
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._pool is not None:
            if kind is not None and issubclass(kind, KeyboardInterrupt):
                for child in multiprocessing.active_children():
                    child.terminate()
            if not self._shared:
                self._pool.shutdown(cancel_futures=True)


def _new_pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        jobs, worker_context(), initializer=start_worker, initargs=(dict(os.environ),)
    )


_shared: dict[int, ProcessPoolExecutor] | None = None
"""By number of processes, in a `with` block of `shared_workers`."""


@contextmanager
def shared_workers() -> Iterator[None]:
    """Let all pools of a `with` block, or of a function that it decorates, use the same processes.

    A process takes a second to begin, most of it to load compiled kernels, and a decode maps a
    dozen times. They hold what they have cached until the end of the block.
    """
    global _shared
    if _shared is not None:
        yield
        return
    _shared = {}
    try:
        yield
    finally:
        pools, _shared = _shared, None
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


_spent = 0.0  # processor seconds of the workers of all pools


def _timed(function: Callable[[Item], Result], item: Item) -> tuple[Result, float]:
    before = process_time()
    return function(item), process_time() - before


def processor_seconds() -> float:
    """Return the processor time of this process, and of its workers for the items they have done.

    The system knows the workers' only from their parent, which this process need not be.
    """
    return process_time() + _spent


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Map once, in a `WorkerPool` of at most `jobs` processes and no more than there are items."""
    # Shared ones are as many as may be, and begin as they are needed.
    jobs = jobs if _shared is not None and len(items) > 1 else min(jobs, len(items))
    with WorkerPool(jobs) as pool:
        yield from pool.map(function, items)


def start_worker(environment: Mapping[str, str]) -> None:
    """Prepare a worker process: one torch thread, and what `follow_parent` does."""
    follow_parent(environment)
    import torch

    torch.set_num_threads(1)


def follow_parent(environment: Mapping[str, str]) -> None:
    """Prepare a process: its parent ends it on Ctrl-C, and it exits when the parent is gone.

    Args:
      environment: the variables of the process that started it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit once the parent is gone; the workers of a killed parent would wait forever."""
    multiprocessing.parent_process().join()
    os._exit(1)
