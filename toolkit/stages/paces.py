"""Which ranks take steps, and which has stopped to: for work whose ranks do not wait for others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

SLACK = 4.0  # seconds by which what is known of other ranks may be late


class Paces:
    """How far the main threads of the ranks are.

    While this rank takes steps, or waits for the others at the end of them, every rank must take a
    step within `limit`, or wait there too. Each may be as slow as that.

    Args:
      rank: this process's.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._begun: float | None = None  # when this rank was found to take steps
        self._own = {"steps": 0, "rounds": 0, "waits": False}
        self._seen: dict[int, tuple[dict, float]] = {}  # by rank, and since when it is so
        self._looked: dict[int, float] = {}  # when a rank gave its last sign
        self.limit = float("inf")
        """Seconds that a step may take."""

    def step(self, limit: float) -> None:
        """Count a step of this rank."""
        self._begin(limit)
        self._change(steps=self._own["steps"] + 1)

    @contextmanager
    def waiting(self, limit: float) -> Iterator[None]:
        """Around the wait for the others at the end of all steps."""
        self._begin(limit)
        self._change(waits=True)
        yield
        self.rest()

    def rest(self) -> None:
        """Take no steps for now."""
        self._begun = None
        self._change(waits=False, rounds=self._own["rounds"] + 1)

    def sign(self) -> dict:
        """Return what other ranks must know, as plain values."""
        return self._own

    def see(self, rank: int, sign: dict) -> None:
        """Take notice of another rank's sign."""
        now = time.monotonic()
        if rank not in self._seen or self._seen[rank][0] != sign:
            self._seen[rank] = (sign, now)
        self._looked[rank] = now

    def stuck(self) -> list[int]:
        """List the ranks that have taken no step for `limit`, or almost, if one has not."""
        begun = self._begun
        if begun is None:
            return []
        self.see(self._rank, self._own)
        idle = {  # a rank that gives no sign may take steps nevertheless
            rank: self._looked[rank] - max(begun, since)
            for rank, (sign, since) in list(self._seen.items())
            if not sign["waits"] and rank in self._looked
        }
        if max(idle.values(), default=0.0) <= self.limit:
            return []
        return [rank for rank, seconds in idle.items() if seconds > self.limit - SLACK]

    def _begin(self, limit: float) -> None:
        self.limit = limit
        if self._begun is None:
            self._begun = time.monotonic()

    def _change(self, **values: int) -> None:
        self._own = {**self._own, **values}
        self.see(self._rank, self._own)
