"""Selection: a uniform sample of the lake's records, grouped by speaker (C16).

Every record has a random number, a hash of the seed and its id, and is chosen if the number is
below a threshold. So the choice of a record does not depend on the order, the partition or other
records, and a smaller sample is a subset of a larger one. As in the paper, slightly too much is
sampled at first, by an estimate of the average length; then the threshold is lowered to where a
histogram of the sampled hours reaches the target.

`Sample` streams the metadata in constant memory and keeps the lines whose random number is below
the threshold, in buckets by a hash of the speaker. `Group` reads one bucket and writes files of
whole speakers, nearly equal in length (C22), with each speaker's utterances in time order; these
files are the partitions of all later steps. Only sampled lines are moved, and where the lake is
partitioned by speaker, each partition of `Sample` writes into few buckets.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from toolkit.features.shards import partition_by_size
from toolkit.pipeline.config import SelectConfig
from toolkit.pipeline.executor import Executor
from toolkit.pipeline.lake import Lake, LakeError, Record, bucket_of, metadata_totals, readable
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.step import Partition, Resources, StepResult, output_path
from toolkit.storage.reading import reason, validated

RANGE = 1 << 64
"""Random numbers are from 0 to RANGE - 1."""
BINS = 1024
MICROSECONDS = 1_000_000
ID_FIRST = b'{"id": "'


def random_numbers(seed: int) -> Callable[[str], int]:
    """Return the function that computes a record's random number from its id."""
    keyed = hashlib.blake2b(digest_size=8, key=str(seed).encode())

    def number(id: str) -> int:
        """Return the random number of a record's id."""
        hasher = keyed.copy()
        hasher.update(id.encode())
        return int.from_bytes(hasher.digest(), "big")

    return number


def id_of(line: bytes) -> str:
    """Read a record's id, without parsing the rest of the line if the id is its first field.

    Raises:
      ValueError, RecursionError: the line is not a record.
    """
    if line.startswith(ID_FIRST):
        end = line.index(b'"', len(ID_FIRST))
        name = line[len(ID_FIRST) : end]
        if b"\\" not in name:
            return name.decode()
    return validated(json.loads(line), {"id": str}, "the line")["id"]


@dataclass(frozen=True)
class Histogram:
    """Duration of the sampled audio by random number, in integers so that sums are exact."""

    top: int
    """The sampling threshold; the bins divide 0 to `top` equally."""
    microseconds: tuple[int, ...]
    """[BINS] duration of the audio in each bin."""

    @property
    def hours(self) -> float:
        """Hours of all sampled audio."""
        return sum(self.microseconds) / (3600 * MICROSECONDS)

    def threshold(self, hours: float) -> int | None:
        """Find the threshold below which `hours` were sampled; None if fewer were sampled.

        It is interpolated within a bin: for 1 M hours the error is about one hour.
        """
        target = hours * 3600 * MICROSECONDS
        below = 0
        for number, amount in enumerate(self.microseconds):
            if amount and below + amount >= target:
                return round(self.top * (number + (target - below) / amount) / BINS)
            below += amount
        return None


def bin_of(number: int, top: int) -> int:
    """Return the bin of a random number below `top`."""
    return number * BINS // top


def merge_histograms(histograms: Iterable[Sequence[int]], top: int) -> Histogram:
    """Add up the bins of several partitions."""
    sums = [0] * BINS
    for bins in histograms:
        sums = [a + b for a, b in zip(sums, bins, strict=True)]
    return Histogram(top, tuple(sums))


def first_threshold(hours: float, lake_hours: float, oversampling: float) -> int:
    """Return the first sampling threshold, given the (estimated) hours of the lake."""
    return min(RANGE, round(RANGE * min(1.0, oversampling * hours / lake_hours)))


PARTITION_BYTES = 128 << 20
"""Metadata per partition: a few seconds of work."""
BUFFER_BYTES = 4 << 20
"""Bytes of lines kept in memory before they are written to disk."""


