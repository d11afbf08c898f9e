"""Uniform sampling of metadata records to a number of hours (C16).

Every record has a random number, a hash of the seed and its id, and is chosen if that is below a
threshold. So the choice of a record does not depend on the order, the partition or the other
records, and a smaller sample is a subset of a larger one. As in the paper, slightly too much is
sampled at first, by an estimate of the average length; then the threshold is lowered to where a
histogram of the sampled hours reaches the target.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from toolkit.storage.reading import validated

RANGE = 1 << 64
"""Random numbers are from 0 to RANGE - 1."""
BINS = 1024
MICROSECONDS = 1_000_000
ID_FIRST = b'{"id": "'


def random_numbers(seed: int) -> Callable[[str], int]:
    """Return the function that computes a record's random number from its id."""
    keyed = hashlib.blake2b(digest_size=8, key=str(seed).encode())

    def number(id: str) -> int:
        hasher = keyed.copy()
        hasher.update(id.encode())
        return int.from_bytes(hasher.digest(), "big")

    return number


def id_of(line: bytes) -> str:
    """Read a record's id, without parsing the rest of the line if the id is its first field.

    Raises:
      ValueError, RecursionError: the line is no record.
    """
    if line.startswith(ID_FIRST):
        end = line.index(b'"', len(ID_FIRST))
        name = line[len(ID_FIRST) : end]
        if b"\\" not in name:
            return name.decode()
    return validated(json.loads(line), {"id": str}, "the line")["id"]


@dataclass(frozen=True)
class Histogram:
    """Duration of the sampled audio by random number; as integers, histograms merge exactly."""

    top: int
    """The sampling threshold; the bins divide 0 to `top` equally."""
    microseconds: tuple[int, ...]
    """[BINS] duration of the audio in each bin."""

    @property
    def hours(self) -> float:
        """Hours of all sampled audio."""
        return sum(self.microseconds) / (3600 * MICROSECONDS)

    def threshold(self, hours: float) -> int | None:
        """Find the threshold below which `hours` were sampled; None: fewer were sampled.

        It is interpolated within a bin: for 1 M hours the error is about one hour.
        """
        target = hours * 3600 * MICROSECONDS
        below = 0
        for number, amount in enumerate(self.microseconds):
            if amount and below + amount >= target:
                return round(self.top * (number + (target - below) / amount) / BINS)
            below += amount
        return None


def bin_of(number: int, top: int) -> int:
    """Return the bin of a random number below `top`."""
    return number * BINS // top


def merge(histograms: Iterable[Sequence[int]], top: int) -> Histogram:
    """Add up the bins of several partitions."""
    sums = [0] * BINS
    for bins in histograms:
        sums = [a + b for a, b in zip(sums, bins, strict=True)]
    return Histogram(top, tuple(sums))


def first_threshold(hours: float, lake_hours: float, oversampling: float) -> int:
    """Return the first sampling threshold, given the (estimated) hours of the lake."""
    return min(RANGE, round(RANGE * min(1.0, oversampling * hours / lake_hours)))
