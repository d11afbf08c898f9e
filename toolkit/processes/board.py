"""What the ranks of a run write up for each other: a table of keys that one process serves."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store


class Board:
    """Plain values in one of torch's stores, whose own `get` waits for a key that is not there.

    Args:
      store: one thread at a time may use it.
      prefix: before all keys.
    """

    def __init__(self, store: "Store", prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def put(self, key: str, value: Any) -> None:
        """Write a value that JSON can hold."""
        self._store.set(f"{self._prefix}/{key}", json.dumps(value))
        self.add(f"{key}/there", 1)

    def has(self, key: str) -> bool:
        """Whether a value was written."""
        return self.add(f"{key}/there", 0) > 0

    def get(self, key: str) -> Any:
        """Read a value that is there."""
        return json.loads(self._store.get(f"{self._prefix}/{key}"))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins with 0, and return it."""
        return self._store.add(f"{self._prefix}/{key}", amount)
