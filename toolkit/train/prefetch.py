"""Prefetching in a thread."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from toolkit.train.batches import Batch

T = TypeVar("T")
BATCHES = 4
_END = object()


def batches_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Load batches in a thread; for a GPU into memory that is copied without waiting."""
    if device.type == "cuda":
        batches = (batch.pin() for batch in batches)
    return prefetched(batches, BATCHES)


def prefetched(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield `items` in order while a thread computes the next `depth` of them and one more.

    With a depth of 0 two are in memory at a time: the one that the caller has, and the next.

    An exception of `items` is raised at its position. Closing the returned generator ends the
    thread after its current item. Useful where computing an item waits for files or for torch,
    which release the interpreter lock.
    """
    ready: queue.SimpleQueue = queue.SimpleQueue()
    room = threading.Semaphore(depth + 1)  # for items that are not taken yet
    stopped = threading.Event()

    def work() -> None:
        source = iter(items)
        try:
            while room.acquire() and not stopped.is_set():
                item = next(source, _END)
                ready.put((item, None))
                if item is _END:
                    break
                del item  # the caller may be done with it before the next one is there
        except BaseException as error:
            ready.put((_END, error))
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            room.release()
            yield item
            del item
    finally:
        stopped.set()
        room.release()
        thread.join()
