"""The step `stats`: statistics of every shard, merged into the recipe's normaliser (C19)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toolkit.features.normalise import Normaliser
from toolkit.features.shards import CUTS, CmnState, read_features
from toolkit.pipeline.normaliser_stats import NormaliserStats, NormaliserStatsError, merge
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.shards import Shard, single_shard
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult
from toolkit.processes.devices import torch_threads

FEATURES = "features"


@dataclass(frozen=True)
class StatsConfig:
    """Settings of `Stats`."""

    prior_frames: int = 200
    """Weight of the prior of the causal mean in frames, as in the recipe's normaliser."""


@dataclass(frozen=True)
class Stats:
    """Accumulate the `NormaliserStats` of one shard, in `stats/NNNNNN.json`."""

    config: StatsConfig
    kind: str = "fbank"
    """Of the features, see `toolkit.features.silence.counted_frames`."""
    name = "stats"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Accumulate the statistics of one shard, as described at `Step.run`."""
        shard = single_shard(partition.inputs)
        if not shard.utterances:  # all of a file's audio may be missing
            return StepResult((), (), {"hours": 0.0, "frames": 0})
        with torch_threads(resources.threads):
            total = merge(
                NormaliserStats.of(features, state, self.config.prior_frames, self.kind)
                for _, features, state in read_utterances(shard, store, resources.scratch)
            )
        content = json.dumps(total.to_dict()).encode() + b"\n"
        about = {"hours": shard.hours, "frames": total.frames}
        ref = store.put(f"{out}/stats/{shard.index:06d}.json", content, {"stats": shard.index})
        return StepResult((ref,), (), about)


def plan_shards(shards: Sequence[Shard]) -> list[Partition]:
    """Make a partition of each shard."""
    return [
        Partition(f"{shard.index:06d}", shard.inputs, {"hours": shard.hours, "shard": shard.index})
        for shard in shards
    ]


def read_utterances(
    shard: Shard, store: ObjectStore, scratch: Path
) -> Iterator[tuple[str, Tensor, CmnState]]:
    """Yield id, raw features [T, F] float32 and causal mean state of a shard's utterances."""
    folder = scratch / "inputs"
    cuts = store.local(shard.objects[CUTS], folder)
    tar = store.local(shard.objects[FEATURES], folder)
    with open(cuts, "rb") as lines:
        for line, (name, features) in zip(lines, read_features(tar), strict=True):
            cut = json.loads(line)
            if cut["id"] != name:
                raise StepError(f"{tar.name}: {name} found where {cut['id']} is expected")
            total = torch.tensor(cut["custom"]["cmn_sum"], dtype=torch.float64)
            yield name, features, CmnState(cut["custom"]["cmn_frames"], total)


def merge_stats(refs: Iterable[ObjectRef], store: ObjectStore) -> Normaliser:
    """Merge the shards' statistics in the order of their numbers, in constant memory."""
    ordered = sorted((r for r in refs if "stats" in r.about), key=lambda ref: ref.about["stats"])
    if not ordered:
        raise NormaliserStatsError("no utterance could be read: the log and the steps list why")
    return merge(
        NormaliserStats.from_dict(json.loads(store.get(ref))) for ref in ordered
    ).normaliser()
