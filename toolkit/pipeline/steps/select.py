"""Selection: a uniform sample of the lake's records, grouped by speaker (C16).

`Sample` streams the metadata and keeps the lines whose random number lies below a threshold, in
pieces by a hash of the speaker. `Group` reads one bucket's pieces and writes files of whole
speakers, each speaker's utterances in time order; every later step keeps these files as its unit.
Only sampled lines move, and where the lake is divided by speaker already, each partition of
`Sample` writes into few buckets.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from toolkit.pipeline import sampling
from toolkit.pipeline.lake import Lake, LakeError, Record, totals
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.places import place
from toolkit.pipeline.step import Partition, Step, StepResult
from toolkit.pipeline.steps.group import FILES_PER_BUCKET, Group, GroupConfig, plan_group
from toolkit.pipeline.steps.sample import Sample, SampleConfig, SelectConfig, plan_sample


class Executor(Protocol):
    """Runs a step on partitions; results in their order."""

    def run(self, step: Step, partitions: Sequence[Partition], out: str) -> list[StepResult]:
        """See `toolkit.pipeline.executor`."""


def select(
    lake: Lake, config: SelectConfig, executor: Executor, store: ObjectStore, base: str
) -> list[ObjectRef]:
    """Select records of the lake and group them into files by speaker.

    Args:
      lake: where to choose from.
      config: how much to choose.
      executor: runs the steps.
      store: reads a metadata object where lake.json is missing.
      base: prefix below which each step writes.

    Returns:
      The files by name, with `hours`, `utterances` and `speakers`.

    Raises:
      LakeError: the lake has fewer hours that may be chosen.
    """
    known = totals(lake.objects)
    lake_hours = known["hours"] if known else estimate_hours(lake.objects, store)
    partitions = plan_sample(lake)
    buckets = choose_buckets(config, lake.buckets)
    # What may be chosen can have less audio than thought: limits, or other lengths. So a sample
    # that is too small gives a better estimate, and the last one takes all.
    for last in (False, False, True):
        top = sampling.first_threshold(config.hours, lake_hours, config.oversampling)
        top = sampling.RANGE if last else top
        sample = Sample(SampleConfig(config, top, buckets))
        sampled = executor.run(sample, partitions, place(sample, partitions, base))
        histogram = sampling.merge((result.about["bins"] for result in sampled), top)
        threshold = histogram.threshold(config.hours)
        if threshold is not None or top == sampling.RANGE:
            break
        lake_hours = max(histogram.hours * sampling.RANGE / top, 1e-9)
    if threshold is None:
        raise LakeError(
            f"{lake.url}: {histogram.hours:.2f} h may be chosen, fewer than the {config.hours:g} h"
            " wanted: ask for fewer hours or widen the limits"
        )
    group = Group(GroupConfig(config.hours_per_file, config.seed, threshold))
    buckets_of = plan_group(sampled)
    grouped = executor.run(group, buckets_of, place(group, buckets_of, base))
    return [ref for result in grouped for ref in result.outputs]


def choose_buckets(config: SelectConfig, lake_buckets: int | None) -> int:
    """Choose the number of buckets: a multiple or divisor of the lake's keeps pieces few."""
    wanted = max(1, math.ceil(config.hours / (FILES_PER_BUCKET * config.hours_per_file)))
    if lake_buckets is None:
        return wanted
    if wanted >= lake_buckets:
        return lake_buckets * round(wanted / lake_buckets)
    return max(b for b in range(1, wanted + 1) if lake_buckets % b == 0)


def estimate_hours(objects: Sequence[ObjectRef], store: ObjectStore) -> float:
    """Estimate the lake's hours from the first metadata object's hours per byte."""
    lines = store.get(replace(objects[0], digest=None)).splitlines()
    seconds = sum(record.duration for record in _readable(lines))
    if not seconds:
        raise LakeError(f"{objects[0].path}: holds no metadata records")
    return seconds / 3600 / objects[0].size * sum(ref.size for ref in objects)


def hours_on_offer(lake: Lake, config: SelectConfig, store: ObjectStore) -> float:
    """Sum the hours of the records that may be chosen; reads all of the lake's metadata."""
    lines = (store.get(ref).splitlines() for ref in lake.objects)
    records = (record for own in lines for record in _readable(own) if config.takes(record))
    return sum(record.duration for record in records) / 3600


def _readable(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        try:
            yield Record.from_line(line)
        except LakeError:
            continue
