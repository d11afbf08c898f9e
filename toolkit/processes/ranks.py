"""The ranks (processes) that torchrun starts for one run, and the messages between them.

Rank 0 does everything that a single process would do. The other ranks, the followers, only take
part in stages that train in parallel, and write nothing. They communicate through torchrun's store,
a key-value store that one process serves. Without torchrun there is one rank, and
torch.distributed is not imported.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from toolkit.processes.watchdog import RESUME_ADVICE, WorkerLostError
from toolkit.storage import files

Result = TypeVar("Result")
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FIRST_POLL, LAST_POLL = 0.002, 0.05  # seconds; the longer the wait, the rarer the polls


def world_size() -> int:
    """Return the number of ranks that torchrun started, or 1 without torchrun."""
    if _single or not all(name in os.environ for name in TORCHRUN_VARIABLES):
        return 1
    return int(os.environ["WORLD_SIZE"])


def rank() -> int:
    """Return this process's rank, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def processes_here() -> int:
    """Return the number of ranks that torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size())) if world_size() > 1 else 1


def connect() -> "RankGroup":
    """Return the connection to the other ranks; the first call makes it and waits for them."""
    global _connection
    if _connection is None:
        _connection = RankGroup()
    return _connection


def disconnect() -> None:
    """Tell the other ranks that this one leaves, as a normal exit does; call before `os._exit`."""
    if _connection is not None:
        _connection.watchdog.stop()


@contextmanager
def single_process() -> Iterator[None]:
    """Make this process the only rank (world size 1) inside the `with` block.

    For work that rank 0 does while the other ranks wait.
    """
    global _single
    previous, _single = _single, True
    try:
        yield
    finally:
        _single = previous


def on_rank_zero(function: Callable[[], Result]) -> Result:
    """Call `function` on rank 0 and return its result on every rank; every rank must call this.

    Args:
      function: returns a value that JSON can hold.
    """
    return function() if world_size() == 1 else connect().on_rank_zero(function)


class RankGroup:
    """The messages between this process and the other ranks; made by `connect`."""

    def __init__(self) -> None:
        from datetime import timedelta

        from torch.distributed import TCPStore
        from torch.distributed.rendezvous import rendezvous

        from toolkit.processes.watchdog import KeyValueStore, Watchdog

        self.rank, self.world_size = rank(), world_size()
        self.store = next(rendezvous("env://"))[0]
        # The watchdog has its own connection: a call that waits blocks its connection for all
        # threads.
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        watchdog_store = TCPStore(
            host, port, None, False, timedelta(seconds=20), wait_for_workers=False
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = KeyValueStore(self.store, f"toolkit/{attempt}")
        self._sent = self._received = self._results = self._barriers = 0  # counts of messages
        if self.rank > 0:
            files.disable_writes()
        self.watchdog = Watchdog(
            KeyValueStore(watchdog_store, f"toolkit/{attempt}/watchdog"), self.rank, self.world_size
        )
        self.watchdog.start()

    def broadcast(self, message: dict[str, Any]) -> None:
        """Send a message to all other ranks; only rank 0 calls this."""
        self._store.put(f"message/{self._sent}", message)
        self._sent += 1

    def receive(self) -> dict[str, Any]:
        """Wait for the next message that rank 0 broadcasts; only the other ranks call this.

        Raises:
          WorkerLostError: a process was lost meanwhile.
        """
        message = self._await(f"message/{self._received}")
        self._received += 1
        return message

    def on_rank_zero(self, function: Callable[[], Result]) -> Result:
        """Call a function on rank 0 and return its result on every rank, see `on_rank_zero`."""
        key = f"result/{self._results}"
        self._results += 1
        if self.rank > 0:
            return self._await(key)
        with single_process():
            result = function()
        self._store.put(key, result)
        return result

    def barrier(self) -> None:
        """Wait, however long it takes, until every rank has called this.

        Raises:
          WorkerLostError: a rank was lost.
        """
        key = f"barrier/{self._barriers}"
        self._barriers += 1
        with self._name_lost_rank():
            self._store.add(key, 1)
            self._until(lambda: self._store.add(key, 0) == self.world_size)

    def count(self, name: str, number: int) -> int:
        """Add to a counter that all ranks share, which begins at 0; return its new value.

        Raises:
          WorkerLostError: the process that held the counters was lost.
        """
        with self._name_lost_rank():
            return self._store.add(f"count/{name}", number)

    def _await(self, key: str) -> Any:
        """Wait until a key has a value, and return the value."""
        with self._name_lost_rank():
            self._until(lambda: self._store.has(key))
            return self._store.get(key)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; raise a `WorkerLostError` if a rank is lost meanwhile."""
        interval = FIRST_POLL
        while not condition():
            self.watchdog.check()
            time.sleep(interval)
            interval = min(1.5 * interval, LAST_POLL)

    @contextmanager
    def _name_lost_rank(self) -> Iterator[None]:
        """Raise a `WorkerLostError` that names the lost rank if the store cannot be reached."""
        try:
            yield
        except RuntimeError as error:
            raise WorkerLostError(f"{self.watchdog.explain(error)}. {RESUME_ADVICE}") from error


_connection: RankGroup | None = None
_single = False
