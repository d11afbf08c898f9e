"""The local executor: worker processes on one machine, without Java.

Both executors run every partition in such a process. So a crash in native code, a lack of memory or
an endless computation costs only that process and counts as a failed attempt.
"""

import contextlib
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from toolkit.environment import peak_bytes, reset_peak
from toolkit.pipeline.config import ExecutorConfig, StoreConfig
from toolkit.pipeline.executor import Executor
from toolkit.pipeline.markers import AttemptStore, Marker, TaskResult, finished
from toolkit.pipeline.objects import DamagedObjectError, redact
from toolkit.pipeline.step import Partition, Resources, Step, work_digest
from toolkit.processes.workers import block_sigint


@dataclass(frozen=True)
class Task:
    """One attempt at one partition."""

    step: Step
    partition: Partition
    out: str
    """Prefix of the step's output."""
    store: StoreConfig
    """Settings of the store."""
    device: str
    """Device in torch's notation."""
    threads: int
    """Number of threads for computing."""
    repeated: bool
    """Whether an earlier attempt may have finished without its result arriving; if so, look for its
    marker first."""
    numeric: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of the worker, see `numeric_variables`."""


class WorkerProcess:
    """Handle of a worker process, held by the process that started it.

    Args:
      threads: number of threads for computing in it.
      numeric: environment variables, `numeric_variables` of the driver.
      scratch: folder in which to make the process's scratch folder, created if missing; None: the
        system's temporary folder.
    """

    def __init__(
        self, threads: int, numeric: Mapping[str, str], scratch: Path | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        if scratch is not None:
            os.makedirs(scratch, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="partition-", dir=scratch))
        arguments = (child_end, self._scratch, threads)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        # A spawned process inherits the environment, so change it only while the process starts.
        environment = {name: os.environ.get(name) for name in numeric}
        os.environ.update(numeric)
        try:
            with block_sigint():
                self._process.start()
        finally:
            for name, value in environment.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        # Only the worker may hold its end of the pipe: then a read from ours fails once it dies.
        child_end.close()
        self._job: Task | None = None

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def start(self, job: Task) -> None:
        """Start a job; `connection` becomes readable when it is over."""
        self._job = job
        # A worker that has died is reported by `finish`.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps(job))

    def finish(self) -> TaskResult:
        """Wait for the job and return its outcome.

        A worker that is not `alive` afterwards must be replaced: it died, or its job failed. After
        a failure the process is ended: it may be broken, for instance by a CUDA error, and then the
        next attempt would fail too.
        """
        try:
            answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):  # the pipe closed without an answer
            self._process.join(5)
            code = self._process.exitcode
            cause = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            answer = f"the worker process died ({cause})"
        if isinstance(answer, str):  # why there is no result
            answer = TaskResult(self._job.partition.id, None, answer)
        if answer.result is None:
            self.close()
        return answer

    def run(self, job: Task, timeout: float | None) -> TaskResult:
        """Run one job; a job that takes longer than `timeout` seconds fails and ends the worker."""
        self.start(job)
        if self.connection.poll(timeout):
            return self.finish()
        return self.time_out(timeout)

    def time_out(self, timeout: float | None) -> TaskResult:
        """End the worker and report its job as failed."""
        self.close()
        return TaskResult(self._job.partition.id, None, f"not done after {timeout:g} s")

    @property
    def alive(self) -> bool:
        """Whether another job can be started."""
        return self._process.is_alive() and not self.connection.closed

    def close(self) -> None:
        """Kill the process, even if it is computing, and remove its scratch folder."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _serve(connection: Connection, scratch: Path, threads: int) -> None:
    """Run the jobs that arrive on a connection until it closes; the loop of a worker process."""
    # A parent that is killed cannot end its workers: they watch it.
    threading.Thread(target=_exit_with_parent, args=(scratch,), daemon=True).start()
    while True:
        try:
            data = connection.recv_bytes()
        except EOFError:
            return
        try:
            job = pickle.loads(data)
        except Exception as error:  # the step's module cannot be imported here
            answer = redact(f"the step cannot be loaded: {error!r}")
        else:
            # Environment variables set BLAS's threads; a step may have changed torch's since.
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(threads)
            answer = attempt(job, scratch)
        connection.send_bytes(pickle.dumps(answer))


