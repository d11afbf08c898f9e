"""The far-field pipeline as a whole: from a lake to training shards, by any executor.

The recipe's stages and `toolkit pipeline run` both call these functions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from toolkit.features.config import FrontendConfig
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.normalise import Normaliser
from toolkit.pipeline.executor import Executor, ExecutorConfig
from toolkit.pipeline.lake import open_lake
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.prepare import (
    PrepareConfig,
    ShardSet,
    prepare_features,
    prepare_targets,
    repartition,
)
from toolkit.pipeline.spark import SparkConfig, SparkExecutor
from toolkit.pipeline.steps.repartition import RepartitionConfig
from toolkit.pipeline.steps.select import Executor as Runner
from toolkit.pipeline.steps.targets import TargetsConfig, Teacher


@dataclass(frozen=True)
class ExecutorSection:
    """The executor of the pipeline's steps; results are the same byte for byte."""

    kind: Literal["local", "spark"] = "local"
    """`local`: as many processes of this machine as there are jobs; `spark`: a Spark cluster."""
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
        if not all(0 <= offset < LOW_RATE_FACTOR for offset in self.offsets):
            raise ValueError(f"offsets are {self.offsets}, need to be 0 to {LOW_RATE_FACTOR - 1}")
        if self.k < 1:
            raise ValueError(f"k is {self.k}, needs to be at least 1")


def open_executor(section: ExecutorSection, jobs: int, device: str = "cpu") -> Executor:
    """Return the executor of the pipeline's steps, for a `with` statement.

    Args:
      section: its settings.
      jobs: processes of the local executor.
      device: where steps compute; with `cuda` every GPU of this machine is a worker (C20), with
        `cuda:1` that one alone.
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


def make_features(
    lake: str, config: PrepareConfig, executor: Runner, store: ObjectStore, base: str
) -> tuple[ShardSet, Normaliser]:
    """Select records of a lake and write their features, shuffled, with a normaliser (C16-C19).

    If fewer hours are eligible than are configured, all but a thousandth are selected.

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
    kept: TargetsSection,
    parts: RepartitionConfig,
    frontend: FrontendConfig,
    executor: Runner,
    store: ObjectStore,
    base: str,
) -> Iterator[tuple[int, ShardSet]]:
    """Compute a teacher's targets of all features, and shards for training (C11, C20, C21).

    Args:
      features: of `make_features`.
      teacher: the trained model.
      kept: the part of its posteriors to store.
      parts: the length of the shards.
      frontend: front end of the features.
      executor, store, base: as in `make_features`.

    Yields:
      Each offset with its shards.
    """
    for offset in kept.offsets:
        place = f"{base}/{offset}"
        config = TargetsConfig(teacher, kept.k, offset)
        labelled = prepare_targets(features, config, executor, store, place)
        made = repartition(
            labelled.shards, parts, frontend, executor, store, place, targets=labelled.url
        )
        yield offset, made
