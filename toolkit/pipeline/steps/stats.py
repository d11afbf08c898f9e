"""Statistics of every file in parallel, merged to the recipe's normaliser (C19)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toolkit.features.mean_state import MeanState
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import read_features
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.rows import CUTS
from toolkit.pipeline.shards import Shard, only_shard
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult
from toolkit.pipeline.totals import Totals, merge
from toolkit.processes.threads import torch_threads

FEATURES = "features"


@dataclass(frozen=True)
class StatsConfig:
    """Of `Stats`."""

    prior_frames: int = 200
    """Weight of the prior of the causal mean in frames, as in the recipe's normaliser."""


@dataclass(frozen=True)
class Stats:
    """Sum one shard's features: `stats/NNNNNN.json` holds a `Totals`."""

    config: StatsConfig
    name = "stats"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """See `Step`."""
        shard = only_shard(partition.inputs)
        with torch_threads(resources.threads):
            total = merge(
                Totals.of(features, state, self.config.prior_frames)
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
) -> Iterator[tuple[str, Tensor, MeanState]]:
    """Yield id, stored raw features [T, F] float32 and mean state of a shard's utterances."""
    folder = scratch / "inputs"
    cuts = store.local(shard.objects[CUTS], folder)
    tar = store.local(shard.objects[FEATURES], folder)
    with open(cuts, "rb") as lines:
        for line, (name, features) in zip(lines, read_features(tar), strict=True):
            cut = json.loads(line)
            if cut["id"] != name:
                raise StepError(f"{tar.name}: {name} stands where {cut['id']} should")
            total = torch.tensor(cut["custom"]["cmn_sum"], dtype=torch.float64)
            yield name, features, MeanState(cut["custom"]["cmn_frames"], total)


def merge_stats(refs: Iterable[ObjectRef], store: ObjectStore) -> Normaliser:
    """Merge the shards' statistics, in the order of their numbers and in constant memory."""
    ordered = sorted((r for r in refs if "stats" in r.about), key=lambda ref: ref.about["stats"])
    return merge(Totals.from_dict(json.loads(store.get(ref))) for ref in ordered).normaliser()