@dataclass(frozen=True)
class SampleConfig:
    """Settings of `Sample`."""

    select: SelectConfig
    """Which records are eligible."""
    threshold: int
    """Records whose random number is below this are chosen."""
    buckets: int
    """Number of speaker buckets into which the chosen records are written."""


@dataclass(frozen=True)
class Sample:
    """Keep the records of some metadata objects whose random number is below the threshold.

    The result's `about` has the `utterances` and `hours` kept, the number of lines `read`, and
    `bins` (microseconds of audio by random number).
    """

    config: SampleConfig
    name = "sample"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Sample the records of some metadata objects; see `Step.run`."""
        config, select = self.config, self.config.select
        number_of = random_numbers(select.seed)
        buckets = _BucketFiles(resources.scratch / "pieces")
        bins = [0] * BINS
        failures, read, selected = [], 0, 0
        for ref in partition.inputs:
            name = ref.path.rsplit("/", 2)
            with open(store.local(ref, resources.scratch), "rb") as file:
                for row, line in enumerate(file, start=1):
                    read += 1
                    # The id alone decides: most lines are skipped without parsing them.
                    try:
                        number = number_of(id_of(line))
                        if number >= config.threshold:
                            continue
                        record = Record.from_line(line)
                    except (LakeError, ValueError, RecursionError) as error:
                        where = f"{'/'.join(name[1:])}:{row}"
                        failures.append((where, f"not a metadata record: {reason(error)}"))
                        continue
                    if is_eligible(record, select):
                        # Microseconds as integers: sums do not depend on the order of partitions.
                        bin = bin_of(number, config.threshold)
                        bins[bin] += round(record.duration * MICROSECONDS)
                        selected += 1
                        ended = line if line.endswith(b"\n") else line + b"\n"  # the last one
                        buckets.add(bucket_of(record.speaker, config.buckets), ended)
        outputs = tuple(
            store.put_file(path, f"{out}/{bucket:05d}/{partition.id}.jsonl", {"bucket": bucket})
            for bucket, path in buckets.close()
        )
        hours = sum(bins) / (3600 * MICROSECONDS)
        about = {"utterances": selected, "hours": hours, "read": read, "bins": bins}
        return StepResult(outputs, tuple(failures), about)


def plan_sample(lake: Lake) -> list[Partition]:
    """Group metadata objects, bucket by bucket, into partitions of a few seconds of work."""
    partitions: list[Partition] = []
    batch: list[ObjectRef] = []

    def close() -> None:
        if batch:
            hours = sum(ref.about.get("hours", 0.0) for ref in batch)
            partitions.append(Partition(f"{len(partitions):06d}", tuple(batch), {"hours": hours}))
            batch.clear()

    # The objects' names are their speaker buckets: sorted, a partition has few buckets.
    for ref in sorted(lake.objects, key=lambda ref: (ref.path.rsplit("/", 1)[-1], ref.path)):
        if sum(r.size for r in batch) + ref.size > PARTITION_BYTES:
            close()
        batch.append(ref)
    close()
    return partitions


def is_eligible(record: Record, config: SelectConfig) -> bool:
    """Return whether a record's length, time and locale are within the limits of `config`."""
    return (
        config.min_duration <= record.duration <= config.max_duration
        and (config.since is None or record.time >= config.since)
        and (config.until is None or record.time < config.until)
        and (config.locale is None or record.locale == config.locale)
    )


