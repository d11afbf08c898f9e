"""Notice within a minute that a process of the run was killed or hangs, and stop the others.

Every rank writes a heartbeat into the store each second. Rank 0 reads all heartbeats; the others
read rank 0's. A rank that finds a failure writes to the store what went wrong; then all ranks exit.

The heartbeats come from a thread, which continues when the main thread hangs. So they also carry
how many steps the main thread has taken (`StallDetector`), for training whose ranks do not wait for
each other. If the ranks do wait, an exchange with a rank that hangs times out.
"""

import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError

RESUME_ADVICE = (
    "The same command continues from the last checkpoint, with the same or another number of"
    " workers."
)


class WorkerLostError(ToolkitError):
    """Another process of the run was killed, hangs or failed."""


if TYPE_CHECKING:
    from torch.distributed import Store


class KeyValueStore:
    """JSON values in one of torch's stores, whose own `get` blocks until the key has been set.

    Args:
      store: must be used by one thread at a time.
      prefix: put before every key.
    """

    def __init__(self, store: "Store", prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def put(self, key: str, value: Any) -> None:
        """Write a value that JSON can hold."""
        self._store.set(f"{self._prefix}/{key}", json.dumps(value))
        self.add(f"{key}/there", 1)

    def has(self, key: str) -> bool:
        """Return whether the key has a value."""
        return self.add(f"{key}/there", 0) > 0

    def get(self, key: str) -> Any:
        """Return the value of a key that has one."""
        return json.loads(self._store.get(f"{self._prefix}/{key}"))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return its new value."""
        return self._store.add(f"{self._prefix}/{key}", amount)


def _pid_space() -> str:
    """Name the scope in which process ids are unique: this boot of the host, and the container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # unlike that of any other process


SLACK = 4.0  # seconds by which the known status of other ranks may be out of date


class StallDetector:
    """Follows the progress of every rank's main thread.

    From the first step of any rank until all ranks have met at the end of their steps, every rank
    must take a step within `limit` or be waiting at that end for the others. A rank may be as slow
    as `limit` allows in each step.

    Args:
      rank: rank of this process.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # Steps taken; how often steps have ended (`idle`); whether this rank waits for the others;
        # seconds that a step may take, None while this rank takes no steps
        self._status: dict[str, Any] = {"steps": 0, "rounds": 0, "waits": False, "limit": None}
        self._statuses: dict[
            int, tuple[dict, float]
        ] = {}  # a rank's status, and since when it holds
        self._stepping_since: dict[int, float] = {}  # when a rank was first seen to take steps
        self._updated: dict[int, float] = {}  # when a rank's status last arrived
        self.limit = float("inf")
        """Seconds that a step may take, from the latest status of any rank that takes steps."""

    def step(self, limit: float) -> None:
        """Count a step of this rank; the next one must follow within `limit` seconds."""
        self._change(steps=self._status["steps"] + 1, limit=limit)

    def wait(self, limit: float) -> None:
        """Note that this rank waits for the others to take their steps; `idle` ends the wait."""
        self._change(waits=True, limit=limit)

    @contextmanager
    def waiting(self, limit: float) -> Iterator[None]:
        """Wrap the wait for the other ranks at the end of all steps."""
        self.wait(limit)
        yield
        self.idle()

    def idle(self) -> None:
        """Note that this rank takes no steps for now."""
        self._change(waits=False, limit=None, rounds=self._status["rounds"] + 1)

    def status(self) -> dict:
        """Return this rank's status for the other ranks, as plain values."""
        return self._status

    def update(self, rank: int, status: dict) -> None:
        """Record the status that a rank has sent."""
        now = time.monotonic()
        previous = self._statuses.get(rank, ({}, now))[0]
        if status["limit"] is None:
            self._stepping_since.pop(rank, None)
        else:
            self.limit = status["limit"]
            self._stepping_since.setdefault(rank, now)
        self._updated[rank] = now
        if status != previous:
            self._statuses[rank] = (status, now)

    def stalled(self) -> list[int]:
        """List the ranks that have taken no step for `limit` seconds.

        If there is such a rank, ranks within `SLACK` seconds of the limit are listed too.
        """
        self.update(self._rank, self._status)
        statuses = dict(self._statuses)
        newest = max(status["rounds"] for status, _ in statuses.values())
        started = dict(self._stepping_since)
        stepping = [
            started[rank]
            for rank in statuses.keys() & started
            if statuses[rank][0]["rounds"] == newest
        ]
        if not stepping:
            return []
        idle = {  # a rank whose status does not arrive may take steps nevertheless
            rank: self._updated[rank] - max(min(stepping), since)
            for rank, (status, since) in statuses.items()
            if not status["waits"]
        }
        if max(idle.values(), default=0.0) <= self.limit:
            return []
        return [rank for rank, seconds in idle.items() if seconds > self.limit - SLACK]

    def _change(self, **values: float | None) -> None:
        """Change values of this rank's status."""
        self._status = {**self._status, **values}
        self.update(self._rank, self._status)


HEARTBEAT_INTERVAL = 1.0  # seconds
HEARTBEAT_TIMEOUT = 30.0  # seconds without a heartbeat after which a process counts as lost
EXIT_GRACE = 8.0  # seconds that a process has to exit by itself, once the run has failed
FAILURE = "failure"  # key of the first failure
GLOO_TIMEOUTS = ("imed out", "Application timeout")  # in errors of an exchange and of later ones


class Watchdog:
    """Detects lost ranks in two threads: one uses the store, which may block; the other decides.

    An exception that nobody catches is passed on to the other ranks before this one exits.

    Args:
      store: the store, on a connection of its own.
      rank: rank of this process.
      world_size: the number of ranks.
    """

    def __init__(self, store: KeyValueStore, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._host, self._pid_space = socket.gethostname(), _pid_space()
        self._watched = range(1, world_size) if rank == 0 else range(1)
        now = time.monotonic()
        self._last_exchange = now  # start of the last complete exchange with the store
        self._gone: dict[int, float] = {}  # since when a rank's process is found not to exist
        self._last_heartbeats: dict[int, tuple[dict, float]] = {}  # by rank, and when it came
        self._departed: set[int] = set()
        self._heartbeats = 0
        self._store_lost = False
        self._silent: int | None = None  # process of this host that has sent no heartbeat
        self._stopped, self._hurry = threading.Event(), threading.Event()
        self._terminated: float | None = None
        self._local_failure = ""
        self.stalls = StallDetector(rank)
        """Finds ranks that stop taking steps."""
        self.exchanges = 0
        """Exchanges with other ranks that this process has started."""
        self.failure: str | None = None
        """Reason why the run cannot go on; None while it can."""

    def start(self) -> None:
        """Start watching, until `stop`, which also runs when the interpreter exits."""
        self._write_heartbeat()
        for loop in (self._talk, self._monitor):
            threading.Thread(target=loop, daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_terminate)
        atexit.register(self.stop)
        self._hook, sys.excepthook = sys.excepthook, self._on_exception

    def check(self) -> None:
        """Raise `WorkerLostError` when the run cannot go on."""
        if self.failure is not None:
            raise WorkerLostError(f"{self.failure}. {RESUME_ADVICE}")

    def fail(self, message: str) -> None:
        """Send the other ranks the reason why this one exits."""
        self._local_failure = message
        self._hurry.set()
        self._wait_for(lambda: self.failure is not None, 10 * HEARTBEAT_INTERVAL)

    def explain(self, error: Exception) -> str:
        """Return which rank is to blame for an exchange that failed with `error`.

        A killed process is found at once on the same host, and elsewhere because its heartbeat
        stops. When no rank is missing, the one that has started the fewest exchanges hangs.
        """
        timed_out = any(words in str(error) for words in GLOO_TIMEOUTS)
        patience = (
            3 * HEARTBEAT_INTERVAL if timed_out else HEARTBEAT_TIMEOUT + 5 * HEARTBEAT_INTERVAL
        )
        self._wait_for(lambda: self.failure is not None, patience)
        if self.failure is None:
            self.fail(self._hanging() or f"an exchange between the workers failed: {error}")
        return self.failure or str(error)

    def stop(self) -> None:
        """Stop watching and tell the others; rank 0, which may hold the store, leaves last."""
        if self._stopped.is_set():
            return
        other_ranks = set(range(1, self._world_size)) if self._rank == 0 else set()

        def all_departed() -> bool:
            return other_ranks <= self._departed.union(self._gone)

        self._wait_for(lambda: all_departed() or self.failure is not None, HEARTBEAT_TIMEOUT)
        self._wait_for(all_departed, 5 * HEARTBEAT_INTERVAL)
        self._stopped.set()
        self._hurry.set()
        self._wait_for(lambda: self._rank in self._departed, 10 * HEARTBEAT_INTERVAL)

    def _on_exception(self, kind: type, error: BaseException, trace: TracebackType | None) -> None:
        """Send an exception that ends this process to the other ranks."""
        self._hook(kind, error, trace)
        self.fail(f"worker {self._rank} failed: {kind.__name__}: {error}")

    def _on_terminate(self, *_: object) -> None:
        """Note the time of a SIGTERM."""
        self._terminated = time.monotonic()

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, at most `seconds`."""
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(HEARTBEAT_INTERVAL / 20)

    def _talk(self) -> None:
        """Write this rank's heartbeats and failure, and read the others'; the loop of a thread."""
        reported = False
        try:
            while not self._stopped.is_set():
                if self._hurry.wait(HEARTBEAT_INTERVAL):
                    self._hurry.clear()
                started = time.monotonic()
                self._write_heartbeat()
                reason = self.failure or self._local_failure
                if reason and not reported and self._store.add(f"{FAILURE}/first", 1) == 1:
                    self._store.put(FAILURE, reason)
                reported = reported or bool(reason)
                if self._store.has(FAILURE):
                    self.failure = self._store.get(FAILURE)
                for rank in self._watched:
                    self._read_heartbeat(rank)
                self._last_exchange = started
            self._store.put(f"left/{self._rank}", True)
        except RuntimeError:
            # The store is gone, with the process that held it: rank 0, or torchrun itself.
            self._store_lost = 0 not in self._departed and not self._stopped.is_set()
        self._departed.add(self._rank)

    def _write_heartbeat(self) -> None:
        self._heartbeats += 1
        self._store.put(f"heartbeat/{self._rank}", self._heartbeat())

    def _heartbeat(self) -> dict:
        """Return what this rank's heartbeat says: its number, process, exchanges and steps."""
        return {
            "number": self._heartbeats,
            "host": self._host,
            "pid_space": self._pid_space,
            "pid": os.getpid(),
            "exchanges": self.exchanges,
            "status": self.stalls.status(),
        }

    def _read_heartbeat(self, rank: int) -> None:
        """Read a rank's latest heartbeat, and note when it came, or that the rank has left."""
        if self._store.has(f"left/{rank}"):
            self._departed.add(rank)
        elif self._store.has(f"heartbeat/{rank}"):
            heartbeat = self._store.get(f"heartbeat/{rank}")
            previous, since = self._last_heartbeats.get(rank, (None, 0.0))
            if heartbeat != previous:
                since = time.monotonic()
                self.stalls.update(rank, heartbeat["status"])
            self._last_heartbeats[rank] = (heartbeat, since)

    def _monitor(self) -> None:
        """Wait for a failure, then end the process if it does not exit by itself."""
        while self.failure is None:
            if self._stopped.wait(HEARTBEAT_INTERVAL):
                return
            self.failure = self.failure or self._lost_worker()
            terminated = self._terminated
            if terminated is not None and time.monotonic() - terminated > 3 * HEARTBEAT_INTERVAL:
                break
        self._hurry.set()
        if self._silent is not None and _alive(self._silent):
            # A stopped process cannot exit by itself; torchrun would wait half a minute for it.
            os.kill(self._silent, signal.SIGKILL)
        if not self._stopped.wait(EXIT_GRACE):
            self._end()

    def _lost_worker(self) -> str | None:
        """Say in a sentence which process is lost; None if all is well."""
        now = time.monotonic()
        for rank, (heartbeat, since) in sorted(self._last_heartbeats.items()):
            if rank in self._departed:
                continue
            if heartbeat["pid_space"] == self._pid_space and not _alive(heartbeat["pid"]):
                self._gone.setdefault(rank, now)
            if rank in self._gone and (self._gone[rank] < self._last_exchange or self._store_lost):
                return f"{_worker(rank, heartbeat)} was killed or ended"
            silent = now - since > HEARTBEAT_TIMEOUT
            if silent and now - self._last_exchange < HEARTBEAT_TIMEOUT:
                if heartbeat["pid_space"] == self._pid_space:
                    self._silent = heartbeat["pid"]
                worker = _worker(rank, heartbeat)
                return f"{worker} has sent no heartbeat for {HEARTBEAT_TIMEOUT:.0f} s"
        unreachable = now - self._last_exchange > HEARTBEAT_TIMEOUT and 0 not in self._departed
        if self._store_lost or unreachable:
            heartbeat = self._last_heartbeats.get(0, (None, 0.0))[0]
            return (
                f"{_worker(0, heartbeat)} or torchrun has ended or hangs: one of them holds the"
                " store through which the workers exchange heartbeats"
            )
        return self._stalled_worker()

    def _stalled_worker(self) -> str | None:
        """Name the process that takes no steps; of several, the one with the fewest exchanges.

        The other ranks may be waiting for it. Only rank 0 sees all ranks; it checks itself too.
        """
        if self._rank > 0:
            return None
        stalled = [rank for rank in self.stalls.stalled() if rank not in self._departed]
        if not stalled:
            return None
        heartbeats = {rank: heartbeat for rank, (heartbeat, _) in self._last_heartbeats.items()}
        heartbeats[self._rank] = self._heartbeat()
        rank = min(stalled, key=lambda r: (heartbeats[r]["exchanges"], r))
        worker = _worker(rank, heartbeats[rank])
        return (
            f"{worker} has taken no step for {self.stalls.limit:.0f} s: it hangs, or is slower than"
            " `parallel.timeout` allows"
        )

    def _hanging(self) -> str | None:
        """Say which process has started fewer exchanges than this one."""
        behind = {
            rank: heartbeat
            for rank, (heartbeat, _) in self._last_heartbeats.items()
            if rank not in self._departed and heartbeat["exchanges"] < self.exchanges
        }
        if not behind:
            return None
        rank = min(behind, key=lambda r: (behind[r]["exchanges"], r))
        return f"{_worker(rank, behind[rank])} hangs, or is slower than `parallel.timeout` allows"

    def _end(self) -> None:
        """End the process at once, with the reason on standard error."""
        reason = self.failure or "stopped by a signal (SIGTERM)"
        sys.stderr.write(f"error: [worker {self._rank}] {reason}. {RESUME_ADVICE}\n")
        sys.stderr.flush()
        os._exit(1)


def _worker(rank: int, heartbeat: dict | None) -> str:
    """Name a rank in a message, with process and host if its heartbeat is known."""
    if heartbeat is None:
        return f"worker {rank}"
    return f"worker {rank} (process {heartbeat['pid']} on {heartbeat['host']})"


def _alive(pid: int) -> bool:
    """Return whether a process of this host runs; a zombie, which was not waited for, does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
