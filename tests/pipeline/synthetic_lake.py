"""Synthetic lakes for tests and benchmarks: real or synthetic cuts with random times."""

import io
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np

from toolkit.corpus.audio import encode_audio
from toolkit.corpus.manifest import audio_of, speaker_of
from toolkit.features.cut_audio import load_cut_audio
from toolkit.pipeline.lake import (
    Lake,
    LakeError,
    Record,
    bucket_of,
    metadata_path,
    stable_hash,
)
from toolkit.pipeline.objects import ObjectRef, ObjectStore

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

RATE = 16000
FIRST_DAY = 1_767_225_600  # 2026-01-01
DAY = 86_400
MEAN_LOG, SIGMA_LOG = 1.05, 0.65  # log-normal durations of 3.5 s on average


@dataclass(frozen=True)
class SyntheticLakeConfig:
    """Settings of a synthetic lake."""

    hours: float = 0.0
    """Cuts are repeated under new ids until there is this much audio; 0: every cut once."""
    days: int = 90
    """Days over which the creation times are spread."""
    interval_days: int = 30
    """Days per interval of the metadata (C15)."""
    buckets: int = 4
    """Speaker buckets of the metadata (C15)."""
    layout: str = "aggregated"
    """Storage of the audio: tar objects by interval and bucket (`aggregated`), an object per
    utterance (`single`), or the original files (`in-place`; cuts must be whole files)."""
    encoding: str = "WAV"
    """Encoding of the audio written: `WAV` (16 bit, 256 kbps: C35) or `FLAC`."""
    seed: int = 0
    """Random seed of times and of the speakers' anonymous names."""
    locale: str = "en-US"
    """Locale of all records."""

    def __post_init__(self) -> None:
        if self.layout not in ("aggregated", "single", "in-place"):
            raise ValueError(f"layout is {self.layout!r}: aggregated, single or in-place")
        if self.encoding not in ("WAV", "FLAC"):
            raise ValueError(f"encoding is {self.encoding!r}: WAV or FLAC")
        if min(self.days, self.interval_days, self.buckets) < 1:
            raise ValueError("days, interval_days and buckets must be at least 1")


def make_lake(
    cuts: "Iterable[MonoCut]", store: ObjectStore, url: str, config: SyntheticLakeConfig
) -> Lake:
    """Write audio, metadata and lake.json; the same cuts give the same bytes."""
    cuts = sorted(cuts, key=lambda cut: cut.id)
    groups: dict[tuple[str, int], list[tuple[Record, MonoCut]]] = defaultdict(list)
    for record, cut in _records(cuts, config):
        key = (_interval(record.time, config), bucket_of(record.speaker, config.buckets))
        groups[key].append((record, cut))
    objects = []
    for (interval, bucket), members in sorted(groups.items()):
        members.sort(key=lambda member: (member[0].speaker, member[0].time, member[0].id))
        records = _store_audio(members, store, url, interval, bucket, config)
        objects.append(_put_records(store, metadata_path(url, interval, bucket), records))
    lake = Lake(url, tuple(objects), config.buckets)
    lake.save(store)
    return lake


