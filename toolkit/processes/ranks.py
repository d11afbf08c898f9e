"""The processes that torchrun starts for one run: who they are and what they tell each other.

Rank 0 does everything that one process would do; the others (followers) only take part in stages
that train in parallel, and write nothing. They talk through torchrun's store, a table of keys that
one process serves. Without torchrun there is one rank and nothing of torch.distributed is imported.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from toolkit.processes.errors import CONTINUES, WorkerLostError
from toolkit.storage import files

Result = TypeVar("Result")
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
POLL = 0.05  # seconds


def count() -> int:
    """Return how many processes work together: those torchrun started, or 1."""
    if _alone or not all(name in os.environ for name in NEEDED):
        return 1
    return int(os.environ["WORLD_SIZE"])


def number() -> int:
    """Return this process's rank, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def connect() -> "Connection":
    """Return the connection to the other ranks, made by the first call, which waits for them."""
    global _connection
    if _connection is None:
        _connection = Connection()
    return _connection


@contextmanager
def alone() -> Iterator[None]:
    """Around what this process does while the others wait: there, it counts as the only one."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def once(work: Callable[[], Result]) -> Result:
    """Let rank 0 do `work` while the others wait for its result; every rank must call this.

    Args:
      work: what it returns is what JSON can hold.
    """
    return work() if count() == 1 else connect().once(work)


class Connection:
    """This process's line to the others; use `connect`."""

    def __init__(self) -> None:
        from datetime import timedelta

        from torch.distributed import TCPStore
        from torch.distributed.rendezvous import rendezvous

        from toolkit.processes.board import Board
        from toolkit.processes.watch import Watch

        self.rank, self.ranks = number(), count()
        self.store = next(rendezvous("env://"))[0]
        # A line of its own: a call that waits blocks the line for all threads.
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        line = TCPStore(host, port, None, False, timedelta(seconds=20), wait_for_workers=False)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._board = Board(self.store, f"toolkit/{attempt}")
        self._said = self._heard = self._shared = self._met = 0
        if self.rank > 0:
            files.leave_writing_to_others()
        self.watch = Watch(Board(line, f"toolkit/{attempt}/watch"), self.rank, self.ranks)
        self.watch.begin()

    def say(self, message: dict[str, Any]) -> None:
        """Tell all followers something, on rank 0."""
        self._board.put(f"said/{self._said}", message)
        self._said += 1

    def hear(self) -> dict[str, Any]:
        """Wait for what rank 0 says next, on a follower.

        Raises:
          WorkerLostError: a process was lost meanwhile.
        """
        message = self._await(f"said/{self._heard}")
        self._heard += 1
        return message

    def once(self, work: Callable[[], Result]) -> Result:
        """See the function `once`."""
        key = f"once/{self._shared}"
        self._shared += 1
        if self.rank > 0:
            return self._await(key)
        with alone():
            result = work()
        self._board.put(key, result)
        return result

    def meet(self) -> None:
        """Wait, however long it takes, until every rank is here.

        Raises:
          WorkerLostError: one will not come.
        """
        key = f"met/{self._met}"
        self._met += 1
        with self._blaming():
            self._board.add(key, 1)
            while self._board.add(key, 0) < self.ranks:
                self._pause()

    def _await(self, key: str) -> Any:
        with self._blaming():
            while not self._board.has(key):
                self._pause()
            return self._board.get(key)

    def _pause(self) -> None:
        self.watch.check()
        time.sleep(POLL)

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """Say which process took the store with it."""
        try:
            yield
        except RuntimeError as error:
            raise WorkerLostError(f"{self.watch.explain(error)}. {CONTINUES}") from error


_connection: Connection | None = None
_alone = False
