"""Which ranks take steps, and which has stopped to: for work whose ranks do not wait for others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

SLACK = 4.0  # seconds by which what is known of other ranks may be late


class Paces:
    """How far the main threads of the ranks are.

    From when one rank takes a step until all have met at the end of their steps, every rank must
    take a step within `limit`, or wait there for the others. Each may be as slow as that.

    Args:
      rank: this process's.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._own = {"steps": 0, "rounds": 0, "waits": False, "limit": None}
        self._seen: dict[int, tuple[dict, float]] = {}  # by rank, and since when it is so
        self._begun: dict[int, float] = {}  # when a rank was first seen to take steps
        self._looked: dict[int, float] = {}  # when a rank gave its last sign
        self.limit = float("inf")
        """Seconds that a step may take, as was seen last."""

    def step(self, limit: float) -> None:
        """Count a step of this rank."""
        self._change(steps=self._own["steps"] + 1, limit=limit)

    @contextmanager
    def waiting(self, limit: float) -> Iterator[None]:
        """Around the wait for the others at the end of all steps."""
        self._change(waits=True, limit=limit)
        yield
        self.rest()

    def rest(self) -> None:
        """Take no steps for now."""
        self._change(waits=False, limit=None, rounds=self._own["rounds"] + 1)

    def sign(self) -> dict:
        """Return what other ranks must know, as plain values."""
        return self._own

    def see(self, rank: int, sign: dict) -> None:
        """Take notice of a rank's sign."""
        now = time.monotonic()
        before = self._seen.get(rank, ({}, now))[0]
        if sign["limit"] is None:
            self._begun.pop(rank, None)
        else:
            self.limit = sign["limit"]
            self._begun.setdefault(rank, now)
        self._looked[rank] = now
        if sign != before:
            self._seen[rank] = (sign, now)

    def stuck(self) -> list[int]:
        """List the ranks that have taken no step for `limit`, or almost, if one has not."""
        self.see(self._rank, self._own)
        seen = dict(self._seen)
        newest = max(sign["rounds"] for sign, _ in seen.values())
        begun = dict(self._begun)
        stepping = [
            begun[rank] for rank in seen.keys() & begun if seen[rank][0]["rounds"] == newest
        ]
        if not stepping:
            return []
        idle = {  # a rank that gives no sign may take steps nevertheless
            rank: self._looked[rank] - max(min(stepping), since)
            for rank, (sign, since) in seen.items()
            if not sign["waits"]
        }
        if max(idle.values(), default=0.0) <= self.limit:
            return []
        return [rank for rank, seconds in idle.items() if seconds > self.limit - SLACK]

    def _change(self, **values: float | None) -> None:
        self._own = {**self._own, **values}
        self.see(self._rank, self._own)
