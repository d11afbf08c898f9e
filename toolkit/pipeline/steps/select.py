"""Selection: a uniform sample of the lake's records, grouped by speaker (C16).

`Sample` streams the metadata and keeps the lines whose random number is below a threshold, in
buckets by a hash of the speaker. `Group` reads one bucket and writes files of whole speakers, each
speaker's utterances in time order; these files are the partitions of all later steps. Only sampled
lines are moved, and where the lake is partitioned by speaker, each partition of `Sample` writes
into few buckets.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import NamedTuple, Protocol

from toolkit.pipeline import sampling
from toolkit.pipeline.lake import Lake, LakeError, metadata_totals, readable
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.output_paths import output_path
from toolkit.pipeline.step import Partition, Step, StepResult
from toolkit.pipeline.steps.group import FILES_PER_BUCKET, Group, GroupConfig, plan_group
from toolkit.pipeline.steps.sample import Sample, SampleConfig, SelectConfig, plan_sample

ALMOST_ALL = 0.999
"""Largest share of what is eligible that is selected: the threshold needs a small margin."""


class Executor(Protocol):
    """Interface of the executors: runs a step and returns the results in the partitions' order."""

    def run(self, step: Step, partitions: Sequence[Partition], out: str) -> list[StepResult]:
        """Run the step, as described at `toolkit.pipeline.executor.Executor.run`."""


class Selection(NamedTuple):
    """Selected records."""

    files: list[ObjectRef]
    """Files of whole speakers by name, with `hours`, `utterances` and `speakers`."""
    failures: list[tuple[str, str]]
    """(utterance or line of metadata, reason) of the records that cannot be taken."""


def select(
    lake: Lake,
    config: SelectConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    up_to: bool = False,
) -> list[ObjectRef]:
    """Return the files of `make_selection`, which has the same arguments and errors."""
    return make_selection(lake, config, executor, store, base, up_to).files


def make_selection(
    lake: Lake,
    config: SelectConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    up_to: bool = False,
) -> Selection:
    """Select records of the lake and group them into files by speaker.

    This process reads no records, but for the first object with any of a lake whose hours are not
    known: how many hours are eligible, the sample itself tells.

    Args:
      lake: the lake to select from.
      config: how much to select, and which records are eligible.
      executor: runs the steps.
      store: reads a metadata object where lake.json is missing.
      base: prefix below which each step writes.
      up_to: where fewer hours are eligible, select all but a thousandth of them.

    Raises:
      LakeError: no records are eligible, or, unless `up_to`, fewer hours than are to be selected.
    """
    known = metadata_totals(lake.objects)
    told = known["hours"] if known else 0.0
    lake_hours = told if told > 0 else estimate_hours(lake.objects, store)
    partitions = plan_sample(lake)
    buckets = choose_buckets(min(config.hours, lake_hours), config.hours_per_file, lake.buckets)
    # There can be less eligible audio than estimated, by limits or shorter utterances. A sample
    # that is too small gives a better estimate for the next; the last sample takes everything.
    for last in (False, False, True):
        top = sampling.first_threshold(config.hours, lake_hours, config.oversampling)
        top = sampling.RANGE if last else top
        sample = Sample(SampleConfig(config, top, buckets))
        sampled = executor.run(sample, partitions, output_path(sample, partitions, base))
        histogram = sampling.merge((result.about["bins"] for result in sampled), top)
        whole = top == sampling.RANGE
        hours = config.hours
        if up_to and whole:
            hours = min(hours, ALMOST_ALL * histogram.hours)
        threshold = histogram.threshold(hours)
        if threshold is not None or whole:
            break
        lake_hours = max(histogram.hours * sampling.RANGE / top, 1e-9)
    if threshold is None and up_to:
        raise LakeError(
            f"{lake.url}: no utterance lasts {config.min_duration:g} to {config.max_duration:g} s"
            " and meets the other limits of prepare.select: widen them"
        )
    if threshold is None:
        raise LakeError(
            f"{lake.url}: {histogram.hours:.2f} h are eligible, fewer than the {config.hours:g} h"
            " requested: ask for fewer hours or widen the limits"
        )
    group = Group(GroupConfig(config.hours_per_file, config.seed, threshold))
    partitions = plan_group(sampled)
    grouped = executor.run(group, partitions, output_path(group, partitions, base))
    failures = [failure for result in (*sampled, *grouped) for failure in result.failures]
    return Selection([ref for result in grouped for ref in result.outputs], failures)


def choose_buckets(hours: float, hours_per_file: float, lake_buckets: int | None) -> int:
    """Choose the number of buckets: a multiple or divisor of the lake's keeps objects few."""
    needed = max(1, math.ceil(hours / (FILES_PER_BUCKET * hours_per_file)))
    if lake_buckets is None:
        return needed
    if needed >= lake_buckets:
        return lake_buckets * round(needed / lake_buckets)
    return max(b for b in range(1, needed + 1) if lake_buckets % b == 0)


def estimate_hours(objects: Sequence[ObjectRef], store: ObjectStore) -> float:
    """Estimate the lake's hours from the hours per byte of its first object with any."""
    for ref in objects:
        lines = BytesIO(store.get(replace(ref, digest=None)))
        seconds = sum(record.duration for record in readable(lines))
        if seconds:
            return seconds / 3600 / ref.size * sum(ref.size for ref in objects)
    raise LakeError(f"{objects[0].path} and the other objects hold no metadata records")
