"""Batches that fast workers take over from slow ones."""

import itertools
import os
from collections.abc import Iterator

from torch.distributed import PrefixStore, Store

from toolkit.parallel.batch import Batch, DataSource
from toolkit.processes import ranks as processes

_made = itertools.count()  # all ranks make theirs in the same order
LEFT = 8  # batches that are left to a worker, which reads some of them ahead


class SharedBatches:
    """A data source whose ranks take as many steps as they can; all make one epoch together.

    Each rank goes through its own part; then it takes batches from the end of the part of whoever
    has most left. A batch is taken once, which counters in the store of the processes see to. All
    ranks begin an epoch at the same step.

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

    def steps(self, epoch: int, ranks: int = 1) -> int:
        """See `DataSource`: the mean over the ranks."""
        return self._data.steps(epoch, ranks)

    def batches(self, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """See `DataSource`."""
        steps = self._data.steps(epoch, ranks) - start
        own = self._data.batches(epoch, start, rank, ranks)
        while self._store.add(f"{epoch}/{rank}", 1) <= steps:
            yield next(own)
        while True:
            left, other = max((self._left(epoch, r, steps), -r) for r in range(ranks))
            if left <= LEFT:
                return
            if self._store.add(f"{epoch}/{-other}", 1) <= steps:
                last = start + steps - self._store.add(f"{epoch}/{-other}/taken", 1)
                yield next(self._data.batches(epoch, last, -other, ranks))

    def _left(self, epoch: int, rank: int, steps: int) -> int:
        return steps - self._store.add(f"{epoch}/{rank}", 0)