def make_metadata(
    store: ObjectStore, url: str, records: int, speakers: int, config: SyntheticLakeConfig
) -> Lake:
    """Write a lake of metadata only, without any audio, in constant memory."""
    by_bucket = defaultdict(list)
    for number in range(speakers):
        name = f"{stable_hash(config.seed, number):016x}"
        by_bucket[bucket_of(name, config.buckets)].append(name)
    intervals = -(-config.days // config.interval_days)
    groups = [(i, b) for i in range(intervals) for b in sorted(by_bucket)]
    objects = []
    for index, (interval, bucket) in enumerate(groups):
        count = records * (index + 1) // len(groups) - records * index // len(groups)
        start = FIRST_DAY + interval * config.interval_days * DAY
        name = _interval(start, config)
        generator = np.random.default_rng([config.seed, interval, bucket])
        owners = np.sort(generator.integers(0, len(by_bucket[bucket]), count))
        durations = generator.lognormal(MEAN_LOG, SIGMA_LOG, count).clip(0.5, 30).round(3)
        times = (start + generator.uniform(0, config.interval_days * DAY, count)).round(3)
        group = (
            Record(
                id=f"{name}-{bucket:04d}-{number:08d}",
                speaker=by_bucket[bucket][owner],
                duration=float(duration),
                time=float(time),
                locale=config.locale,
                audio=f"audio/{name}/{bucket:04d}/{number:08d}.wav",
            )
            for number, (owner, duration, time) in enumerate(
                zip(owners, durations, times, strict=True)
            )
        )
        objects.append(_put_records(store, metadata_path(url, name, bucket), group))
    lake = Lake(url, tuple(objects), config.buckets)
    lake.save(store)
    return lake


def _records(
    cuts: "Sequence[MonoCut]", config: SyntheticLakeConfig
) -> "Iterator[tuple[Record, MonoCut]]":
    seconds = sum(cut.duration for cut in cuts)
    if not seconds:
        raise LakeError("there are no cuts to make a lake of")
    target_seconds, seconds_written, repeat = max(config.hours * 3600, seconds), 0.0, 0
    while True:
        for cut in cuts:
            if seconds_written >= target_seconds:
                return
            seconds_written += cut.duration
            name = f"{cut.id}-{repeat:05d}"
            part = stable_hash(config.seed, "time", name) % 1_000_000 / 1_000_000
            speaker = f"{stable_hash(config.seed, 'speaker', speaker_of(cut)):016x}"
            time = FIRST_DAY + round(part * config.days * DAY, 3)
            yield Record(name, speaker, cut.duration, time, config.locale, ""), cut
        repeat += 1


def _store_audio(
    members: "list[tuple[Record, MonoCut]]",
    store: ObjectStore,
    url: str,
    interval: str,
    bucket: int,
    config: SyntheticLakeConfig,
) -> list[Record]:
    folder = f"audio/{interval}/speakers.{bucket:04d}"
    suffix = config.encoding.lower()
    if config.layout == "in-place":
        return [replace(record, audio=audio_of(_whole_file(cut))) for record, cut in members]
    if config.layout == "single":
        records = []
        for record, cut in members:
            path = f"{folder}/{record.id}.{suffix}"
            store.put(f"{url}/{path}", _encode(cut, config.encoding))
            records.append(replace(record, audio=path))
        return records
    records, stream = [], io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for record, cut in members:
            content = _encode(cut, config.encoding)
            header = tarfile.TarInfo(f"{record.id}.{suffix}")
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
            end = tar.offset - -len(content) % tarfile.BLOCKSIZE
            records.append(
                replace(
                    record,
                    audio=f"{folder}.tar",
                    offset=end - len(content),
                    size=len(content),
                )
            )
    store.put(f"{url}/{folder}.tar", stream.getvalue())
    return records


def _put_records(store: ObjectStore, path: str, records: Iterable[Record]) -> ObjectRef:
    lines, seconds = [], 0.0
    for record in records:
        lines.append(record.to_line())
        seconds += record.duration
    about = {"hours": seconds / 3600, "utterances": len(lines)}
    return store.put(path, b"".join(lines), about)


def _interval(time: float, config: SyntheticLakeConfig) -> str:
    length = config.interval_days * DAY
    start = FIRST_DAY + (time - FIRST_DAY) // length * length
    return datetime.fromtimestamp(start, timezone.utc).strftime("%Y-%m-%d")


def _whole_file(cut: "MonoCut") -> "MonoCut":
    if cut.start or abs(cut.duration - cut.recording.duration) > 1e-6:
        raise LakeError(
            f"{cut.id}: only whole files can be used in place, and this is a part of one"
        )
    return cut


def _encode(cut: "MonoCut", encoding: str) -> bytes:
    return encode_audio(load_cut_audio(cut, RATE).numpy(), RATE, encoding)
