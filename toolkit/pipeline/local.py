"""The local executor: worker processes on one machine, without Java."""

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait

from toolkit.pipeline.executor import Executor, ExecutorConfig
from toolkit.pipeline.step import Partition, Step
from toolkit.pipeline.worker_process import Attempt, Job, WorkerProcess


def cpu_slots(workers: int) -> tuple[str, ...]:
    """Return the slots of `workers` processes that compute on the CPU."""
    return ("cpu",) * workers


class LocalExecutor(Executor):
    """Runs partitions in processes of this machine, first in, first out.

    The processes go on from step to step, since what they import takes seconds, and end with it.

    Args:
      config: what holds for every executor.
      slots: the device of each worker. `("cuda:0", "cuda:1")` is a small version of the paper's
        GPU scheduler (C20): the next partition goes to the device that is free.
    """

    def __init__(
        self, config: ExecutorConfig | None = None, slots: Sequence[str] = ("cpu",)
    ) -> None:
        super().__init__(config)
        if not slots:
            raise ValueError("an executor needs at least one slot")
        self.slots = tuple(slots)
        self._idle: dict[str, list[WorkerProcess]] = {device: [] for device in self.slots}
        weakref.finalize(self, _close, self._idle)

    def close(self) -> None:
        """End the processes; another step would start new ones."""
        _close(self._idle)

    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[Attempt]:
        queue = deque(partitions)
        free = deque(self.slots[: len(partitions)])
        busy: dict[WorkerProcess, tuple[str, float]] = {}
        config = self.config
        try:
            while queue or busy:
                while queue and free:
                    device = free.popleft()
                    worker = self._worker(device)
                    partition = queue.popleft()
                    how = (config.store, device, config.threads, repeated, self.numeric)
                    worker.start(Job(step, partition, out, *how))
                    limit = time.monotonic() + (config.timeout or float("inf"))
                    busy[worker] = device, limit
                for worker in self._finished(busy):
                    device, limit = busy[worker]
                    if worker.connection.poll():
                        outcome = worker.finish()
                    else:
                        outcome = worker.time_out(config.timeout)
                    del busy[worker]
                    if worker.alive:
                        self._idle[device].append(worker)
                    else:
                        worker.close()
                    free.append(device)
                    yield outcome
        finally:
            for worker in busy:
                worker.close()

    def _worker(self, device: str) -> WorkerProcess:
        """Return one that waits for work, or a new one."""
        while self._idle[device]:
            worker = self._idle[device].pop()
            if worker.alive:
                return worker
            worker.close()
        return WorkerProcess(self.config.threads, self.numeric, self.config.scratch)

    def _finished(self, busy: dict[WorkerProcess, tuple[str, float]]) -> list[WorkerProcess]:
        """Wait for workers whose job is over: finished, died or at the time limit."""
        nearest = min(limit for _, limit in busy.values())
        timeout = None if nearest == float("inf") else max(0.0, nearest - time.monotonic())
        ready = wait([worker.connection for worker in busy], timeout)
        now = time.monotonic()
        return [
            worker
            for worker, (_, limit) in busy.items()
            if worker.connection in ready or limit <= now
        ]


def _close(workers: dict[str, list[WorkerProcess]]) -> None:
    for idle in workers.values():
        while idle:
            idle.pop().close()
