"""Far-field speech as a data lake, ordered as from devices: by time and speaker (C15)."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timezone

from lhotse import MonoCut

from toolkit.corpus.manifest import audio_of, speaker_of
from toolkit.pipeline.lake import Lake, LakeError, Record, bucket_of, metadata_path
from toolkit.pipeline.objects import ObjectStore

DAY = 86_400


def write_lake(
    cuts: Iterable[MonoCut],
    store: ObjectStore,
    url: str,
    interval_days: int = 30,
    buckets: int = 4,
    locale: str = "en-US",
) -> Lake:
    """Write the metadata of cuts whose audio lies in the lake already, and lake.json.

    Records have the cuts' own ids and speakers and the times in `custom["time"]`; no text.

    Args:
      cuts: whole files; the paths of their audio are relative to `url`, or absolute.
      url: prefix of the lake.
      interval_days: days per object of metadata (C15).
      buckets: number of speaker buckets of the metadata (C15).

    Raises:
      LakeError: a cut without a time, or a part of a file.
    """
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for cut in cuts:
        record = _record(cut, locale)
        days = record.time // (interval_days * DAY) * interval_days * DAY
        interval = datetime.fromtimestamp(days, timezone.utc).strftime("%Y-%m-%d")
        groups[interval, bucket_of(record.speaker, buckets)].append(record)
    objects = []
    for (interval, bucket), records in sorted(groups.items()):
        records.sort(key=lambda record: (record.speaker, record.time, record.id))
        seconds = sum(record.duration for record in records)
        about = {"hours": seconds / 3600, "utterances": len(records)}
        lines = b"".join(record.to_line() for record in records)
        objects.append(store.put(metadata_path(url, interval, bucket), lines, about))
    lake = Lake(url, tuple(objects), buckets)
    lake.save(store)
    return lake


def _record(cut: MonoCut, locale: str) -> Record:
    time = (cut.custom or {}).get("time")
    if time is None:
        raise LakeError(f"{cut.id}: the cut has no time, which a data lake is ordered by")
    if cut.start or abs(cut.duration - cut.recording.duration) > 1e-6:
        raise LakeError(f"{cut.id}: the cut is a part of a file; a data lake needs whole files")
    return Record(cut.id, speaker_of(cut), cut.duration, time, locale, audio_of(cut))
