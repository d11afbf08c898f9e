"""The executor on one machine: a process per slot, no Java."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait

from toolkit.pipeline.cell import Attempt, Cell, Job
from toolkit.pipeline.executor import Executor, ExecutorConfig
from toolkit.pipeline.step import Partition, Step


def cpu_slots(workers: int) -> tuple[str, ...]:
    """Name the slots of `workers` processes that compute on the CPU."""
    return ("cpu",) * workers


class LocalExecutor(Executor):
    """Runs partitions in processes of this machine, first in, first out.

    Args:
      config: what holds for every executor.
      slots: the device of each worker. `("cuda:0", "cuda:1")` is the paper's scheduler of GPUs
        (C20) in small: the next partition goes to the device that is free.
    """

    def __init__(
        self, config: ExecutorConfig | None = None, slots: Sequence[str] = ("cpu",)
    ) -> None:
        super().__init__(config)
        if not slots:
            raise ValueError("an executor needs at least one slot")
        self.slots = tuple(slots)

    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[Attempt]:
        queue = deque(partitions)
        free = deque(self.slots[: len(partitions)])
        cells: dict[str, list[Cell]] = {device: [] for device in free}
        busy: dict[Cell, tuple[str, float]] = {}
        config = self.config
        try:
            while queue or busy:
                while queue and free:
                    device = free.popleft()
                    idle = cells[device]
                    cell = idle.pop() if idle else Cell(config.threads, config.scratch)
                    partition = queue.popleft()
                    cell.start(
                        Job(step, partition, out, config.store, device, config.threads, repeated)
                    )
                    limit = time.monotonic() + (config.timeout or float("inf"))
                    busy[cell] = device, limit
                for cell in self._over(busy):
                    device, limit = busy[cell]
                    if cell.connection.poll():
                        outcome = cell.finish()
                    else:
                        outcome = cell.stalled(config.timeout)
                    del busy[cell]
                    if cell.alive:
                        cells[device].append(cell)
                    else:
                        cell.close()
                    free.append(device)
                    yield outcome
        finally:
            for cell in [*busy, *(cell for idle in cells.values() for cell in idle)]:
                cell.close()

    def _over(self, busy: dict[Cell, tuple[str, float]]) -> list[Cell]:
        """Wait until some cell has answered, died or used up its time."""
        nearest = min(limit for _, limit in busy.values())
        timeout = None if nearest == float("inf") else max(0.0, nearest - time.monotonic())
        ready = wait([cell.connection for cell in busy], timeout)
        now = time.monotonic()
        return [
            cell for cell, (_, limit) in busy.items() if cell.connection in ready or limit <= now
        ]
