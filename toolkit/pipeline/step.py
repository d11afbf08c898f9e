"""The interface of a pipeline step: a pure function of one partition and its resources (C23).

A step reads the objects of one partition and writes objects below a prefix. What it writes depends
on its configuration and its inputs alone: not on the executor, the order of partitions, the number
of workers or how often it was tried. So a partition may run twice, even at the same time.

`FusedStep` runs several steps as one, so that intermediate data never leaves the worker (C22).
`output_path` names the output of each configuration and input, so that runs never mix.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from toolkit.errors import ToolkitError
from toolkit.pipeline.objects import ObjectRef, ObjectStore, local_path
from toolkit.storage.digests import digest_bytes


class StepError(ToolkitError):
    """A partition cannot be processed at all; faults of single elements are listed instead."""


@dataclass(frozen=True)
class Partition:
    """The unit of work, of resuming and of retrying."""

    id: str
    """Id, unique within the step and valid as part of an object's name."""
    inputs: tuple[ObjectRef, ...]
    """Objects in the order in which the step reads them."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Metadata, plain data for JSON; `hours` is used by the progress line and the summary."""

    def __post_init__(self) -> None:
        if not self.id or any(character in self.id for character in "/\\\0?#"):
            raise ValueError(
                f"the partition id {self.id!r} is empty or has a character that object names "
                "must not contain"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        inputs = [ref.to_dict() for ref in self.inputs]
        return {"id": self.id, "inputs": inputs, "about": dict(self.about)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Partition":
        """Restore a partition from the result of `to_dict`."""
        inputs = tuple(ObjectRef.from_dict(ref) for ref in values["inputs"])
        return cls(values["id"], inputs, values["about"])


@dataclass(frozen=True)
class Resources:
    """Device, threads and scratch folder that a step may use for one partition."""

    device: str
    """Device in torch's notation: `cpu`, `cuda:1`, ..."""
    threads: int
    """Number of threads for computing."""
    scratch: Path
    """An empty folder on a local disk for this partition alone, removed afterwards."""


@dataclass(frozen=True)
class StepResult:
    """The result of a step on one partition."""

    outputs: tuple[ObjectRef, ...]
    """The objects written, as `ObjectStore.put` returned them, in a fixed order."""
    failures: tuple[tuple[str, str], ...] = ()
    """(element id, reason) of every element, such as an utterance, that was left out (C26)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Metadata, plain data for JSON: hours, utterances, ...; nothing that varies between runs."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "outputs": [ref.to_dict() for ref in self.outputs],
            "failures": [list(failure) for failure in self.failures],
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StepResult":
        """Restore a step's result from the result of `to_dict`."""
        return cls(
            tuple(ObjectRef.from_dict(ref) for ref in values["outputs"]),
            tuple((element, reason) for element, reason in values["failures"]),
            values["about"],
        )


class Step(Protocol):
    """One step of the pipeline; picklable, since it travels to the workers."""

    @property
    def name(self) -> str:
        """Name of the step, short and valid in an object's name, such as `extract`."""

    @property
    def config(self) -> Any:
        """Return a frozen dataclass of all settings on which the output depends."""

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Process one partition.

        Args:
          partition: the inputs.
          store: reads and writes objects, including local ones below `resources.scratch`.
          out: prefix of the output, without a slash at its end. Names below it may be chosen
            freely, except that they must not start with `_`.
          resources: device, threads and scratch folder.

        Raises:
          Exception: the whole partition failed; it is tried again elsewhere.
        """


def config_plain(step: Step) -> dict[str, Any]:
    """Return a step's name and configuration as plain data for JSON."""
    return {"step": step.name, "config": json.loads(json.dumps(asdict(step.config), default=str))}


def step_digest(step: Step) -> str:
    """Return the digest of a step's name and configuration, which names the step's output."""
    return digest_bytes(json.dumps(config_plain(step), sort_keys=True).encode())


def output_prefix(step: Step, base: str) -> str:
    """Return the prefix of a step's output below `base`; each configuration has its own."""
    return f"{base.rstrip('/')}/{step.name}-{step_digest(step)[:12]}"


def work_digest(step: Step, partition: Partition) -> str:
    """Return the digest of everything on which a partition's result depends.

    An input with a known digest counts by its digest and file name, whatever its folder.
    """
    inputs = [
        [ref.path.rsplit("/", 1)[-1] if ref.digest else ref.path, ref.size, ref.digest, ref.about]
        for ref in partition.inputs
    ]
    # With a digest, the name replaces the path: inputs that were moved are the same inputs.
    identity = {
        **config_plain(step),
        "id": partition.id,
        "inputs": inputs,
        "about": dict(partition.about),
    }
    return digest_bytes(json.dumps(identity, sort_keys=True, default=dict).encode())


@dataclass(frozen=True)
class FusedConfig:
    """Configuration of a fused step."""

    steps: tuple[Mapping[str, Any], ...]
    """Name and configuration of each step, as `config_plain` returns them."""
    keep: tuple[str, ...]
    """Names of the steps whose outputs are kept."""


class FusedStep:
    """Runs each step on the outputs of the step before it, for one partition at a time.

    The outputs of kept steps are written to `<out>/<step's name>/...`, with the same bytes as if
    the steps had run one by one; all others stay in scratch. The result's `about` is that of the
    last step, and has each step's `about` under the step's name. The failures of all steps are
    listed.

    Args:
      steps: in order; each takes the outputs of the step before it as its inputs.
      keep: names of steps whose outputs are kept; the last step's outputs always are.
    """

    def __init__(self, steps: Sequence[Step], keep: Sequence[str] = ()) -> None:
        names = [step.name for step in steps]
        if len(steps) < 2 or len(set(names)) < len(names):
            raise ValueError(f"cannot fuse {names}: need at least two steps with different names")
        if unknown := set(keep) - set(names):
            raise ValueError(
                f"cannot keep the outputs of {sorted(unknown)}: the fused steps are {names}"
            )
        self.steps = tuple(steps)
        self.keep = frozenset((*keep, names[-1]))
        self.name = "+".join(names)
        self.config = FusedConfig(
            tuple(config_plain(step) for step in steps), tuple(sorted(self.keep))
        )

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Run all steps on one partition."""
        # `partition` has the current step's inputs, which are the outputs of the step before.
        outputs: list[ObjectRef] = []
        failures: list[tuple[str, str]] = []
        about: dict[str, Any] = {}
        for step in self.steps:
            last = step is self.steps[-1]
            folder = resources.scratch / step.name
            (folder / "scratch").mkdir(parents=True)
            # Intermediate outputs go to scratch; the store gets only outputs to keep (C22).
            step_resources = replace(resources, scratch=folder / "scratch")
            prefix = f"{out}/{step.name}" if last else str(folder / "out")
            result = step.run(partition, store, prefix, step_resources)
            if not last and step.name in self.keep:
                outputs += [
                    _keep(ref, prefix, f"{out}/{step.name}", store) for ref in result.outputs
                ]
            elif last:
                outputs += result.outputs
                about |= result.about
            failures += result.failures
            about[step.name] = dict(result.about)
            partition = Partition(partition.id, result.outputs, {**partition.about, **result.about})
        return StepResult(tuple(outputs), tuple(failures), about)


def _keep(ref: ObjectRef, folder: str, out: str, store: ObjectStore) -> ObjectRef:
    """Store an object from the local `folder` of a kept step below `out`; return its reference."""
    name = os.path.relpath(ref.path, folder)
    return store.put_file(local_path(ref.path), f"{out}/{name}", ref.about, link=True)


def _content(ref: ObjectRef) -> str:
    """Return what identifies an object's content: its digest, else its path and version."""
    return ref.digest or f"{ref.path}{ref.about.get('version', '')}"


def output_path(step: Step, partitions: Sequence[Partition], base: str) -> str:
    """Return the prefix of a step's output, named by its configuration and its inputs' content."""
    # `about` and the paths of inputs with a digest do not count: a moved lake gives the same name.
    inputs = [[p.id, *((ref.size, _content(ref)) for ref in p.inputs)] for p in partitions]
    digest = digest_bytes(json.dumps([config_plain(step), inputs], sort_keys=True).encode())
    return f"{base.rstrip('/')}/{step.name}-{digest[:12]}"
