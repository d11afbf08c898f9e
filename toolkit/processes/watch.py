"""Notices within a minute that a process of the run was killed or hangs, and stops the others.

Every rank writes a sign of life into the store each second. Rank 0 reads all of them, the others
read rank 0's and the verdict: a sentence that says what went wrong, after which all ranks end.

The signs come from a thread, which goes on when the main thread hangs. So they also say how many
steps the main thread has taken (`Paces`), in work whose ranks do not wait for each other.
"""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from types import TracebackType

from toolkit.processes.board import Board
from toolkit.processes.errors import CONTINUES, WorkerLostError
from toolkit.processes.paces import Paces

BEAT = 1.0  # seconds between two signs of life
SILENCE = 30.0  # seconds without one after which a process counts as lost
GRACE = 8.0  # seconds that a process has to end by itself, once the run is lost
VERDICT = "verdict"
TIMEOUTS = ("imed out", "Application timeout")  # gloo's, of an exchange and of those after it


class Watch:
    """Two threads: one talks to the store and may be kept waiting by it, one judges.

    An exception that nobody catches is told to the other ranks before this one ends.

    Args:
      board: on a connection of its own.
      rank: of this process.
      ranks: how many there are.
    """

    def __init__(self, board: Board, rank: int, ranks: int) -> None:
        self._board, self._rank, self._ranks = board, rank, ranks
        self._host, self._place = socket.gethostname(), _place()
        self._watched = range(1, ranks) if rank == 0 else range(1)
        now = time.monotonic()
        self._talked = now  # begin of the last round that is complete
        self._gone: dict[int, float] = {}  # since when a rank's process is found gone
        self._seen: dict[int, tuple[dict, float]] = {}  # last sign of a rank, and since when
        self._left: set[int] = set()
        self._beats = 0
        self._lost = False  # the store
        self._stopped, self._hurry = threading.Event(), threading.Event()
        self._terminated: float | None = None
        self._own_fault = ""
        self.paces = Paces(rank)
        """Who takes steps."""
        self.exchanges = 0
        """How many exchanges with the others this process has begun."""
        self.verdict: str | None = None
        """Why the run cannot go on."""

    def begin(self) -> None:
        """Start watching; ends with `leave`, which also runs when the interpreter exits."""
        self._beat()
        for work in (self._talk, self._judge):
            threading.Thread(target=work, daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_terminate)
        atexit.register(self.leave)
        self._hook, sys.excepthook = sys.excepthook, self._on_exception

    def check(self) -> None:
        """Raise `WorkerLostError` when the run cannot go on."""
        if self.verdict is not None:
            raise WorkerLostError(f"{self.verdict}. {CONTINUES}")

    def fail(self, message: str) -> None:
        """Tell the other ranks why this one ends."""
        self._own_fault = message
        self._hurry.set()
        self._wait_for(lambda: self.verdict is not None, 10 * BEAT)

    def explain(self, error: Exception) -> str:
        """Say which rank is to blame for an exchange that failed with `error`.

        A killed process is found at once on the same host, elsewhere by its silence. When nobody
        is missing, the one that has begun the fewest exchanges hangs.
        """
        waited = any(words in str(error) for words in TIMEOUTS)
        patience = 3 * BEAT if waited else SILENCE + 5 * BEAT
        self._wait_for(lambda: self.verdict is not None, patience)
        if self.verdict is None:
            self.fail(self._hanging() or f"an exchange between the workers failed: {error}")
        return self.verdict or str(error)

    def leave(self) -> None:
        """End watching and say so; the rank that may hold the store goes last."""
        if self._stopped.is_set():
            return
        others = set(range(1, self._ranks)) if self._rank == 0 else set()

        def alone() -> bool:
            return others <= self._left.union(self._gone)

        self._wait_for(lambda: alone() or self.verdict is not None, SILENCE)
        self._wait_for(alone, 5 * BEAT)
        self._stopped.set()
        self._hurry.set()
        self._wait_for(lambda: self._rank in self._left, 10 * BEAT)

    def _on_exception(self, kind: type, error: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, error, trace)
        self.fail(f"worker {self._rank} failed: {kind.__name__}: {error}")

    def _on_terminate(self, *_: object) -> None:
        self._terminated = time.monotonic()

    def _wait_for(self, condition, seconds: float) -> None:  # noqa: ANN001
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(BEAT / 20)

    def _talk(self) -> None:
        """Write this rank's signs of life, read the others'."""
        told = False
        try:
            while not self._stopped.is_set():
                if self._hurry.wait(BEAT):
                    self._hurry.clear()
                begun = time.monotonic()
                self._beat()
                mine = self.verdict or self._own_fault
                if mine and not told and self._board.add(f"{VERDICT}/first", 1) == 1:
                    self._board.put(VERDICT, mine)
                told = told or bool(mine)
                if self._board.has(VERDICT):
                    self.verdict = self._board.get(VERDICT)
                for rank in self._watched:
                    self._look_at(rank)
                self._talked = begun
            self._board.put(f"left/{self._rank}", True)
        except RuntimeError:
            # The store is gone, with the process that held it: rank 0, or torchrun itself.
            self._lost = 0 not in self._left and not self._stopped.is_set()
        self._left.add(self._rank)

    def _beat(self) -> None:
        self._beats += 1
        self._board.put(f"beat/{self._rank}", self._sign())

    def _sign(self) -> dict:
        return {
            "beat": self._beats,
            "host": self._host,
            "place": self._place,
            "pid": os.getpid(),
            "exchanges": self.exchanges,
            "pace": self.paces.sign(),
        }

    def _look_at(self, rank: int) -> None:
        if self._board.has(f"left/{rank}"):
            self._left.add(rank)
        elif self._board.has(f"beat/{rank}"):
            sign = self._board.get(f"beat/{rank}")
            before, since = self._seen.get(rank, (None, 0.0))
            if sign != before:
                since = time.monotonic()
                self.paces.see(rank, sign["pace"])
            self._seen[rank] = (sign, since)

    def _judge(self) -> None:
        """Give the verdict, and end the process when it does not end by itself."""
        while self.verdict is None:
            if self._stopped.wait(BEAT):
                return
            self.verdict = self.verdict or self._missing()
            if self._terminated is not None and time.monotonic() - self._terminated > 3 * BEAT:
                break
        self._hurry.set()
        if not self._stopped.wait(GRACE):
            self._end()

    def _missing(self) -> str | None:
        """Say which process is missing."""
        now = time.monotonic()
        for rank, (sign, since) in sorted(self._seen.items()):
            if rank in self._left:
                continue
            if sign["place"] == self._place and not _alive(sign["pid"]):
                self._gone.setdefault(rank, now)
            if rank in self._gone and (self._gone[rank] < self._talked or self._lost):
                return f"{_worker(rank, sign)} was killed or ended"
            if now - since > SILENCE and now - self._talked < SILENCE:
                return f"{_worker(rank, sign)} has given no sign of life for {SILENCE:.0f} s"
        if self._lost or (now - self._talked > SILENCE and 0 not in self._left):
            sign = self._seen.get(0, (None, 0.0))[0]
            return f"{_worker(0, sign)} or torchrun, one of which holds the store, is gone or hangs"
        return self._stuck()

    def _stuck(self) -> str | None:
        """Say which process takes no steps; of several, the one that has begun fewest exchanges.

        Others may wait for that one. Rank 0 alone sees all, and judges itself too.
        """
        if self._rank > 0:
            return None
        stuck = [rank for rank in self.paces.stuck() if rank not in self._left]
        if not stuck:
            return None
        signs = {rank: sign for rank, (sign, _) in self._seen.items()}
        signs[self._rank] = self._sign()
        rank = min(stuck, key=lambda r: (signs[r]["exchanges"], r))
        return (
            f"{_worker(rank, signs[rank])} has taken no step for {self.paces.limit:.0f} s: it "
            "hangs, or is slower than parallel.timeout allows"
        )

    def _hanging(self) -> str | None:
        """Say which process has begun fewer exchanges than this one."""
        behind = {
            rank: sign
            for rank, (sign, _) in self._seen.items()
            if rank not in self._left and sign["exchanges"] < self.exchanges
        }
        if not behind:
            return None
        rank = min(behind, key=lambda r: (behind[r]["exchanges"], r))
        return f"{_worker(rank, behind[rank])} hangs, or is slower than parallel.timeout allows"

    def _end(self) -> None:
        told = self.verdict or "stopped by a signal (SIGTERM)"
        sys.stderr.write(f"error: [worker {self._rank}] {told}. {CONTINUES}\n")
        sys.stderr.flush()
        os._exit(1)


def _worker(rank: int, sign: dict | None) -> str:
    if sign is None:
        return f"worker {rank}"
    return f"worker {rank} (process {sign['pid']} on {sign['host']})"


def _place() -> str:
    """Name what process ids are unique in: this start of the host, and its container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # nobody else's


def _alive(pid: int) -> bool:
    """Whether a process of this host runs; one that has ended but was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
