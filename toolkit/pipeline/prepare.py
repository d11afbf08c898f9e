"""The far-field pipeline: from a data lake to features, their normaliser and training shards.

The recipe's stages and `toolkit pipeline run` both call these functions, with any executor.
Reading the lake is the expensive part, so extraction, shuffling and statistics are one pass over it
(C22). Shuffling needs only each file's new number, which is drawn beforehand; statistics are
accumulated while the shard is still on the worker's disk.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from toolkit.config.settings import load_yaml
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.normalise import Cmvn
from toolkit.pipeline.config import (
    ExecutorSection,
    PrepareConfig,
    RepartitionConfig,
    RunPlan,
    TargetsSection,
)
from toolkit.pipeline.executor import Executor, Progress
from toolkit.pipeline.lake import Lake, open_lake
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.markers import rebuild_damaged
from toolkit.pipeline.objects import ObjectRef, ObjectStore, is_local
from toolkit.pipeline.shards import Shard, link_fields, with_fields, write_manifests
from toolkit.pipeline.spark import SparkExecutor
from toolkit.pipeline.step import FusedStep, StepResult, output_path
from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract
from toolkit.pipeline.steps.select import select_records
from toolkit.pipeline.steps.shuffle import Repartition, Shuffle, file_order, plan_repartition
from toolkit.pipeline.steps.stats import Stats, merge_stats, plan_shards
from toolkit.pipeline.steps.targets import Targets, TargetsConfig, Teacher
from toolkit.ssl.targets import MANIFEST as TARGETS_MANIFEST


def open_executor(section: ExecutorSection, jobs: int, device: str = "cpu") -> Executor:
    """Return the executor of the pipeline's steps, for a `with` statement.

    Args:
      section: its settings.
      jobs: processes of the local executor.
      device: where steps compute; with `cuda` every GPU of this machine is a worker (C20), with
        `cuda:1` only that GPU.
    """
    if section.kind == "spark":
        return SparkExecutor(section.settings, section.spark)
    if device.startswith("cuda:"):
        return LocalExecutor(section.settings, (device,))
    if device == "cuda":
        import torch

        slots = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
        return LocalExecutor(section.settings, slots)
    return LocalExecutor(section.settings, cpu_slots(jobs))


@dataclass(frozen=True)
class ShardSet:
    """A complete set of shards."""

    url: str
    """Prefix of the shards; if it is local, `FeatureStore` can open it."""
    shards: Sequence[Shard]
    """The shards, ordered by index."""
    failures: Sequence[tuple[str, str]]
    """(utterance, reason) of the utterances that were left out."""


def make_features(
    lake: str, config: PrepareConfig, executor: Executor, store: ObjectStore, base: str
) -> tuple[ShardSet, Cmvn]:
    """Select records of a lake and write their features, shuffled, with a normaliser (C16-C19).

    If fewer hours are eligible than configured, all but a thousandth of them are selected.

    Args:
      lake: prefix of the lake.
      config: settings of the steps.
      executor: runs the steps.
      store: reads and writes manifests.
      base: prefix below which each step writes.

    Raises:
      LakeError: no utterance is eligible.
    """
    return prepare_features(open_lake(store, lake), config, executor, store, base, up_to=True)


def make_training_shards(
    features: ShardSet,
    teacher: Teacher,
    settings: TargetsSection,
    parts: RepartitionConfig,
    frontend: FrontendConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
) -> Iterator[tuple[int, ShardSet]]:
    """Compute a teacher's targets for all features, and shards for training (C11, C20, C21).

    Args:
      features: result of `make_features`.
      teacher: the trained model.
      settings: number of logits to store per frame, and the frame offsets.
      parts: the length of the shards.
      frontend: front end of the features.
      executor, store, base: as in `make_features`.

    Yields:
      Each offset with its shards.
    """
    for offset in settings.offsets:
        place = f"{base}/{offset}"
        config = TargetsConfig(teacher, settings.k, offset)
        labelled = prepare_targets(features, config, executor, store, place)
        training_shards = repartition(
            labelled.shards, parts, frontend, executor, store, place, targets=labelled.url
        )
        yield offset, training_shards


NORMALISER = "normaliser.json"


def prepare_features(
    lake: Lake,
    config: PrepareConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    up_to: bool = False,
) -> tuple[ShardSet, Cmvn]:
    """Select records and write their features, shuffled, with a normaliser (C16-C19).

    The output prefix is `<base>/extract+shuffle+stats-<digest>/shuffle`; it has the files that
    `toolkit.pipeline.shards` describes, and `normaliser.json`. See `select_records`
    for `up_to` and the errors.
    """
    files, failures = select_records(lake, config.select, executor, store, base, up_to)
    return extract_features(files, lake.url, config, executor, store, base, failures)


def extract_features(
    files: Sequence[ObjectRef],
    lake: str,
    config: PrepareConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    lost: Sequence[tuple[str, str]] = (),
) -> tuple[ShardSet, Cmvn]:
    """Write the features of selected files; see `prepare_features`.

    `lost` has (utterance, reason) of earlier failures, which are listed with those that occur here.
    """
    # 1. One pass over the audio: features, in shuffled order, and the sums of each shard.
    step = FusedStep(
        [
            Extract(ExtractConfig(lake, config.frontend)),
            Shuffle(config.shuffle),
            Stats(config.stats, config.frontend.kind),
        ],
        keep=("shuffle",),
    )
    partitions = plan_extract(files, file_order(config.shuffle.seed, len(files)))
    out = output_path(step, partitions, base)
    # A result without outputs represents the selection, so that its failures are listed too.
    results = [StepResult((), tuple(lost)), *executor.run(step, partitions, out)]
    # 2. List the shards, then merge the sums into the normaliser.
    url = f"{out}/shuffle"
    shards = write_manifests(store, url, results, config.frontend)
    with rebuild_damaged(store):
        normaliser = merge_stats((ref for result in results for ref in result.outputs), store)
    store.put(f"{url}/{NORMALISER}", normaliser.to_json().encode())
    return ShardSet(url, shards, _failures(results)), normaliser


def prepare_targets(
    features: ShardSet, config: TargetsConfig, executor: Executor, store: ObjectStore, base: str
) -> ShardSet:
    """Write a teacher's targets for every shard, with `targets.json` (C11, C20).

    The manifest's `tail_mass` is the probability of all senones not stored, averaged over frames.
    """
    step, partitions = Targets(config), plan_shards(features.shards)
    out = output_path(step, partitions, base)
    results = executor.run(step, partitions, out)
    store.put(f"{out}/{TARGETS_MANIFEST}", _targets_manifest(config, results).encode())
    refs = [ref for result in results for ref in result.outputs]
    link_fields(out, refs)
    shards = with_fields(features.shards, refs)
    return ShardSet(out, shards, _failures(results))


def repartition(
    shards: Sequence[Shard],
    config: RepartitionConfig,
    frontend: FrontendConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    targets: str | None = None,
) -> ShardSet:
    """Write shards of nearly equal length for training (C21).

    Args:
      shards: features, and targets where there are any.
      config: the length of the new shards.
      frontend: front end of the features.
      executor, store, base: as in `prepare_features`.
      targets: prefix of the output of `prepare_targets`, whose manifest is copied.
    """
    step, partitions = Repartition(config), plan_repartition(shards, config)
    out = output_path(step, partitions, base)
    results = executor.run(step, partitions, out)
    listed = write_manifests(store, out, results, frontend)
    if targets is not None:
        store.put(f"{out}/{TARGETS_MANIFEST}", store.get(f"{targets}/{TARGETS_MANIFEST}"))
    return ShardSet(out, listed, _failures(results))


def _targets_manifest(config: TargetsConfig, results: Sequence[StepResult]) -> str:
    """Return the text of `targets.json`, the manifest of the targets."""
    frames = sum(result.about["targets"] for result in results)
    manifest = {
        "senones": results[0].about["senones"],
        "k": config.k,
        "offset": config.offset,
        "frames": frames,
        "tail_mass": sum(result.about["tail"] for result in results) / max(frames, 1),
        "bytes": sum(ref.size for result in results for ref in result.outputs),
        "teacher": {name: ref["digest"] for name, ref in asdict(config.teacher).items()},
    }
    return json.dumps(manifest, indent=1) + "\n"


def _failures(results: Sequence[StepResult]) -> list[tuple[str, str]]:
    """Return (utterance, reason) of all failures in the results of a step."""
    return [failure for result in results for failure in result.failures]


class RunPlanError(ToolkitError):
    """A run plan is incomplete, or this machine lacks what the plan needs."""


def read_plan(path: Path) -> RunPlan:
    """Read a plan from YAML.

    Raises:
      ConfigError: a setting is unknown or not valid; the message names the file and the key.
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


