"""Worker processes that map a function over items; results do not depend on their number."""

import multiprocessing
import os
import signal
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


_idle: list[tuple[int, ProcessPoolExecutor]] = []
"""The processes that the last pool left behind, and its number of jobs."""
# A forked process has no thread that would hand them work.
os.register_at_fork(after_in_child=_idle.clear)


class WorkerPool:
    """Worker processes that live for several calls of `map`; use it in a `with` statement.

    With one job this process does the work itself. Otherwise processes are spawned, not forked:
    k2's search leaves threads behind that do not survive a fork. Either way torch computes with
    one thread, since the number of threads decides the last bits of its sums.

    Starting a process takes seconds, in which it imports torch and the program. So one starts when
    there is work for it, and a pool that ends without an error leaves its processes to the next one
    of as many jobs; `end_idle_workers` ends them.

    Args:
      jobs: number of processes.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool = _processes(jobs) if jobs > 1 else None

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Apply `function` to every item and yield the results in the items' order.

        Args:
          function: picklable; an exception in it is raised here.
          items: picklable.

        Raises:
          WorkerError: a worker was killed, for instance because memory ran out.
        """
        if self._pool is None:
            from toolkit.processes.threads import one_thread

            for item in items:
                with one_thread():
                    result = function(item)
                yield result
            return
        futures = [self._pool.submit(_interruptible, function, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
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
        if self._pool is None:
            return
        if kind is None:
            end_idle_workers()  # those of a pool that ended while this one worked
            _idle.append((self._jobs, self._pool))
        else:
            self._pool.shutdown(cancel_futures=True)


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Map once, in a `WorkerPool` of at most `jobs` processes and no more than there are items."""
    with WorkerPool(jobs if len(items) > 1 else 1) as pool:
        yield from pool.map(function, items)


def end_idle_workers() -> None:
    """End the processes that the last pool left behind, where their memory is wanted."""
    for _, processes in _taken():
        processes.shutdown()


def _taken() -> list[tuple[int, ProcessPoolExecutor]]:
    """Take what the last pool left behind, which no other thread gets then."""
    try:
        return [_idle.pop()]
    except IndexError:
        return []


def _processes(jobs: int) -> ProcessPoolExecutor:
    """Return the processes that a pool of as many jobs left behind, or else new ones."""
    for number, processes in _taken():
        try:
            if number == jobs and processes.submit(os.getpid).result():
                return processes
        except BrokenProcessPool:
            pass  # one was killed, perhaps because memory ran out
        processes.shutdown()
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_start)


def _start() -> None:
    _end_quietly_when_interrupted()
    start_worker()


def _interruptible(function: Callable[[Item], Result], item: Item) -> Result:
    """Call a function in a worker, which Ctrl-C interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return function(item)
    finally:
        _end_quietly_when_interrupted()


def _end_quietly_when_interrupted() -> None:
    """Without a traceback, since a worker without work has nothing to tell."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))


def start_worker() -> None:
    """Prepare a worker process: one torch thread, and exit when the parent is gone."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit once the parent is gone; the workers of a killed parent would wait forever."""
    multiprocessing.parent_process().join()
    os._exit(1)