def _exit_with_parent(scratch: Path) -> None:
    """Remove the scratch folder and exit once the parent process is gone."""
    multiprocessing.parent_process().join()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def attempt(job: Task, scratch: Path) -> TaskResult:
    """Run one partition and create its marker, or take over what another attempt has committed."""
    reset_peak()
    start, folder = time.perf_counter(), scratch / "work"
    cpu_start = time.process_time()
    store = AttemptStore(job.store, job.out, folder)
    partition = job.partition

    def statistics() -> dict[str, Any]:
        """Return the statistics of this attempt, for `TaskResult.run`."""
        calls = store.counts.to_dict()
        return {
            "hours": partition.about.get("hours"),
            "seconds": round(time.perf_counter() - start, 3),
            "cpu_seconds": round(time.process_time() - cpu_start, 3),
            "store_seconds": round(calls.pop("seconds"), 3),
            "peak_bytes": peak_bytes(),
            "device": job.device,
            **calls,
        }

    try:
        # 1. An earlier attempt may have finished although its answer was lost.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        marker = None
        if job.repeated:
            marker = finished(store, job.step, partition, job.out, job.numeric)
        if marker is not None:
            return TaskResult(partition.id, marker.result, run=marker.run)
        # 2. Compute, and commit by creating the marker. If another attempt was first, `commit`
        # returns its marker, and its objects count.
        resources = Resources(job.device, job.threads, folder)
        result = job.step.run(partition, store, job.out, resources)
        digest = work_digest(job.step, partition)
        marker_of_attempt = Marker(digest, result, statistics(), job.numeric)
        marker = marker_of_attempt.commit(store, job.out, partition.id)
    except Exception as error:
        reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))
        trace = redact(traceback.format_exc())
        damaged = error.path if isinstance(error, DamagedObjectError) else None
        return TaskResult(partition.id, None, reason, trace, statistics(), damaged=damaged)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    run = statistics() if marker is marker_of_attempt else marker.run
    return TaskResult(partition.id, marker.result, run=run)


def cpu_slots(workers: int) -> tuple[str, ...]:
    """Return a slot "cpu" for each of `workers` processes."""
    return ("cpu",) * workers


class LocalExecutor(Executor):
    """Runs partitions in processes of this machine, first in, first out.

    The processes are kept from step to step, since their imports take seconds, and end with the
    executor.

    Args:
      config: settings that all executors share.
      slots: the device of each worker. `("cuda:0", "cuda:1")` is a small version of the paper's
        GPU scheduler (C20): the next partition goes to the device that is free.
    """

    def __init__(
        self, config: ExecutorConfig | None = None, slots: Sequence[str] = ("cpu",)
    ) -> None:
        super().__init__(config)
        if not slots:
            raise ValueError("`slots` is empty, but an executor needs at least one device")
        self.slots = tuple(slots)
        self._idle: dict[str, list[WorkerProcess]] = {device: [] for device in self.slots}
        weakref.finalize(self, _close, self._idle)

    def close(self) -> None:
        """End the processes; another step would start new processes."""
        _close(self._idle)

    def _attempts(
        self, step: Step, partitions: Sequence[Partition], out: str, repeated: bool
    ) -> Iterator[TaskResult]:
        # `free` has the devices without a job, `busy` each worker's device and time limit.
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
                    task = Task(
                        step,
                        partition,
                        out,
                        config.store,
                        device,
                        config.threads,
                        repeated,
                        self.numeric,
                    )
                    worker.start(task)
                    limit = time.monotonic() + (config.timeout or float("inf"))
                    busy[worker] = device, limit
                for worker in self._finished(busy):
                    device, limit = busy[worker]
                    # Readable: an answer, or the end of a worker that died. Otherwise time is up.
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
        """Return an idle worker of a device, or start one."""
        while self._idle[device]:
            worker = self._idle[device].pop()
            if worker.alive:
                return worker
            worker.close()
        return WorkerProcess(self.config.threads, self.numeric, self.config.scratch)

    def _finished(self, busy: dict[WorkerProcess, tuple[str, float]]) -> list[WorkerProcess]:
        """Wait for and return workers that finished their job, died or reached the time limit."""
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
    """Close the idle workers of all devices."""
    for idle in workers.values():
        while idle:
            idle.pop().close()