def run_plan(
    plan: RunPlan, outputs: list[str], report: Callable[[Progress], None] | None = None
) -> None:
    """Run the steps of a plan; finished partitions are kept.

    Args:
      plan: the settings.
      outputs: list to which each step's output prefix is added as the step begins.
      report: called after every attempt at a partition.

    Raises:
      RunPlanError: the plan's GPU does not exist.
      StepError: a file of the teacher does not exist.
      FailedPartitionsError: partitions of a step failed at every attempt; all its others are done.
    """
    store = ObjectStore(plan.executor.settings.store)
    # 1. Check the device and the teacher now: `features` may take hours before they are needed.
    if "targets" in plan.steps:
        _check_device(plan)
        # Workers on other machines read the teacher from the store.
        url = None if plan.executor.kind == "local" else f"{plan.out}/teacher"
        teacher = Teacher.at(store, plan.teacher, plan.normaliser, url)
    # 2. Features on the CPU, then targets on the plan's device, each with workers of its own.
    with open_executor(plan.executor, plan.jobs) as executor:
        executor.outputs, executor.report = outputs, report
        features, _ = make_features(
            plan.lake, plan.prepare, executor, store, f"{plan.out}/features"
        )
    if "targets" in plan.steps:
        with open_executor(plan.executor, plan.jobs, plan.device) as executor:
            executor.outputs, executor.report = outputs, report
            offsets = make_training_shards(
                features,
                teacher,
                plan.targets,
                plan.repartition,
                plan.prepare.frontend,
                executor,
                store,
                f"{plan.out}/targets",
            )
            for _ in offsets:  # a generator: each offset is computed when it is drawn
                pass


def _check_device(plan: RunPlan) -> None:
    """Raise an error if the plan's GPU does not exist on this machine."""
    if plan.device == "cpu" or plan.executor.kind != "local":
        return
    import torch

    num_gpus = torch.cuda.device_count()
    if int(plan.device.partition(":")[2] or 0) >= num_gpus:
        raise RunPlanError(
            f"`device` is {plan.device}, but torch finds {num_gpus} GPUs: set another device, such"
            " as cpu"
        )


def _beside(path: str, base: Path) -> str:
    """Resolve a local path against the folder `base`; URLs stay as they are."""
    return str(base / path) if is_local(path) and "://" not in path else path