class _BucketFiles:
    """Lines by bucket, buffered in a few megabytes of memory and appended to files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lines: dict[int, list[bytes]] = defaultdict(list)
        self._held = 0
        self._buckets: set[int] = set()

    def add(self, bucket: int, line: bytes) -> None:
        self._lines[bucket].append(line)
        self._held += len(line)
        if self._held > BUFFER_BYTES:
            self._flush()

    def close(self) -> list[tuple[int, Path]]:
        self._flush()
        return [(bucket, self._path(bucket)) for bucket in sorted(self._buckets)]

    def _flush(self) -> None:
        for bucket, lines in self._lines.items():
            with open(self._path(bucket), "ab") as file:
                file.writelines(lines)
        self._buckets.update(self._lines)
        self._lines.clear()
        self._held = 0

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:05d}.jsonl"


FILES_PER_BUCKET = 50
"""Files per bucket, which is held in memory: the records of 250 h at 5 h per file."""


@dataclass(frozen=True)
class GroupConfig:
    """Settings of `Group`."""

    hours_per_file: float
    """Audio per file in hours."""
    seed: int
    """The seed of the sample."""
    threshold: int
    """Records whose random number is below this are kept; at most the sample's threshold."""


@dataclass(frozen=True)
class Group:
    """Group one bucket's records by speaker into files of nearly equal length.

    Each output's `about` has `hours`, `utterances` and `speakers`.
    """

    config: GroupConfig
    name = "group"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Group the records of one bucket; see `Step.run`."""
        number_of = random_numbers(self.config.seed)
        # Entries are (time, id, seconds, line), so that they sort by time.
        speakers: dict[str, list[tuple[float, str, float, bytes]]] = defaultdict(list)
        ids, failures = set(), []
        for ref in partition.inputs:
            for line in BytesIO(store.get(ref)):  # not by `splitlines`, which ends them at \r too
                values = json.loads(line)
                id = values["id"]
                if number_of(id) >= self.config.threshold:
                    continue
                if id in ids:
                    failures.append((id, "another record has this id"))
                    continue
                ids.add(id)
                entry = (float(values["time"]), id, float(values["duration"]), line)
                speakers[values["speaker"]].append(entry)
        outputs = []
        for number, names in enumerate(pack(speakers, self.config.hours_per_file)):
            entries = [entry for name in names for entry in sorted(speakers[name])]
            about = {
                "hours": math.fsum(entry[2] for entry in entries) / 3600,
                "utterances": len(entries),
                "speakers": len(names),
            }
            path = f"{out}/files/{partition.id}-{number:04d}.jsonl"
            outputs.append(store.put(path, b"".join(entry[3] for entry in entries), about))
        about = {
            "hours": math.fsum(ref.about["hours"] for ref in outputs),
            "utterances": sum(ref.about["utterances"] for ref in outputs),
        }
        return StepResult(tuple(outputs), tuple(failures), about)


def pack(speakers: dict[str, list[tuple]], hours_per_file: float) -> list[list[str]]:
    """Distribute speakers over files of nearly equal length; return each file's speakers.

    The entries of `speakers` are by speaker; an entry's third field is its duration in seconds.
    """
    seconds = {s: math.fsum(entry[2] for entry in entries) for s, entries in speakers.items()}
    return partition_by_size(seconds, round(math.fsum(seconds.values()) / (3600 * hours_per_file)))


def plan_group(sampled: Iterable[StepResult]) -> list[Partition]:
    """Make a partition of each bucket's parts, which `Sample` wrote."""
    parts: dict[int, list[ObjectRef]] = defaultdict(list)
    for result in sampled:
        for ref in result.outputs:
            parts[ref.about["bucket"]].append(ref)
    return [
        Partition(f"{bucket:05d}", tuple(sorted(refs, key=lambda ref: ref.path.rsplit("/", 1)[-1])))
        for bucket, refs in sorted(parts.items())
    ]


ALMOST_ALL = 0.999
"""Largest share of the eligible audio that can be selected: the threshold needs a small margin."""


class Selection(NamedTuple):
    """Selected records."""

    files: list[ObjectRef]
    """Files of whole speakers by name, with `hours`, `utterances` and `speakers`."""
    failures: list[tuple[str, str]]
    """(utterance or line of metadata, reason) of the records that cannot be selected."""


