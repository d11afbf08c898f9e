"""Finds ranks that have stopped taking steps, in training whose ranks do not wait for each other.

Methods whose ranks wait for each other need none: an exchange with a rank that hangs times out.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SLACK = 4.0  # seconds by which what is known of other ranks may be out of date


class StallDetector:
    """Follows the progress of every rank's main thread.

    From the first step of any rank until all ranks have met at the end of their steps, every rank
    must take a step within `limit` or be waiting there for the others. A rank may be as slow as
    `limit` allows in each step.

    Args:
      rank: of this process.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._own: dict[str, Any] = {"steps": 0, "rounds": 0, "waits": False, "limit": None}
        self._seen: dict[int, tuple[dict, float]] = {}  # a rank's status, and since when it holds
        self._stepping_since: dict[int, float] = {}  # when a rank was first seen to take steps
        self._updated: dict[int, float] = {}  # when a rank's status last arrived
        self.limit = float("inf")
        """Seconds that a step may take, from the latest status of any rank that takes steps."""

    def step(self, limit: float) -> None:
        """Count a step of this rank, which promises the next one within `limit` seconds."""
        self._change(steps=self._own["steps"] + 1, limit=limit)

    def wait(self, limit: float) -> None:
        """Note that this rank waits until the others have taken their steps, until `idle`."""
        self._change(waits=True, limit=limit)

    @contextmanager
    def waiting(self, limit: float) -> Iterator[None]:
        """Wrap the wait for the other ranks at the end of all steps."""
        self.wait(limit)
        yield
        self.idle()

    def idle(self) -> None:
        """Note that this rank takes no steps for now."""
        self._change(waits=False, limit=None, rounds=self._own["rounds"] + 1)

    def status(self) -> dict:
        """Return what the other ranks must know of this one, as plain values."""
        return self._own

    def update(self, rank: int, status: dict) -> None:
        """Take in the status of a rank."""
        now = time.monotonic()
        before = self._seen.get(rank, ({}, now))[0]
        if status["limit"] is None:
            self._stepping_since.pop(rank, None)
        else:
            self.limit = status["limit"]
            self._stepping_since.setdefault(rank, now)
        self._updated[rank] = now
        if status != before:
            self._seen[rank] = (status, now)

    def stalled(self) -> list[int]:
        """List the ranks that have taken no step for `limit` seconds.

        When there is one, those within `SLACK` seconds of the limit are listed too.
        """
        self.update(self._rank, self._own)
        seen = dict(self._seen)
        newest = max(status["rounds"] for status, _ in seen.values())
        started = dict(self._stepping_since)
        stepping = [
            started[rank] for rank in seen.keys() & started if seen[rank][0]["rounds"] == newest
        ]
        if not stepping:
            return []
        idle = {  # a rank whose status does not arrive may take steps nevertheless
            rank: self._updated[rank] - max(min(stepping), since)
            for rank, (status, since) in seen.items()
            if not status["waits"]
        }
        if max(idle.values(), default=0.0) <= self.limit:
            return []
        return [rank for rank, seconds in idle.items() if seconds > self.limit - SLACK]

    def _change(self, **values: float | None) -> None:
        self._own = {**self._own, **values}
        self.update(self._rank, self._own)
