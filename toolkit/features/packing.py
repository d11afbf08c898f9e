"""Distributes whole groups, such as speakers, over parts of near-equal size (C16, C22)."""

import heapq
import operator
from collections.abc import Iterable, Mapping
from functools import reduce

LEAST_SHARDS = 4
"""So that several processes can work on a split of few minutes."""


def total_seconds(seconds: Iterable[float]) -> float:
    """Add in increasing order, with a rounding at every step: `sum` has none since Python 3.12."""
    return reduce(operator.add, sorted(seconds))


def balanced_shards(seconds: Mapping[str, float], hours: float) -> list[list[str]]:
    """Distribute speakers with so many seconds each over shards of about so many hours."""
    return balanced_parts(seconds, number_of_shards(total_seconds(seconds.values()), hours))


def number_of_shards(seconds: float, hours: float) -> int:
    """Return how many shards of about so many hours to cut audio into.

    They are `LEAST_SHARDS` at least, as far as there is a minute for each.
    """
    return max(1, round(seconds / (3600 * hours)), min(LEAST_SHARDS, int(seconds / 60)))


def balanced_parts(sizes: Mapping[str, float], count: int) -> list[list[str]]:
    """Distribute groups over `count` parts: the largest first, each to the smallest part so far.

    Args:
      sizes: positive size of each group by name, in any order and unit.
      count: number of parts, at least 1; there are never more parts than groups.

    Returns:
      Sorted names of each part; no part is empty.
    """
    count = min(max(count, 1), len(sizes))
    members: list[list[str]] = [[] for _ in range(count)]
    loads = [(0.0, index) for index in range(count)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, index = heapq.heappop(loads)
        members[index].append(name)
        heapq.heappush(loads, (load + sizes[name], index))
    return [sorted(part) for part in members]
