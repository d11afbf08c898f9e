"""The step `sample`: sampling of a stream of metadata records in constant memory (C16)."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from toolkit.pipeline import sampling
from toolkit.pipeline.lake import Lake, LakeError, Record, bucket_of
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.step import Partition, Resources, StepResult
from toolkit.storage.reading import reason

PARTITION_BYTES = 128 << 20
"""Metadata per partition: some seconds of work."""
BUFFER_BYTES = 4 << 20
"""Lines kept in memory before they are written to disk."""


@dataclass(frozen=True)
class SelectConfig:
    """How much audio is selected from the lake, and which records are eligible."""

    hours: float = 1_000_000.0
    """Audio to select in hours; 1,000,000 (C16)."""
    hours_per_file: float = 5.0
    """Audio per file of grouped records in hours; 5 (C16)."""
    oversampling: float = 1.02
    """Factor by which more is sampled at first than an estimate from average lengths (C16)."""
    seed: int = 0
    """Random seed of the choice of records."""
    since: float | None = None
    """Earliest creation time in seconds since 1970; None for no limit."""
    until: float | None = None
    """Creation times must be earlier than this; None for no limit."""
    locale: str | None = None
    """Only records of this locale; None for all."""
    min_duration: float = 0.1
    """Shortest utterance in seconds."""
    max_duration: float = 60.0
    """Longest utterance in seconds."""

    def __post_init__(self) -> None:
        if self.hours <= 0 or self.hours_per_file <= 0:
            raise ValueError("hours and hours_per_file must be positive")
        if self.oversampling < 1:
            raise ValueError("oversampling must be at least 1")
        if not 0 <= self.min_duration < self.max_duration:
            raise ValueError("needs 0 <= min_duration < max_duration")

    def takes(self, record: Record) -> bool:
        """Whether a record is eligible."""
        return (
            self.min_duration <= record.duration <= self.max_duration
            and (self.since is None or record.time >= self.since)
            and (self.until is None or record.time < self.until)
            and (self.locale is None or record.locale == self.locale)
        )


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

    `about` has the `utterances` and `hours` kept, the number of lines `read`, and `bins`
    (microseconds of audio by random number).
    """

    config: SampleConfig
    name = "sample"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Sample some metadata objects, as described at `Step.run`."""
        config, select = self.config, self.config.select
        number_of = sampling.random_numbers(select.seed)
        buckets = _BucketFiles(resources.scratch / "pieces")
        bins = [0] * sampling.BINS
        failures, read, kept = [], 0, 0
        for ref in partition.inputs:
            name = ref.path.rsplit("/", 2)
            with open(store.local(ref, resources.scratch), "rb") as file:
                for row, line in enumerate(file, start=1):
                    read += 1
                    try:
                        number = number_of(sampling.id_of(line))
                        if number >= config.threshold:
                            continue
                        record = Record.from_line(line)
                    except (LakeError, ValueError, RecursionError) as error:
                        where = f"{'/'.join(name[1:])}:{row}"
                        failures.append((where, f"no metadata record: {reason(error)}"))
                        continue
                    if select.takes(record):
                        bin = sampling.bin_of(number, config.threshold)
                        bins[bin] += round(record.duration * sampling.MICROSECONDS)
                        kept += 1
                        ended = line if line.endswith(b"\n") else line + b"\n"  # the last one
                        buckets.add(bucket_of(record.speaker, config.buckets), ended)
        outputs = tuple(
            store.put_file(path, f"{out}/{bucket:05d}/{partition.id}.jsonl", {"bucket": bucket})
            for bucket, path in buckets.close()
        )
        hours = sum(bins) / (3600 * sampling.MICROSECONDS)
        about = {"utterances": kept, "hours": hours, "read": read, "bins": bins}
        return StepResult(outputs, tuple(failures), about)


def plan_sample(lake: Lake) -> list[Partition]:
    """Group metadata objects, bucket by bucket, into partitions of some seconds of work."""
    partitions: list[Partition] = []
    batch: list[ObjectRef] = []

    def close() -> None:
        if batch:
            hours = sum(ref.about.get("hours", 0.0) for ref in batch)
            partitions.append(Partition(f"{len(partitions):06d}", tuple(batch), {"hours": hours}))
            batch.clear()

    for ref in sorted(lake.objects, key=lambda ref: (ref.path.rsplit("/", 1)[-1], ref.path)):
        if sum(r.size for r in batch) + ref.size > PARTITION_BYTES:
            close()
        batch.append(ref)
    close()
    return partitions


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
