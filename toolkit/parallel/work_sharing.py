"""Work sharing: batches that fast workers take over from slow ones."""

import itertools
import os
from collections.abc import Iterator

from torch.distributed import PrefixStore, Store

from toolkit.parallel.batch import Batch, DataSource
from toolkit.processes import ranks as processes

_made = itertools.count()  # all ranks construct theirs in the same order
RESERVED = 8  # last batches of a worker that are not taken over, as it prefetches some of them


class SharedBatches:
    """A data source whose ranks take as many steps as they can, together one epoch.

    Each rank goes through its own part, then takes batches from the end of the part of the rank
    with the most left. Counters in the processes' key-value store ensure that every batch is taken
    once. All ranks begin an epoch at the same step.

    Args:
      data: the batches.
      store: of the processes; by default torchrun's.
    """

    def __init__(self, data: DataSource, store: Store | None = None) -> None:
        self._data = data
        if store is None:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"batches/{attempt}/{next(_made)}", processes.connect().store)
        self._store = store

    def steps(self, epoch: int, world_size: int = 1) -> int:
        """See `DataSource`: the mean over the ranks."""
        return self._data.steps(epoch, world_size)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `DataSource`."""
        steps = self._data.steps(epoch, world_size) - start
        own = self._data.batches(epoch, start, rank, world_size)
        while self._store.add(f"{epoch}/{rank}", 1) <= steps:
            yield next(own)
        while True:
            left, other = max((self._left(epoch, r, steps), -r) for r in range(world_size))
            if left <= RESERVED:
                return
            if self._store.add(f"{epoch}/{-other}", 1) <= steps:
                last = start + steps - self._store.add(f"{epoch}/{-other}/taken", 1)
                yield next(self._data.batches(epoch, last, -other, world_size))

    def _left(self, epoch: int, rank: int, steps: int) -> int:
        return steps - self._store.add(f"{epoch}/{rank}", 0)
