"""The steps that move whole utterances: `shuffle` (C18) and `repartition` (C21).

`Shuffle` is hierarchical: files are shuffled, and utterances within files. Utterances stay in their
file, so no data moves between workers. `Repartition` cuts consecutive shards into nearly equal
shards of another length for training.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from toolkit.features.shards import SHARDS
from toolkit.pipeline.config import RepartitionConfig, ShuffleConfig
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.shards import Shard, open_rows, put_shard, shards_of, single_shard, write_rows
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult


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
        """Shuffle one shard; see `Step.run`."""
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
    """Draw new numbers for `count` files, in the order of their old numbers."""
    return _permutation(f"files {seed}", count)


def utterance_order(seed: int, file: int, count: int) -> list[int]:
    """Draw the order of the `count` utterances of the file whose old number is `file`."""
    return _permutation(f"utterances {seed} {file}", count)


def _permutation(seed: str, count: int) -> list[int]:
    """Return a random permutation of `count` numbers, a function of the seed."""
    order = list(range(count))
    random.Random(seed).shuffle(order)  # a string is hashed for the seed: the same in every process
    return order


TOLERANCE = 0.03
"""Consecutive shards are grouped until the new shards' length is off by at most this share."""
MOST_INPUTS = 16
"""Largest number of shards in a group; the last group also takes what is left."""


@dataclass(frozen=True)
class Repartition:
    """Cut consecutive shards, with all their fields, into `about["count"]` nearly equal shards.

    Rows keep their order. The new shards are numbered from `about["first"]` on. Their numbers of
    frames are as equal as whole utterances allow.
    """

    config: RepartitionConfig
    name = "repartition"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Cut one group of shards; see `Step.run`."""
        first, count = partition.about["first"], partition.about["count"]
        shards = _in_order(partition)
        inputs = [
            open_rows(shard, store, resources.scratch / str(number))
            for number, shard in enumerate(shards)
        ]
        fields = inputs[0].fields
        if any(rows.fields != fields for rows in inputs):
            raise StepError(f"partition {partition.id}: its shards have different fields")
        sizes = [_size(line) for rows in inputs for line in rows.lines]
        frames = [size[0] for size in sizes]
        # One stream over all input shards: new shards may begin and end anywhere in them.
        stream = _all_rows(inputs)
        outputs, end = [], 0
        for number, size in enumerate(equal_parts(frames, count)):
            start, end = end, end + size
            part = (next(stream) for _ in range(size))
            files = write_rows(resources.scratch / SHARDS, first + number, fields, part)
            about = {
                "hours": sum(seconds for _, seconds in sizes[start:end]) / 3600,
                "utterances": size,
                "frames": sum(frames[start:end]),
            }
            outputs += put_shard(files, first + number, about, store, out)
        total = {"hours": sum(s.hours for s in shards), "frames": sum(frames)}
        return StepResult(tuple(outputs), (), total)


def plan_repartition(shards: Sequence[Shard], config: RepartitionConfig) -> list[Partition]:
    """Group consecutive shards so that each group gives a whole number of new shards.

    Two five-hour shards, for instance, make five of two hours, so that every object is read once.
    """
    runs: list[list[Shard]] = []
    run: list[Shard] = []
    for shard in shards:
        run.append(shard)
        parts = sum(s.hours for s in run) / config.hours
        if abs(parts - round(parts)) <= TOLERANCE * round(parts) or len(run) == MOST_INPUTS:
            runs.append(run)
            run = []
    # The shards left at the end join the last group, whose new shards are then off a little more.
    if run and runs:
        runs[-1] = runs[-1] + run
    elif run:
        runs.append(run)
    partitions, first = [], 0
    for number, run in enumerate(runs):
        hours = sum(shard.hours for shard in run)
        count = max(1, round(hours / config.hours))
        inputs = tuple(ref for shard in run for ref in shard.inputs)
        about = {"hours": hours, "first": first, "count": count}
        partitions.append(Partition(f"{number:06d}", inputs, about))
        first += count
    return partitions


def equal_parts(sizes: Sequence[int], count: int) -> list[int]:
    """Cut a sequence into `count` parts of nearly equal total; return the number of items of each.

    An item belongs to the part in which its middle lies.
    """
    total, lengths = sum(sizes), [0] * count
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        # The middle of the item is at end - size / 2; its part is middle * count / total.
        lengths[min(count - 1, (2 * end - size) * count // max(2 * total, 1))] += 1
    return lengths


def _in_order(partition: Partition) -> list[Shard]:
    """Return the shards of a partition in the order of its inputs."""
    order = list(dict.fromkeys(ref.about["shard"] for ref in partition.inputs))
    return sorted(shards_of(partition.inputs), key=lambda shard: order.index(shard.index))


def _all_rows(inputs: Iterable) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Yield all rows of several shards, one shard after the other."""
    for rows in inputs:
        yield from rows.read(range(len(rows)))


def _size(line: bytes) -> tuple[int, float]:
    """Return the number of frames and the seconds of the cut in a line of JSON."""
    cut = json.loads(line)
    return cut["features"]["num_frames"], cut["duration"]
