"""Whole groups, such as speakers, dealt out to parts of near-equal size (C16, C22)."""

import heapq
from collections.abc import Mapping


def deal(sizes: Mapping[str, float], count: int) -> list[list[str]]:
    """Deal groups out to `count` parts: the largest first, each to the smallest part so far.

    Args:
      sizes: positive, of each group by name, in any order and unit.
      count: of the parts, at least 1; no more parts than groups are made.

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
