"""Hierarchical shuffle: the order of the files, and of the utterances within each (C18).

Utterances never change files, so nothing moves between workers; `toolkit.pipeline.mixing` tells
how far the result is from a uniform shuffle.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.rows import write_rows
from toolkit.pipeline.shards import Shard, only_shard, open_rows, put_shard, workplace
from toolkit.pipeline.step import Partition, Resources, StepResult


@dataclass(frozen=True)
class ShuffleConfig:
    """Of `Shuffle`."""

    seed: int = 0
    """Decides both orders."""


@dataclass(frozen=True)
class Shuffle:
    """Write a shard's utterances in random order, under its new number.

    A partition is one shard; `about["shard"]` is its new number, `about["from"]` the old one. The
    causal means stay with their utterances, so that only the order changes.
    """

    config: ShuffleConfig
    name = "shuffle"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """See `Step`."""
        shard, index = only_shard(partition.inputs), partition.about["shard"]
        rows = open_rows(shard, store, resources.scratch)
        order = utterance_order(self.config.seed, partition.about["from"], len(rows))
        files = write_rows(workplace(out, resources.scratch), index, rows.fields, rows.read(order))
        about = {"hours": shard.hours, "utterances": shard.utterances, "frames": shard.frames}
        return StepResult(put_shard(files, index, about, store, out), (), {**about, "shard": index})


def plan_shuffle(shards: Sequence[Shard], config: ShuffleConfig) -> list[Partition]:
    """Make a partition of each shard, its new number drawn."""
    places = file_order(config.seed, len(shards))
    return [
        Partition(
            f"{number:06d}",
            shard.inputs,
            {"hours": shard.hours, "shard": places[number], "from": number},
        )
        for number, shard in enumerate(shards)
    ]


def file_order(seed: int, count: int) -> list[int]:
    """Draw the new number of each of `count` files."""
    return _drawn(f"files {seed}", count)


def utterance_order(seed: int, file: int, count: int) -> list[int]:
    """Draw the order in which the `count` utterances of a file, by its old number, are written."""
    return _drawn(f"utterances {seed} {file}", count)


def _drawn(seed: str, count: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)  # a text seeds by its digest: the same in every process
    return order
