"""The step `shuffle`: a hierarchical shuffle of files, and of utterances within files (C18).

Utterances stay in their file, so no data moves between workers; `toolkit.pipeline.mixing` measures
how far the result is from a uniform shuffle.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.features.shards import SHARDS
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.rows import write_rows
from toolkit.pipeline.shards import Shard, open_rows, put_shard, single_shard
from toolkit.pipeline.step import Partition, Resources, StepResult


@dataclass(frozen=True)
class ShuffleConfig:
    """Settings of `Shuffle`."""

    seed: int = 0
    """Random seed of both orders."""


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
        """Shuffle one shard, as described at `Step.run`."""
        shard, index = single_shard(partition.inputs), partition.about["shard"]
        rows = open_rows(shard, store, resources.scratch)
        order = utterance_order(self.config.seed, partition.about["from"], len(rows))
        files = write_rows(resources.scratch / SHARDS, index, rows.fields, rows.read(order))
        about = {"hours": shard.hours, "utterances": shard.utterances, "frames": shard.frames}
        return StepResult(put_shard(files, index, about, store, out), (), {**about, "shard": index})


def plan_shuffle(shards: Sequence[Shard], config: ShuffleConfig) -> list[Partition]:
    """Make a partition of each shard, with its new number drawn at random."""
    numbers = file_order(config.seed, len(shards))
    return [
        Partition(
            f"{number:06d}",
            shard.inputs,
            {"hours": shard.hours, "shard": numbers[number], "from": number},
        )
        for number, shard in enumerate(shards)
    ]


def file_order(seed: int, count: int) -> list[int]:
    """Draw the new numbers of `count` files."""
    return _permutation(f"files {seed}", count)


def utterance_order(seed: int, file: int, count: int) -> list[int]:
    """Draw the order of the `count` utterances of a file, given by its old number."""
    return _permutation(f"utterances {seed} {file}", count)


def _permutation(seed: str, count: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)  # a string is hashed for the seed: the same in every process
    return order
