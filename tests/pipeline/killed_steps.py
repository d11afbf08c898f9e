"""Wrappers of the real steps: processes are killed within a partition, or devices are logged."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from sample_steps import executor_pid, misbehave

from toolkit.pipeline.step import Step

NAMED, KILLED = "named", "killed "
"""Files of a ledger: whom to kill, and what its names begin with where that is done."""


@dataclass(frozen=True)
class KilledStep:
    """A step whose first attempt at one partition writes one object and is then killed.

    Name and configuration are those of the wrapped step, and so are its markers and outputs.
    """

    step: Step
    ledger: str
    """Folder in which every started attempt creates a file."""
    victim: str
    """Id of the partition; empty: none is killed."""
    fault: str
    """`kill` (the worker), `kill-executor` (Spark's), `kill-driver` (the worker's parent),
    `kill-named` (the process whose id is in the ledger's file `named`)."""

    @property
    def name(self):
        return self.step.name

    @property
    def config(self):
        return self.step.config

    def run(self, partition, store, out, resources):
        attempt_name = f"{self.name} {partition.id}"
        earlier = attempts(self.ledger, attempt_name)
        Path(self.ledger, f"{attempt_name} {time.time_ns()} {os.getpid()}").touch()
        if partition.id == self.victim and not earlier:
            for call in ("put", "put_file"):
                setattr(store, call, self._kill_after(getattr(store, call), attempt_name))
        return self.step.run(partition, store, out, resources)

    def _kill_after(self, put, attempt_name):
        def write(*arguments, **keywords):
            put(*arguments, **keywords)
            if self.fault == "kill-driver":
                psutil.Process(os.getppid()).kill()
                time.sleep(600)  # until this process notices
            elif self.fault != "kill-named":
                misbehave(self.fault, self.victim)
            elif not attempts(self.ledger, KILLED + attempt_name):
                Path(self.ledger, f"{KILLED}{attempt_name} ").touch()
                psutil.Process(int(Path(self.ledger, NAMED).read_text())).kill()

        return write


def attempts(ledger, prefix=""):
    """Count the started attempts at a step, or at one of its partitions."""
    return sum(path.name.startswith(f"{prefix} ") for path in Path(ledger).iterdir())


class KillingExecutor:
    """An executor that kills one process per step, and records each step's results.

    Args:
      executor: runs the steps.
      ledger: see `KilledStep`.
      fault: see `KilledStep`; empty: nothing is killed.
    """

    def __init__(self, executor, ledger, fault):
        self.executor, self.ledger, self.fault = executor, str(ledger), fault
        self.runs = {}
        """By step: output prefix, number of partitions, results."""

    def run(self, step, partitions, out):
        victim = partitions[len(partitions) // 2].id if self.fault else ""
        killed = KilledStep(step, self.ledger, victim, self.fault)
        results = self.executor.run(killed, partitions, out)
        self.runs[step.name] = out, len(partitions), results
        return results

    @property
    def repeated(self):
        """Attempts of each step beyond one per partition."""
        return {
            name: attempts(self.ledger, name) - count for name, (_, count, _) in self.runs.items()
        }


@dataclass(frozen=True)
class LoggedStep:
    """A step that computes on the CPU, and logs the device it was given, the process and time."""

    step: Step
    ledger: str
    seconds: float
    """Least duration of a partition."""

    @property
    def name(self):
        return self.step.name

    @property
    def config(self):
        return self.step.config

    def run(self, partition, store, out, resources):
        start = time.time_ns()
        result = self.step.run(partition, store, out, replace(resources, device="cpu"))
        time.sleep(self.seconds)
        device = f"{executor_pid()}-{resources.device.replace(':', '_')}"
        Path(self.ledger, f"{partition.id} {device} {start} {time.time_ns()}").touch()
        return result