def select_records(
    lake: Lake,
    config: SelectConfig,
    executor: Executor,
    store: ObjectStore,
    base: str,
    up_to: bool = False,
) -> Selection:
    """Select records of the lake and group them into files by speaker.

    This process reads records only if the hours of the lake are unknown, and then from the first
    object that has any. The sample itself shows how many hours are eligible.

    Args:
      lake: the lake to select from.
      config: how much to select, and which records are eligible.
      executor: runs the steps.
      store: reads a metadata object where lake.json is missing.
      base: prefix below which each step writes.
      up_to: if fewer hours are eligible than requested, select all but a thousandth of them.

    Raises:
      LakeError: no records are eligible, or, unless `up_to`, fewer hours than requested.
    """
    # 1. The hours of the lake: from lake.json, else estimated from one metadata object (C16).
    totals = metadata_totals(lake.objects)
    total_hours = totals["hours"] if totals else 0.0
    lake_hours = total_hours if total_hours > 0 else estimate_hours(lake.objects, store)
    partitions = plan_sample(lake)
    buckets = choose_buckets(min(config.hours, lake_hours), config.hours_per_file, lake.buckets)
    # 2. Sample. Limits or short utterances may leave less eligible audio than estimated. A sample
    # that is too small gives a better estimate for the next; the last sample takes everything.
    for last in (False, False, True):
        top = first_threshold(config.hours, lake_hours, config.oversampling)
        top = RANGE if last else top
        sample = Sample(SampleConfig(config, top, buckets))
        sampled = executor.run(sample, partitions, output_path(sample, partitions, base))
        histogram = merge_histograms((result.about["bins"] for result in sampled), top)
        takes_all = top == RANGE
        hours = config.hours
        if up_to and takes_all:
            hours = min(hours, ALMOST_ALL * histogram.hours)
        threshold = histogram.threshold(hours)
        if threshold is not None or takes_all:
            break
        lake_hours = max(histogram.hours * RANGE / top, 1e-9)
    if threshold is None and up_to:
        raise LakeError(
            f"{lake.url}: no utterance lasts {config.min_duration:g} to {config.max_duration:g} s"
            " and meets the other limits of `prepare.select`: widen these limits"
        )
    if threshold is None:
        raise LakeError(
            f"{lake.url}: {histogram.hours:.2f} h of speech are eligible, fewer than the"
            f" {config.hours:g} h requested: ask for fewer hours or widen the limits of the"
            " selection"
        )
    # 3. Lower the threshold to where the histogram reaches the hours, and group by speaker.
    group = Group(GroupConfig(config.hours_per_file, config.seed, threshold))
    partitions = plan_group(sampled)
    grouped = executor.run(group, partitions, output_path(group, partitions, base))
    failures = [failure for result in (*sampled, *grouped) for failure in result.failures]
    return Selection([ref for result in grouped for ref in result.outputs], failures)


def choose_buckets(hours: float, hours_per_file: float, lake_buckets: int | None) -> int:
    """Choose a number of buckets that is a multiple or divisor of the lake's, for fewer objects."""
    needed = max(1, math.ceil(hours / (FILES_PER_BUCKET * hours_per_file)))
    if lake_buckets is None:
        return needed
    if needed >= lake_buckets:
        return lake_buckets * round(needed / lake_buckets)
    return max(b for b in range(1, needed + 1) if lake_buckets % b == 0)


def estimate_hours(objects: Sequence[ObjectRef], store: ObjectStore) -> float:
    """Estimate the lake's hours from the hours per byte of the first object with records."""
    for ref in objects:
        lines = BytesIO(store.get(replace(ref, digest=None)))
        seconds = sum(record.duration for record in readable(lines))
        if seconds:
            return seconds / 3600 / ref.size * sum(ref.size for ref in objects)
    raise LakeError(
        f"{objects[0].path} and the other metadata objects of the lake contain no records"
    )
