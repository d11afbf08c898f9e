"""Uniform sampling of metadata records to a number of hours (C16).

Every record has a random number of its own, a hash of the seed and its id, and is chosen when
that lies below a threshold. So a choice depends on nothing but the record: not on the order, the
partition or the other records; and a smaller sample is a part of the larger one. As in the paper
a little too much is sampled from what is known of the average length; the surplus then goes by
lowering the threshold to where a histogram of the sampled hours reaches the target.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from toolkit.storage.reading import checked

RANGE = 1 << 64
"""Random numbers are from 0 to RANGE - 1."""
BINS = 1024
MICROSECONDS = 1_000_000
ID_FIRST = b'{"id": "'


def draw(seed: int) -> Callable[[str], int]:
    """Give the function that draws a record's random number from its id."""
    keyed = hashlib.blake2b(digest_size=8, key=str(seed).encode())

    def number(id: str) -> int:
        hasher = keyed.copy()
        hasher.update(id.encode())
        return int.from_bytes(hasher.digest(), "big")

    return number


def id_of(line: bytes) -> str:
    """Read a record's id without parsing the rest of the line where the id stands first.

    Raises:
      ValueError, RecursionError: the line is no record.
    """
    if line.startswith(ID_FIRST):
        end = line.index(b'"', len(ID_FIRST))
        name = line[len(ID_FIRST) : end]
        if b"\\" not in name:
            return name.decode()
    return checked(json.loads(line), {"id": str}, "the line")["id"]


@dataclass(frozen=True)
class Histogram:
    """Sampled audio by random number, in equal bins from 0 to `top`; integers merge exactly."""

    top: int
    """The sampling threshold."""
    microseconds: tuple[int, ...]
    """[BINS] of audio."""

    @property
    def hours(self) -> float:
        """All that was sampled."""
        return sum(self.microseconds) / (3600 * MICROSECONDS)

    def threshold(self, hours: float) -> int | None:
        """Find the threshold below which `hours` were sampled; None: there are fewer.

        Exact to a bin and, within it, as uniform numbers are: 1 M hours to about an hour.
        """
        wanted = hours * 3600 * MICROSECONDS
        below = 0
        for number, amount in enumerate(self.microseconds):
            if amount and below + amount >= wanted:
                return round(self.top * (number + (wanted - below) / amount) / BINS)
            below += amount
        return None


def bin_of(number: int, top: int) -> int:
    """Give the bin of a random number below `top`."""
    return number * BINS // top


def merge(histograms: Iterable[Sequence[int]], top: int) -> Histogram:
    """Add up the bins of several partitions."""
    sums = [0] * BINS
    for bins in histograms:
        sums = [a + b for a, b in zip(sums, bins, strict=True)]
    return Histogram(top, tuple(sums))


def first_threshold(hours: float, lake_hours: float, oversampling: float) -> int:
    """Choose how much to sample at first from what the lake is said to hold."""
    return min(RANGE, round(RANGE * min(1.0, oversampling * hours / lake_hours)))
