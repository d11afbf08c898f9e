"""Prefetching in a thread."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from toolkit.parallel.batch import Batch

T = TypeVar("T")
BATCHES = 4
_END = object()


def batches_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Load batches in a thread; for a GPU into memory that is copied without waiting."""
    if device.type == "cuda":
        batches = (batch.pin() for batch in batches)
    return prefetched(batches, BATCHES)


def prefetched(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield `items` in order while a thread computes up to `depth` of them ahead.

    An exception of `items` is raised at its position. Closing the returned generator ends the
    thread after its current item. Useful where computing an item waits for files or for torch,
    which release the interpreter lock.
    """
    ready: queue.Queue = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(entry: tuple[object, BaseException | None]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        source = iter(items)
        try:
            for item in source:
                if not put((item, None)):
                    break
            else:
                put((_END, None))
        except BaseException as error:
            put((_END, error))
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
            yield item
    finally:
        stopped.set()
        thread.join()
