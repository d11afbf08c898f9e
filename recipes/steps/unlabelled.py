"""Steps on the unlabelled audio of a recipe: features and teacher's targets from a data lake."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.pipeline.executor import Executor, ExecutorConfig
from toolkit.pipeline.lake import Lake, LakeError, open_lake
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.prepare import (
    ShardSet,
    prepare_features,
    prepare_targets,
    repartition,
)
from toolkit.pipeline.shards import read_shards
from toolkit.pipeline.spark import SparkConfig, SparkExecutor, check_spark
from toolkit.pipeline.steps.sample import SelectConfig
from toolkit.pipeline.steps.select import eligible_hours
from toolkit.pipeline.steps.stats import StatsConfig
from toolkit.pipeline.steps.targets import TargetsConfig, Teacher
from toolkit.ssl.target_store import TargetStore
from toolkit.stages.run import Run
from toolkit.storage.files import link_atomically

ALMOST_ALL = 0.999
"""Largest share of a lake that is selected: sampling needs a small margin."""


@dataclass(frozen=True)
class ExecutorSection:
    """The executor of the pipeline's steps; results are the same byte for byte."""

    kind: Literal["local", "spark"] = "local"
    """`local`: as many processes of this machine as --jobs says; `spark`: a Spark cluster."""
    settings: ExecutorConfig = field(default_factory=ExecutorConfig)
    """Settings of both kinds."""
    spark: SparkConfig = field(default_factory=SparkConfig)
    """The cluster, for `spark`."""

    def __post_init__(self) -> None:
        if self.kind not in ("local", "spark"):
            raise ValueError(f"kind is {self.kind!r}, needs to be local or spark")


@dataclass(frozen=True)
class TargetsSection:
    """The part of a teacher's posteriors that is kept."""

    k: int = 20
    """Number of the highest logits kept per frame (C11: 20)."""
    offsets: tuple[int, ...] = (0,)
    """Frame offsets of the subsampling, 0, 1 or 2, used in turn by successive passes over the data.
    A single pass (C12) needs one."""

    def __post_init__(self) -> None:
        if not self.offsets or len(set(self.offsets)) < len(self.offsets):
            raise ValueError(f"offsets are {self.offsets}, need at least one, without duplicates")


def check_executor(config: Any) -> None:
    """Check that the configured executor can start on this machine."""
    if config.executor.kind == "spark":
        check_spark()


def open_executor(run: Run, device: str = "cpu") -> Executor:
    """Return the executor of the pipeline's steps, for a `with` statement.

    Args:
      run: the run of the stage.
      device: where steps compute; with `cuda` every GPU of this machine is a worker (C20).
    """
    section = run.config.executor
    if section.kind == "spark":
        return SparkExecutor(section.settings, section.spark)
    if device.startswith("cuda"):
        import torch

        slots = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
        return LocalExecutor(section.settings, slots)
    return LocalExecutor(section.settings, cpu_slots(run.jobs))


def prepare_unlabelled(run: Run) -> dict[str, float]:
    """Select records, extract features in a shuffled order, estimate statistics (C16-C19).

    If fewer hours are eligible than are configured, all but a thousandth are selected. The steps
    write to `pipeline/`; `unlabelled/` gets the features without the bookkeeping.
    """
    work, out, store = run.make("pipeline/features"), run.make("unlabelled"), _store(run)
    lake = open_lake(store, str(run.need("rooms/lake")))
    config = replace(
        run.config.prepare,
        select=limit_hours(run.config.prepare.select, lake, store),
        frontend=run.config.fbank.frontend,
        stats=StatsConfig(run.config.prior_frames),
    )
    with open_executor(run) as executor:
        features, _ = prepare_features(lake, config, executor, store, str(work))
    _link(features, store, out)
    return _headline(features)


def limit_hours(config: SelectConfig, lake: Lake, store: ObjectStore) -> SelectConfig:
    """Limit the hours to select to those that are eligible in the lake.

    Raises:
      LakeError: no utterance is eligible.
    """
    most = ALMOST_ALL * eligible_hours(lake, config, store)
    if not most:
        raise LakeError(
            f"{lake.url}: no utterance lasts {config.min_duration:g} to {config.max_duration:g} s"
            " and meets the other limits of prepare.select: widen them"
        )
    return replace(config, hours=min(config.hours, most))


def label_with_teacher(run: Run, teacher: str, normaliser: Path) -> dict[str, float]:
    """Compute the teacher's targets of all unlabelled audio, and shards for training (C11, C21).

    The shards are in `taught/`, a folder for each offset.

    Returns:
      The amount of data in the shards, and `tail_mass`, the mean probability mass per frame of the
      logits that are not kept.
    """
    work, out, store = run.make("pipeline/targets"), run.make("taught"), _store(run)
    kept, url = run.config.targets, str(run.need("unlabelled"))
    features = ShardSet(url, read_shards(store, url), ())
    model = Teacher.at(store, run.need(teacher), normaliser)
    with open_executor(run, run.device) as executor:
        for done, offset in enumerate(kept.offsets, 1):
            place = str(work / f"{offset}")
            config = TargetsConfig(model, kept.k, offset)
            labelled = prepare_targets(features, config, executor, store, place)
            made = repartition(
                labelled.shards,
                run.config.repartition,
                run.config.fbank.frontend,
                executor,
                store,
                place,
                targets=labelled.url,
            )
            _link(made, store, out / f"{offset}")
            run.progress(done, len(kept.offsets))
    return _headline(made) | {"tail_mass": TargetStore(Path(made.url)).manifest["tail_mass"]}


def training_shard_folders(run: Run) -> list[Path]:
    """Return the folders of shards with features and teacher's targets, one for each offset."""
    return [run.need(f"taught/{offset}") for offset in run.config.targets.offsets]


def _link(made: ShardSet, store: ObjectStore, out: Path) -> None:
    """Hard-link a set of shards into a folder of its own, without the pipeline's bookkeeping.

    Stages that read the folder thus depend on neither the executor nor on interruptions.
    """
    root = Path(made.url)
    manifests = [path for path in root.iterdir() if path.is_file() and path.name[0] != "_"]
    listed = [ref for shard in read_shards(store, made.url) for ref in shard.inputs]
    for path in [*manifests, *(Path(ref.path) for ref in listed)]:
        link_atomically(path, out / path.relative_to(root))


def _store(run: Run) -> ObjectStore:
    return ObjectStore(run.config.executor.settings.store)


def _headline(made: ShardSet) -> dict[str, float]:
    return {
        "hours": sum(shard.hours for shard in made.shards),
        "utterances": sum(shard.utterances for shard in made.shards),
        "shards": len(made.shards),
        "lost": len(made.failures),
    }
