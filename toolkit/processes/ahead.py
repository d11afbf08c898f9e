"""Threads that compute ahead of the one that needs the results."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], jobs: int, ahead: int
) -> Iterator[Result]:
    """Map in threads of this process and yield the results in the items' order.

    Useful where `function` releases the interpreter lock most of the time: reading files, decoding
    audio, compiled searches. `items` is iterated over by the thread that takes the results.

    Args:
      function: an exception in it is raised at its position.
      items: any number, even without end.
      jobs: threads.
      ahead: items that may be under way or done before their results are taken; at least `jobs`,
        or some threads never have work.
    """
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
