"""A worker process that runs partitions one at a time and isolates their failures.

Both executors run every partition in such a process: a crash in native code, memory that runs out
or a computation that never ends costs that process alone, and is reported as a failed attempt.
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from toolkit.environment import peak_bytes, reset_peak
from toolkit.pipeline.attempt_store import AttemptStore
from toolkit.pipeline.faults import redact
from toolkit.pipeline.markers import Marker, finished
from toolkit.pipeline.objects import DamagedObjectError, StoreConfig
from toolkit.pipeline.step import Partition, Resources, Step, StepResult, work_digest
from toolkit.processes.workers import block_sigint
from toolkit.startup import BLAS_VARIABLE, THREAD_VARIABLES, blas_setting


@dataclass(frozen=True)
class Job:
    """One attempt at one partition."""

    step: Step
    partition: Partition
    out: str
    store: StoreConfig
    device: str
    threads: int
    repeated: bool
    """Whether an earlier attempt may have finished without its result arriving: then its marker is
    looked for first."""
    numeric: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of the worker, see `numeric_variables`."""


@dataclass(frozen=True)
class Attempt:
    """The outcome of a job."""

    partition: str
    result: StepResult | None
    """None after a failure."""
    reason: str = ""
    """Why it failed, in one line."""
    trace: str = ""
    """Traceback of the failure."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """`hours` of the partition, where it says so; `seconds`, `cpu_seconds`, and of the former
    `store_seconds` in calls of the store; `peak_bytes` (the process's peak memory),
    `device`, and the store's calls and bytes."""
    counted: bool = True
    """Whether a failure counts towards the partition's number of tries."""
    damaged: str | None = None
    """Path of the object, if it failed because that is damaged."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        result = None if self.result is None else self.result.to_dict()
        return {**vars(self), "result": result, "run": dict(self.run)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Attempt":
        """Restore the object from `to_dict`."""
        result = plain["result"]
        return cls(**{**plain, "result": None if result is None else StepResult.from_dict(result)})


def numeric_variables(threads: int) -> dict[str, str]:
    """Return the environment variables on which the last bits of a worker's results depend.

    They are set before its interpreter starts, since libraries read them when they are loaded; so
    it does not matter what the process that starts it has loaded or set.
    """
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), BLAS_VARIABLE: blas_setting()}


class WorkerProcess:
    """Handle of a worker process, held by the process that started it.

    Args:
      threads: number of threads for computing in it.
      numeric: environment variables, `numeric_variables` of the driver.
      scratch: folder in which its scratch folder is made, made too where it is missing; None: the
        system's.
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
        before = {name: os.environ.get(name) for name in numeric}
        os.environ.update(numeric)
        try:
            with block_sigint():
                self._process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        child_end.close()
        self._job: Job | None = None

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def start(self, job: Job) -> None:
        """Start a job; `connection` becomes readable when it is over."""
        self._job = job
        # A worker that has died is reported by `finish`.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps(job))

    def finish(self) -> Attempt:
        """Wait for the job and return its outcome.

        A worker that died must be replaced (`alive`). So must one whose job failed, which ends: it
        may be the process that is broken, as by an error of CUDA, and the next attempt fail too.
        """
        try:
            answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            answer = f"the worker process died ({how})"
        if isinstance(answer, str):
            answer = Attempt(self._job.partition.id, None, answer)
        if answer.result is None:
            self.close()
        return answer

    def run(self, job: Job, timeout: float | None) -> Attempt:
        """Run one job; one that takes longer than `timeout` seconds fails and ends the worker."""
        self.start(job)
        if self.connection.poll(timeout):
            return self.finish()
        return self.time_out(timeout)

    def time_out(self, timeout: float | None) -> Attempt:
        """End the worker and report its job as failed."""
        self.close()
        return Attempt(self._job.partition.id, None, f"not done after {timeout:g} s")

    @property
    def alive(self) -> bool:
        """Whether another job can be started."""
        return self._process.is_alive() and not self.connection.closed

    def close(self) -> None:
        """Kill the process, whatever it does, and remove its scratch folder."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _serve(connection: Connection, scratch: Path, threads: int) -> None:
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
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(threads)
            answer = attempt(job, scratch)
        connection.send_bytes(pickle.dumps(answer))


def _exit_with_parent(scratch: Path) -> None:
    multiprocessing.parent_process().join()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def attempt(job: Job, scratch: Path) -> Attempt:
    """Run one partition and create its marker, or take over what another attempt has committed."""
    reset_peak()
    start, folder = time.perf_counter(), scratch / "work"
    cpu_start = time.process_time()
    store = AttemptStore(job.store, job.out, folder)
    partition = job.partition

    def statistics() -> dict[str, Any]:
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
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        done = (store, job.step, partition, job.out, job.numeric)
        marker = finished(*done) if job.repeated else None
        if marker is not None:
            return Attempt(partition.id, marker.result, run=marker.run)
        resources = Resources(job.device, job.threads, folder)
        result = job.step.run(partition, store, job.out, resources)
        work = work_digest(job.step, partition)
        mine = Marker(work, result, statistics(), job.numeric)
        marker = mine.commit(store, job.out, partition.id)
    except Exception as error:
        reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))
        trace = redact(traceback.format_exc())
        damaged = error.path if isinstance(error, DamagedObjectError) else None
        return Attempt(partition.id, None, reason, trace, statistics(), damaged=damaged)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    run = statistics() if marker is mine else marker.run
    return Attempt(partition.id, marker.result, run=run)
