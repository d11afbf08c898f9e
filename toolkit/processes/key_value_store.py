"""A key-value store that the ranks of a run share: one process serves it, all read and write."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store


class KeyValueStore:
    """JSON values in one of torch's stores, whose own `get` blocks until the key has been set.

    Args:
      store: must be used by one thread at a time.
      prefix: put before every key.
    """

    def __init__(self, store: "Store", prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def put(self, key: str, value: Any) -> None:
        """Write a value that JSON can hold."""
        self._store.set(f"{self._prefix}/{key}", json.dumps(value))
        self.add(f"{key}/there", 1)

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self.add(f"{key}/there", 0) > 0

    def get(self, key: str) -> Any:
        """Return the value of a key that has one."""
        return json.loads(self._store.get(f"{self._prefix}/{key}"))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return its new value."""
        return self._store.add(f"{self._prefix}/{key}", amount)
