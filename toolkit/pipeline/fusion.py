"""Fusion of several steps into one, so that intermediate data never leaves the worker (C22)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.pipeline.filesystems import local_path
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.step import (
    Partition,
    Resources,
    Step,
    StepResult,
    config_plain,
)


@dataclass(frozen=True)
class FusedConfig:
    """Configuration of a fused step."""

    steps: tuple[Mapping[str, Any], ...]
    """Name and configuration of each."""
    keep: tuple[str, ...]
    """Names of the steps whose outputs are kept."""


class FusedStep:
    """Runs each step on the outputs of the step before it, for one partition at a time.

    Outputs of steps that are kept are written to `<out>/<step's name>/...`, the same bytes as if
    the steps had run one by one; the others stay in scratch. The result's `about` is the last
    step's, with each step's `about` under the step's name. The failures of all steps are listed.

    Args:
      steps: in order; each takes the outputs of the one before as its inputs.
      keep: names of further steps whose outputs are kept, besides the last.
    """

    def __init__(self, steps: Sequence[Step], keep: Sequence[str] = ()) -> None:
        names = [step.name for step in steps]
        if len(steps) < 2 or len(set(names)) < len(names):
            raise ValueError(f"two steps or more of different names can be fused, not {names}")
        if unknown := set(keep) - set(names):
            raise ValueError(f"cannot keep {sorted(unknown)}: the fused steps are {names}")
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
        outputs: list[ObjectRef] = []
        failures: list[tuple[str, str]] = []
        about: dict[str, Any] = {}
        for step in self.steps:
            last = step is self.steps[-1]
            folder = resources.scratch / step.name
            (folder / "scratch").mkdir(parents=True)
            own = replace(resources, scratch=folder / "scratch")
            prefix = f"{out}/{step.name}" if last else str(folder / "out")
            result = step.run(partition, store, prefix, own)
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
    name = os.path.relpath(ref.path, folder)
    return store.put_file(local_path(ref.path), f"{out}/{name}", ref.about, link=True)
