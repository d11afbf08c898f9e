"""Worker processes and threads that map a function over items.

Results do not depend on the number of workers.
"""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from time import process_time
from typing import TypeVar

from toolkit.environment import project_root
from toolkit.errors import ToolkitError

Item = TypeVar("Item")
Result = TypeVar("Result")
PACKAGES = ("toolkit", "local", "recipes")
LONGEST_FOLDER = 64
"""Limit in bytes of the temporary folder's path: the server's socket lies below it, and the path of
a socket has at most 107."""


class WorkerError(ToolkitError):
    """A worker process was killed."""


class WorkerPool:
    """Worker processes that live for several calls of `map`; use it in a `with` statement.

    With one job this process does the work itself, otherwise processes of `worker_context` do.
    Either way torch computes with one thread, since the number of threads decides the last bits of
    its sums.

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
        global _worker_seconds
        if self._pool is None:
            from toolkit.processes.devices import one_thread

            for item in items:
                with one_thread():
                    result = function(item)
                yield result
            return
        with block_sigint():
            futures = deque(self._pool.submit(_timed, function, item) for item in items)
        try:
            while futures:  # a future is freed with its result
                result, seconds = futures.popleft().result()
                _worker_seconds += seconds
                yield result
        except BrokenProcessPool as error:
            if self._shared and _shared is not None:
                _shared.pop(self._jobs, None)
            raise WorkerError(
                "a worker process was killed, perhaps because memory ran out: run the same command"
                " again with a smaller --jobs. Finished parts are kept"
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
"""The pools of `shared_workers` by their number of processes; None outside its `with` block."""


@contextmanager
def shared_workers() -> Iterator[None]:
    """Share the processes of all pools in a `with` block, or in a function that it decorates.

    A process takes a second to start, most of it to load compiled kernels, and decoding calls `map`
    a dozen times. The processes keep their caches until the end of the block.
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


_worker_seconds = 0.0  # CPU seconds of the workers of all pools


def _timed(function: Callable[[Item], Result], item: Item) -> tuple[Result, float]:
    """Return the result of a function for an item, and the CPU seconds that it took."""
    start = process_time()
    return function(item), process_time() - start


def processor_seconds() -> float:
    """Return the CPU time of this process and of the items that its workers computed.

    The system adds up the times of child processes only, but workers are children of a server.
    """
    return process_time() + _worker_seconds


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Map once, in a `WorkerPool` with at most `jobs` processes and at most one per item."""
    # A shared pool has all `jobs` processes; each starts when it is needed.
    jobs = jobs if _shared is not None and len(items) > 1 else min(jobs, len(items))
    with WorkerPool(jobs) as pool:
        yield from pool.map(function, items)


def worker_context() -> BaseContext:
    """Return multiprocessing's context for starting processes that compute.

    They are never forked from this process: threads that k2's search leaves behind do not survive a
    fork, nor does CUDA. On Linux they are forked from multiprocessing's server, which computes
    nothing. It starts at the first call and imports the modules of the project that this process
    has imported. So they are imported once, rather than in each worker: a recipe's modules take
    some four seconds of processor time. The server keeps the environment variables and streams of
    that moment; `start_worker` sets the current variables. Where the server cannot run, processes
    are spawned.
    """
    if sys.platform != "linux" or len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    try:
        resource_tracker.ensure_running()  # unblocks signals, so it comes first
        with block_sigint(), _working_directory(project_root()):
            context.set_forkserver_preload([*_imported(), "toolkit.processes.preloaded"])
            forkserver.ensure_running()
        # A first process waits until the server has imported everything, and shows whether the
        # server's socket is there. Ctrl-C is blocked while it starts: if interrupted then, this
        # process would not know the new one and could not end it.
        probe = context.Process(target=_do_nothing, daemon=True)
        with block_sigint():
            probe.start()
        probe.join()
    except OSError:
        return multiprocessing.get_context("spawn")
    return context


def _do_nothing() -> None:
    pass


def _imported() -> list[str]:
    """Return the project's modules in the order of their imports, on which the BLAS depends.

    Modules of a recipe elsewhere, which the server would not find, are left out.
    """
    root = project_root()
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return [
        name
        for name, file in files.items()
        if file
        and (package := name.partition(".")[0]) in PACKAGES
        and Path(file).is_relative_to(root / package)
    ]


@contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    """Change the working directory, from which a server imports before all other folders."""
    previous_folder = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(previous_folder)
        os.close(previous_folder)


@contextmanager
def block_sigint() -> Iterator[None]:
    """Block SIGINT (Ctrl-C sends it to all processes) in processes started in the `with` block.

    Their parent ends them. Otherwise Ctrl-C would end them with tracebacks while they import.
    Worse, C code that calls back into Python ignores exceptions: a worker could lose a piece of
    speech and write the rest.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def start_worker(environment: Mapping[str, str]) -> None:
    """Prepare a worker process: one torch thread, and what `exit_with_parent` does."""
    exit_with_parent(environment)
    import torch

    torch.set_num_threads(1)


def exit_with_parent(environment: Mapping[str, str]) -> None:
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


def freeze_imports() -> None:
    """Exclude all present objects from garbage collection.

    A recipe's imports make a quarter of a million objects. A full collection takes 0.2 s, and every
    process runs several before it ends. Workers share the memory of these objects with the process
    from which they are forked, because the collector no longer marks them.
    """
    gc.freeze()


def import_modules(names: Sequence[str]) -> None:
    """Import modules in the given order and exclude them from garbage collection.

    The server of `worker_context` imports what this process has imported when it starts. Modules
    that only a later stage imports would be loaded by each worker again, which takes two seconds
    and memory that is not shared.
    """
    if any(name not in sys.modules for name in names):
        for name in names:
            import_module(name)
        freeze_imports()


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], jobs: int, prefetch: int
) -> Iterator[Result]:
    """Map in threads of this process and yield the results in the items' order.

    Useful where `function` releases the interpreter lock most of the time: reading files, decoding
    audio, compiled searches. `items` is iterated over by the thread that takes the results.

    Args:
      function: an exception in it is raised at its item's position.
      items: any iterable, even an endless one.
      jobs: number of threads.
      prefetch: number of items that may be under way or done before their results are taken; if it
        is below `jobs`, some threads never have work.
    """
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= prefetch:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
