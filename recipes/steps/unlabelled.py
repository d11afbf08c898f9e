"""The unlabelled audio of a recipe: a lake of it, and what the data pipeline makes of that."""

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
from toolkit.pipeline.steps.select import hours_on_offer
from toolkit.pipeline.steps.stats import StatsConfig
from toolkit.pipeline.steps.targets import TargetsConfig, Teacher
from toolkit.ssl.target_store import TargetStore
from toolkit.stages.run import Run

ALMOST_ALL = 0.999
"""Share of a small lake that is selected: sampling needs some to spare."""


@dataclass(frozen=True)
class ExecutorSection:
    """Who runs the pipeline's steps; the results are the same bytes."""

    kind: Literal["local", "spark"] = "local"
    """`local`: processes of this machine, as many as --jobs says; `spark`: a Spark cluster."""
    settings: ExecutorConfig = field(default_factory=ExecutorConfig)
    """What holds for both."""
    spark: SparkConfig = field(default_factory=SparkConfig)
    """The cluster of `spark`."""

    def __post_init__(self) -> None:
        if self.kind not in ("local", "spark"):
            raise ValueError(f"kind is {self.kind!r}, needs to be local or spark")


@dataclass(frozen=True)
class TargetsSection:
    """What is kept of a teacher's posteriors."""

    k: int = 20
    """Logits per frame; 20 (C11)."""
    offsets: tuple[int, ...] = (0,)
    """Raw frames that the first low-rate frame begins with: 0, 1 or 2, in turn from one pass over
    the data to the next. One pass (C12) needs one."""

    def __post_init__(self) -> None:
        if not self.offsets or len(set(self.offsets)) < len(self.offsets):
            raise ValueError(f"offsets are {self.offsets}, needs to be one or more different ones")


def check_executor(config: Any) -> None:
    """See that the executor of a recipe's settings can start on this machine."""
    if config.executor.kind == "spark":
        check_spark()


def open_executor(run: Run, device: str = "cpu") -> Executor:
    """Open what runs steps, for a `with` statement.

    Args:
      run: of the stage.
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
    """Select records, extract their features in a shuffled order, take statistics (C16-C19).

    Where fewer hours may be chosen than are wanted, all are taken, but for a thousandth. What the
    steps write lies in `pipeline/`, the features without their bookkeeping in `unlabelled/`.
    """
    work, out, store = run.make("pipeline/features"), run.make("unlabelled"), _store(run)
    lake = open_lake(store, str(run.need("rooms/lake")))
    config = replace(
        run.config.prepare,
        select=within_reach(run.config.prepare.select, lake, store),
        frontend=run.config.fbank.frontend,
        stats=StatsConfig(run.config.prior_frames),
    )
    with open_executor(run) as executor:
        features, _ = prepare_features(lake, config, executor, store, str(work))
    _link(features, out)
    return _headline(features)


def within_reach(config: SelectConfig, lake: Lake, store: ObjectStore) -> SelectConfig:
    """Ask for no more hours than the lake has of what may be chosen.

    Raises:
      LakeError: it has none.
    """
    most = ALMOST_ALL * hours_on_offer(lake, config, store)
    if not most:
        raise LakeError(
            f"{lake.url}: no utterance lasts {config.min_duration:g} to {config.max_duration:g} s"
            " and fits the other limits of prepare.select: widen them"
        )
    return replace(config, hours=min(config.hours, most))


def label_with_teacher(run: Run, teacher: str, normaliser: Path) -> dict[str, float]:
    """Write the teacher's targets of all unlabelled audio, and shards for training (C11, C21).

    The shards lie in `taught/`, a folder for each offset.

    Returns:
      What is in the shards, and the mean probability per frame of what is not kept.
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
            _link(made, out / f"{offset}")
            run.progress(done, len(kept.offsets))
    return _headline(made) | {"tail_mass": TargetStore(Path(made.url)).manifest["tail_mass"]}


def taught_folders(run: Run) -> list[Path]:
    """Features and targets of the unlabelled audio in shards for training, one for each offset."""
    return [run.need(f"taught/{offset}") for offset in run.config.targets.offsets]


def _link(made: ShardSet, out: Path) -> None:
    """Give a set of shards a place of its own, without what tells how it was made.

    So what is made of it later depends on neither executor nor interruptions.
    """
    root = Path(made.url)
    for path in root.rglob("*"):
        inside = path.relative_to(root)
        if path.is_file() and not inside.parts[0].startswith("_"):
            place = out / inside
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.hardlink_to(path)


def _store(run: Run) -> ObjectStore:
    return ObjectStore(run.config.executor.settings.store)


def _headline(made: ShardSet) -> dict[str, float]:
    return {
        "hours": sum(shard.hours for shard in made.shards),
        "utterances": sum(shard.utterances for shard in made.shards),
        "shards": len(made.shards),
        "lost": len(made.failures),
    }
