"""The whole pipeline: from a data lake to shuffled features, their normaliser and training shards.

Reading the lake is the expensive part, so extraction, shuffling and statistics are one pass over it
(C22): shuffling needs only each file's new number, which is drawn beforehand, and statistics are
accumulated while the shard is still on the worker's disk.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from toolkit.features.config import FrontendConfig
from toolkit.features.normalise import Normaliser
from toolkit.pipeline.fusion import FusedStep
from toolkit.pipeline.lake import Lake
from toolkit.pipeline.markers import healing
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.output_paths import output_path
from toolkit.pipeline.shards import Shard, link_fields, with_fields, write_manifests
from toolkit.pipeline.step import StepResult
from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract
from toolkit.pipeline.steps.repartition import (
    Repartition,
    RepartitionConfig,
    plan_repartition,
)
from toolkit.pipeline.steps.select import Executor, SelectConfig, make_selection
from toolkit.pipeline.steps.shuffle import Shuffle, ShuffleConfig, file_order
from toolkit.pipeline.steps.stats import Stats, StatsConfig, merge_stats, plan_shards
from toolkit.pipeline.steps.targets import Targets, TargetsConfig
from toolkit.ssl.targets import MANIFEST as TARGETS_MANIFEST

NORMALISER = "normaliser.json"


@dataclass(frozen=True)
class PrepareConfig:
    """Settings of the steps from lake to features."""

    select: SelectConfig = field(default_factory=SelectConfig)
    """Selection of records from the lake (C16)."""
    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    """The front end (C5 by default)."""
    shuffle: ShuffleConfig = field(default_factory=ShuffleConfig)
    """Shuffling of files and utterances (C18)."""
    stats: StatsConfig = field(default_factory=StatsConfig)
    """Statistics for the normaliser (C19)."""


@dataclass(frozen=True)
class ShardSet:
    """A complete set of shards."""

    url: str
    """Prefix of the shards; if it is local, `FeatureStore` can open it."""
    shards: Sequence[Shard]
    """The shards, ordered by index."""
    failures: Sequence[tuple[str, str]]
    """(utterance, reason) of the utterances that were left out."""


def prepare_features(
    lake: Lake,
    config: PrepareConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    up_to: bool = False,
) -> tuple[ShardSet, Normaliser]:
    """Select records and write their features, shuffled, with a normaliser (C16-C19).

    The output prefix is `<base>/extract+shuffle+stats-<digest>/shuffle`; it has the files that
    `toolkit.pipeline.shards` describes, and `normaliser.json`. See `make_selection`
    for `up_to` and the errors.
    """
    files, failures = make_selection(lake, config.select, executor, store, base, up_to)
    return extract_features(files, lake.url, config, executor, store, base, failures)


def extract_features(
    files: Sequence[ObjectRef],
    lake: str,
    config: PrepareConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    lost: Sequence[tuple[str, str]] = (),
) -> tuple[ShardSet, Normaliser]:
    """Write the features of selected files: see `prepare_features`.

    Those `lost` before, (utterance, reason), are listed and counted with those that fail here.
    """
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
    results = [StepResult((), tuple(lost)), *executor.run(step, partitions, out)]
    url = f"{out}/shuffle"
    shards = write_manifests(store, url, results, config.frontend)
    with healing(store):
        normaliser = merge_stats((ref for result in results for ref in result.outputs), store)
    store.put(f"{url}/{NORMALISER}", normaliser.to_json().encode())
    return ShardSet(url, shards, _failures(results)), normaliser


def prepare_targets(
    features: ShardSet, config: TargetsConfig, executor: Executor, store: ObjectStore, base: str
) -> ShardSet:
    """Write a teacher's targets for every shard, with `targets.json` (C11, C20).

    The manifest's `tail_mass` is the mean probability per frame of the senones not stored.
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
    """Write near-equal shards for training (C21).

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
    made = write_manifests(store, out, results, frontend)
    if targets is not None:
        store.put(f"{out}/{TARGETS_MANIFEST}", store.get(f"{targets}/{TARGETS_MANIFEST}"))
    return ShardSet(out, made, _failures(results))


def _targets_manifest(config: TargetsConfig, results: Sequence[StepResult]) -> str:
    frames = sum(result.about["targets"] for result in results)
    plain = {
        "senones": results[0].about["senones"],
        "k": config.k,
        "offset": config.offset,
        "frames": frames,
        "tail_mass": sum(result.about["tail"] for result in results) / max(frames, 1),
        "bytes": sum(ref.size for result in results for ref in result.outputs),
        "teacher": {name: ref["digest"] for name, ref in asdict(config.teacher).items()},
    }
    return json.dumps(plain, indent=1) + "\n"


def _failures(results: Sequence[StepResult]) -> list[tuple[str, str]]:
    return [failure for result in results for failure in result.failures]
