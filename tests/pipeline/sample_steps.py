"""Steps for tests: small, pure, and able to misbehave once or always."""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.pipeline.step import StepResult


@dataclass(frozen=True)
class ReverseConfig:
    """Delays and faults of partitions; only `repeat` changes what the step writes."""

    repeat: int = 1
    seconds: float = 0.0
    ledger: str = ""  # folder that gains a file per attempt that began
    faults: Mapping[str, str] = field(default_factory=dict)
    # partition id -> kill, hang, raise (always); kill-once, hang-once, kill-executor-once
    name: str = "reverse"


class Reverse:
    """Reverses each input's bytes; an input that holds `bad` is left out."""

    def __init__(self, config=None):
        self.config = config or ReverseConfig()
        self.name = self.config.name

    def run(self, partition, store, out, resources):
        attempt = self._note(partition, resources)
        fault = self.config.faults.get(partition.id, "")
        if fault and (not fault.endswith("-once") or attempt == 1):
            misbehave(fault.removesuffix("-once"), partition.id)
        time.sleep(self.config.seconds)
        outputs, failures = [], []
        for ref in partition.inputs:
            data = store.get(ref)
            name = ref.path.rsplit("/", 1)[-1]
            if b"bad" in data:
                failures.append((name, "holds\nbad"))
                continue
            content = data[::-1] * self.config.repeat
            path = f"{out}/{partition.id}/{name}"
            if resources.scratch.exists() and len(content) % 2:
                (resources.scratch / name).write_bytes(content)
                outputs.append(store.put_file(resources.scratch / name, path))
            else:
                outputs.append(store.put(path, content))
        return StepResult(tuple(outputs), tuple(failures), {"bytes": sum(o.size for o in outputs)})

    def _note(self, partition, resources):
        if not self.config.ledger:
            return 1
        folder = Path(self.config.ledger)
        name = f"{partition.id} {time.time_ns()} {os.getpid()} {resources.device.replace(':', '_')}"
        (folder / name).touch()
        return sum(path.name.split()[0] == partition.id for path in folder.iterdir())


class Unlike:
    """Writes two objects that name their attempt; the first attempt may die between them."""

    name = "unlike"

    def __init__(self, config):
        self.config = config

    _note = Reverse._note

    def run(self, partition, store, out, resources):
        attempt = self._note(partition, resources)
        first = store.put(f"{out}/parts/{partition.id}.first", b"attempt %d" % attempt)
        fault = self.config.faults.get(partition.id)
        if fault and attempt == 1:
            misbehave(fault, partition.id)
        second = store.put(f"{out}/parts/{partition.id}.second", b"attempt %d" % attempt)
        return StepResult((first, second))


class Environment:
    """Writes the named environment variables of its worker."""

    name = "environment"

    def __init__(self, *names):
        self.config = ReverseConfig(name=" ".join(names))

    def run(self, partition, store, out, resources):
        variables = {name: os.environ.get(name) for name in self.config.name.split()}
        return StepResult((store.put(f"{out}/{partition.id}", repr(variables).encode()),))


class Hungry:
    """Needs 200 MB for the first partition, and nothing for the others."""

    name = "hungry"
    config = ReverseConfig()

    def run(self, partition, store, out, resources):
        size = 200_000_000 if partition.id == "p000" else 1
        memory = b"x" * size
        return StepResult((store.put(f"{out}/{partition.id}", memory[:1]),))


class Breaking:
    """Breaks the first process: all that it runs fails from then on, as after an error of CUDA."""

    name = "breaking"
    broken = False

    def __init__(self, ledger):
        self.config = ReverseConfig(ledger=ledger)

    def run(self, partition, store, out, resources):
        first = Path(self.config.ledger, "broken")
        if not first.exists():
            first.touch()
            Breaking.broken = True
        if Breaking.broken:
            raise RuntimeError("this process is broken")
        return StepResult((store.put(f"{out}/{partition.id}", b"done"),))


def misbehave(fault, name):
    if fault == "raise":
        raise RuntimeError(f"{name} is beyond help, password=hunter2")
    if fault == "hang":
        time.sleep(600)
    if fault == "kill-executor":
        os.kill(executor_pid(), signal.SIGKILL)
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


def executor_pid():
    """The JVM of the Spark executor that this process works for."""
    import psutil

    for process in psutil.Process().parents():
        if "java" in process.name() and any("CoarseGrained" in a for a in process.cmdline()):
            return process.pid
    raise RuntimeError("no executor among the ancestors")
