"""The real steps, in processes that are killed in the middle of a partition."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from sample_steps import executor_pid, misbehave

from toolkit.pipeline.step import Step


@dataclass(frozen=True)
class Mortal:
    """A step that one partition's first attempt does not survive: it writes one object, and dies.

    Name and configuration are the step's own, so that what it leaves and what it makes are too.
    """

    step: Step
    ledger: str
    """Folder that gains a file per attempt that began."""
    victim: str
    """Partition id; empty: none dies."""
    how: str
    """`kill` (the worker), `kill-executor` (Spark's), `kill-driver` (the worker's parent)."""

    @property
    def name(self):
        return self.step.name

    @property
    def config(self):
        return self.step.config

    def run(self, partition, store, out, resources):
        mine = f"{self.name} {partition.id}"
        earlier = attempts(self.ledger, mine)
        Path(self.ledger, f"{mine} {time.time_ns()} {os.getpid()}").touch()
        if partition.id == self.victim and not earlier:
            for call in ("put", "put_file"):
                setattr(store, call, self._last_words(getattr(store, call)))
        return self.step.run(partition, store, out, resources)

    def _last_words(self, put):
        def write(*arguments, **named):
            put(*arguments, **named)
            if self.how == "kill-driver":
                psutil.Process(os.getppid()).kill()
                time.sleep(600)  # until this process notices
            misbehave(self.how, self.victim)

        return write


def attempts(ledger, prefix=""):
    """How many attempts at a step, or at one of its partitions, began."""
    return sum(path.name.startswith(f"{prefix} ") for path in Path(ledger).iterdir())


class Killer:
    """An executor that kills once in every step, and notes what each step made.

    Args:
      executor: does the work.
      ledger: see `Mortal`.
      how: see `Mortal`; empty: nothing is killed.
    """

    def __init__(self, executor, ledger, how):
        self.executor, self.ledger, self.how = executor, str(ledger), how
        self.made = {}
        """By step: place, number of partitions, results."""

    def run(self, step, partitions, out):
        victim = partitions[len(partitions) // 2].id if self.how else ""
        mortal = Mortal(step, self.ledger, victim, self.how)
        results = self.executor.run(mortal, partitions, out)
        self.made[step.name] = out, len(partitions), results
        return results

    @property
    def repeated(self):
        """Attempts of each step beyond one per partition."""
        return {
            name: attempts(self.ledger, name) - count for name, (_, count, _) in self.made.items()
        }


@dataclass(frozen=True)
class Noted:
    """A step that computes on the CPU, and notes which device it was given, where and when."""

    step: Step
    ledger: str
    seconds: float
    """That every partition takes at least."""

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
