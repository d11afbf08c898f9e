"""Random choices of mutations: by hypothesis, or by a faster random generator."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

Item = TypeVar("Item")


class Choices(Protocol):
    """The random choices of a mutation."""

    def among(self, items: Sequence[Item]) -> Item:
        """Return one of `items`."""

    def number(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""

    def junk(self, low: int, high: int) -> bytes:
        """Return from `low` to `high` bytes."""


class Drawn:
    """Choices drawn by hypothesis, which shrinks failing examples."""

    def __init__(self, draw: Callable) -> None:
        self._draw = draw

    def among(self, items: Sequence[Item]) -> Item:
        """See `Choices`."""
        return self._draw(st.sampled_from(items))

    def number(self, low: int, high: int) -> int:
        """See `Choices`."""
        return self._draw(st.integers(low, high))

    def junk(self, low: int, high: int) -> bytes:
        """See `Choices`."""
        return self._draw(st.binary(min_size=low, max_size=high))


class Rolled:
    """Choices of a random generator, reproducible by seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def among(self, items: Sequence[Item]) -> Item:
        """See `Choices`."""
        return items[int(self._random.random() * len(items))]

    def number(self, low: int, high: int) -> int:
        """See `Choices`."""
        return low + int(self._random.random() * (high - low + 1))

    def junk(self, low: int, high: int) -> bytes:
        """See `Choices`."""
        return self._random.randbytes(self.number(low, high))
