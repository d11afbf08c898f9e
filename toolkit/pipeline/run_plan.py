"""`toolkit pipeline run`: the far-field pipeline as a file of settings says."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.config.settings import load_yaml
from toolkit.errors import ToolkitError
from toolkit.pipeline.executor import Executor
from toolkit.pipeline.far_field import (
    ExecutorSection,
    TargetsSection,
    make_features,
    make_training_shards,
    open_executor,
)
from toolkit.pipeline.filesystems import is_local
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.prepare import PrepareConfig
from toolkit.pipeline.progress import Progress
from toolkit.pipeline.step import Partition, Step, StepResult
from toolkit.pipeline.steps.repartition import RepartitionConfig
from toolkit.pipeline.steps.targets import Teacher

DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)


class RunPlanError(ToolkitError):
    """A plan of a run lacks something, or this machine does."""


@dataclass(frozen=True)
class RunPlan:
    """A run of the far-field pipeline; relative paths are relative to the plan's file."""

    lake: str = ""
    """Prefix of the lake: a folder, or a URL such as `s3://bucket/lake`."""
    out: str = ""
    """Prefix of all that is written: a folder or a URL."""
    steps: tuple[Literal["features", "targets"], ...] = ("features", "targets")
    """`features`: select, extract, shuffle and estimate statistics; `targets`: the teacher's
    targets and shards for training."""
    jobs: int = 1
    """Processes of the local executor."""
    device: str = "cpu"
    """Device of the local executor for the targets: `cpu`, `cuda` for every GPU, or one of them,
    such as `cuda:1`."""
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    """Local processes or a Spark cluster, and the store's settings."""
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    """Settings of `features`."""
    teacher: Path | None = None
    """Folder of the trained teacher, for `targets`."""
    normaliser: Path | None = None
    """Normaliser of the features that the teacher was trained on, for `targets`."""
    targets: TargetsSection = TargetsSection()
    """The part of the teacher's posteriors that is kept."""
    repartition: RepartitionConfig = RepartitionConfig()
    """Shards for training."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError("jobs must be at least 1")
        if not DEVICE.fullmatch(self.device):
            raise ValueError(f"device is {self.device!r}, needs to be cpu, cuda or such as cuda:1")
        if not self.steps or self.steps[0] != "features" or len(set(self.steps)) < len(self.steps):
            raise ValueError(
                f"steps are {list(self.steps)}, need features, or features and targets"
            )


def read_plan(path: Path) -> RunPlan:
    """Read a plan from YAML.

    Raises:
      ConfigError: a setting is unknown or not valid; names the file and the key.
      RunPlanError: a setting is missing.
    """
    plan = load_yaml(RunPlan(), path, option="")
    needed = ["lake", "out"]
    if "targets" in plan.steps:
        needed += ["teacher", "normaliser"]
    if missing := [name for name in needed if not getattr(plan, name)]:
        raise RunPlanError(f"{path}: {' and '.join(missing)} must be set")
    base = Path(path).absolute().parent
    places = {name: _beside(getattr(plan, name), base) for name in ("lake", "out")}
    return replace(plan, **places)


class Observed:
    """An executor that reports progress and remembers where each step has written.

    Args:
      executor: runs the steps.
      outs: gets the prefix of each step as it begins.
      report: called after every attempt.
    """

    def __init__(
        self, executor: Executor, outs: list[str], report: Callable[[Progress], None] | None
    ) -> None:
        self._executor, self._outs, self._report = executor, outs, report

    def run(self, step: Step, partitions: Sequence[Partition], out: str) -> list[StepResult]:
        """Run a step, as described at `Executor.run`."""
        if out not in self._outs:
            self._outs.append(out)
        return self._executor.run(step, partitions, out, self._report)


def run_plan(
    plan: RunPlan, outs: list[str], report: Callable[[Progress], None] | None = None
) -> None:
    """Run the steps of a plan; what is done already is kept.

    Args:
      plan: the settings.
      outs: gets the prefix of each step as it begins.
      report: called after every attempt at a partition.

    Raises:
      RunPlanError: there is no such GPU.
      StepError: there is no such teacher.
      PoisonedError: partitions of a step failed at every attempt; all its others are done.
    """
    store = ObjectStore(plan.executor.settings.store)
    place = f"{plan.out}/features"
    if "targets" in plan.steps:  # hours may pass until they begin
        _check_device(plan)
        url = None if plan.executor.kind == "local" else f"{plan.out}/teacher"
        teacher = Teacher.at(store, plan.teacher, plan.normaliser, url)
    with open_executor(plan.executor, plan.jobs) as executor:
        observed = Observed(executor, outs, report)
        features, _ = make_features(plan.lake, plan.prepare, observed, store, place)
    if "targets" in plan.steps:
        settings: tuple[Any, ...] = (plan.targets, plan.repartition, plan.prepare.frontend)
        with open_executor(plan.executor, plan.jobs, plan.device) as executor:
            observed = Observed(executor, outs, report)
            how = (*settings, observed, store, f"{plan.out}/targets")
            for _ in make_training_shards(features, teacher, *how):
                pass


def _check_device(plan: RunPlan) -> None:
    if plan.device == "cpu" or plan.executor.kind != "local":
        return
    import torch

    found = torch.cuda.device_count()
    if int(plan.device.partition(":")[2] or 0) >= found:
        raise RunPlanError(
            f"device is {plan.device}, but torch finds {found} GPUs on this machine: set another, "
            "such as cpu"
        )


def _beside(path: str, base: Path) -> str:
    return str(base / path) if is_local(path) and "://" not in path else path
