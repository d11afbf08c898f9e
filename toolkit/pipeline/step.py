"""The contract of a pipeline step: a pure function of one partition and its resources (C23).

A step reads the objects of one partition and writes objects below a prefix. What it writes depends
on its configuration and its inputs alone: not on the executor, the order of partitions, the number
of workers or how often it was tried. So a partition may run twice, even at the same time.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from toolkit.errors import ToolkitError
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.storage.digest import digest_bytes


class StepError(ToolkitError):
    """A partition that a step cannot process as a whole; an element's fault is listed instead."""


@dataclass(frozen=True)
class Partition:
    """The unit of work, of resuming and of retrying."""

    id: str
    """Unique in its step, fit for an object's name."""
    inputs: tuple[ObjectRef, ...]
    """In the order in which the step reads them."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Plain data for JSON, such as hours; `hours` feeds the progress and the summary."""

    def __post_init__(self) -> None:
        if not self.id or any(character in self.id for character in "/\\\0?#"):
            raise ValueError(f"the partition id {self.id!r} does not fit an object's name")

    def to_dict(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        inputs = [ref.to_dict() for ref in self.inputs]
        return {"id": self.id, "inputs": inputs, "about": dict(self.about)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Partition":
        """Take what `to_dict` gave."""
        inputs = tuple(ObjectRef.from_dict(ref) for ref in plain["inputs"])
        return cls(plain["id"], inputs, plain["about"])


@dataclass(frozen=True)
class Resources:
    """What a step may use while it runs one partition."""

    device: str
    """As torch names it: `cpu`, `cuda:1`, ..."""
    threads: int
    """For computing."""
    scratch: Path
    """An empty folder of its own on a local disk, removed afterwards."""


@dataclass(frozen=True)
class StepResult:
    """What a step made of one partition."""

    outputs: tuple[ObjectRef, ...]
    """What `ObjectStore.put` returned, in a fixed order."""
    failures: tuple[tuple[str, str], ...] = ()
    """(element id, reason) of every element, such as an utterance, that was left out (C26)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Plain data for JSON: hours, utterances, ...; nothing that varies from run to run."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {
            "outputs": [ref.to_dict() for ref in self.outputs],
            "failures": [list(failure) for failure in self.failures],
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "StepResult":
        """Take what `to_dict` gave."""
        return cls(
            tuple(ObjectRef.from_dict(ref) for ref in plain["outputs"]),
            tuple((element, reason) for element, reason in plain["failures"]),
            plain["about"],
        )


class Step(Protocol):
    """One step of the pipeline; picklable, since it travels to the workers."""

    name: str
    """Short, fit for an object's name, such as `extract`."""
    config: Any
    """A frozen dataclass; what it holds decides the step's output."""

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Process one partition.

        Args:
          partition: what to read.
          store: reads and writes objects, in `scratch` as well.
          out: prefix of what is written, without a slash at its end. Names below it are free but
            for those that start with `_`.
          resources: what may be used.

        Raises:
          Exception: the whole partition failed; it is tried again elsewhere.
        """


def config_plain(step: Step) -> dict[str, Any]:
    """Give a step's name and configuration as plain data for JSON."""
    return {"step": step.name, "config": json.loads(json.dumps(asdict(step.config), default=str))}


def step_digest(step: Step) -> str:
    """Give the digest of a step's name and configuration: it names the step's output."""
    return digest_bytes(json.dumps(config_plain(step), sort_keys=True).encode())


def output_prefix(step: Step, base: str) -> str:
    """Name the place of a step's output: another configuration writes elsewhere."""
    return f"{base.rstrip('/')}/{step.name}-{step_digest(step)[:12]}"


def work_digest(step: Step, partition: Partition) -> str:
    """Give the digest of all that decides a partition's result.

    An input of known digest counts by that and by its own name, wherever it lies.
    """
    inputs = [
        [ref.path.rsplit("/", 1)[-1] if ref.digest else ref.path, ref.size, ref.digest, ref.about]
        for ref in partition.inputs
    ]
    plain = {
        **config_plain(step),
        "id": partition.id,
        "inputs": inputs,
        "about": dict(partition.about),
    }
    return digest_bytes(json.dumps(plain, sort_keys=True, default=dict).encode())
