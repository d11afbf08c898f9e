"""The step `extract`: features of a file of records, whole speakers in time order (C17).

The audio is fetched with few calls, and ahead of its use (C24, C34): a call has a latency of about
200 ms, and then reads at 50 MB/s. So records in the same object are fetched together, including the
gaps between them where reading a gap is cheaper than another call; audio files that are objects of
their own are prefetched, many at a time.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from torch import Tensor

from toolkit.features.audio import AudioError, Decoded, decode_audio
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.shards import SHARDS, cuts_path, features_path, write_shard
from toolkit.pipeline.lake import LakeError, Record, resolve
from toolkit.pipeline.objects import (
    MissingObjectError,
    ObjectError,
    ObjectRef,
    ObjectStore,
    is_local,
    local_path,
)
from toolkit.pipeline.shards import put_shard
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult
from toolkit.processes.devices import torch_threads
from toolkit.processes.workers import map_in_threads

GAP_BYTES = 8 << 20
"""Largest gap between records that is read as well, rather than skipped by another call."""
SPAN_BYTES = 32 << 20
"""Largest number of bytes per call."""
SPAN_THREADS, FILE_THREADS = 3, 16

Content = bytes | bytearray
Item = TypeVar("Item")
Value = TypeVar("Value")


class FetchError(Exception):
    """Audio that is missing or truncated; the message contains no path outside the lake."""


@dataclass(frozen=True)
class Span:
    """A byte range of an object."""

    path: str
    """Path of the object, as in the records."""
    start: int
    """First byte."""
    end: int
    """Byte after the last."""


def plan_spans(records: Sequence[Record]) -> list[Span]:
    """Cover the records that are parts of larger objects with few spans.

    Spans of an object do not overlap. Each record lies within one span, and no span is longer than
    32 MiB unless it covers a record, or overlapping records, longer than that.
    """
    parts = sorted(
        {(r.audio, r.offset, r.offset + r.size) for r in records if r.offset is not None}
    )
    spans: list[Span] = []
    for path, start, end in parts:
        last = spans[-1] if spans else None
        # Extend the last span over a small gap, or if the parts overlap; else begin a new one.
        if last and last.path == path:
            new_end = max(end, last.end)
            is_near = start - last.end <= GAP_BYTES and new_end - last.start <= SPAN_BYTES
            if is_near or start < last.end:
                spans[-1] = Span(path, last.start, new_end)
                continue
        spans.append(Span(path, start, end))
    return spans


def fetch(
    records: Sequence[Record], store: ObjectStore, lake: str, scratch: Path
) -> Iterator[tuple[Record, Content | FetchError]]:
    """Fetch the audio of every record, in order.

    Memory does not depend on the number of records: spans are stored in `scratch`, and only a few
    files are prefetched.

    Args:
      records: in the order in which they are returned.
      store: its settings are used; the calls of all threads are added to its counts.
      lake: base of relative paths.
      scratch: local folder for spans.

    Yields:
      Each record with the content of its audio file, or with the reason why there is none. If the
      object store does not answer, an error is raised instead, since the audio may well exist.
    """
    with _Workers(store) as workers, ExitStack() as stack:
        spans = _Spans(records, workers, lake, scratch, stack)

        def read(thread_store: ObjectStore, record: Record) -> Content | FetchError:
            if record.offset is not None:
                return spans.read(thread_store, record)
            path = resolve(record.audio, lake)
            if is_local(path) and not os.path.isfile(local_path(path)):
                return FetchError(f"{record.audio}: no such object")
            try:
                return thread_store.get(path)
            except MissingObjectError:
                return FetchError(f"{record.audio}: no such object")

        # Threads help only with remote files of one utterance each: spans are on this disk already.
        ahead = any(r.offset is None and not is_local(resolve(r.audio, lake)) for r in records)
        contents = workers.map(read, records, FILE_THREADS if ahead else 0)
        yield from zip(records, contents, strict=True)


class _Spans:
    """Audio within larger objects: remote spans are copied to `scratch`; local files are not."""

    def __init__(
        self,
        records: Sequence[Record],
        workers: "_Workers",
        lake: str,
        scratch: Path,
        stack: ExitStack,
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._lake = lake
        self._copies: dict[str, list[tuple[int, Path | None]]] = {}
        self._open: dict[str, BinaryIO | None] = {}
        self._stack = stack

        def copy(thread_store: ObjectStore, numbered: tuple[int, Span]) -> Path | None:
            content = _read_span(thread_store, numbered[1], resolve(numbered[1].path, lake))
            if content is None:
                return None
            copied = scratch / f"span.{numbered[0]:06d}"
            copied.write_bytes(content)
            return copied

        remote = [r for r in records if not is_local(resolve(r.audio, lake))]
        spans = plan_spans(remote)
        local_copies = workers.map(copy, list(enumerate(spans)), SPAN_THREADS)
        for span, copied in zip(spans, local_copies, strict=True):
            self._copies.setdefault(span.path, []).append((span.start, copied))

    def read(self, store: ObjectStore, record: Record) -> bytearray | FetchError:
        """Read a record's audio from a copied span or a local file, or return the error."""
        if record.audio in self._copies:
            copies = self._copies[record.audio]
            # The last span that begins at or before a record contains it all, see `plan_spans`.
            start, copied = copies[bisect_right(copies, record.offset, key=itemgetter(0)) - 1]
            if copied is None:
                return FetchError(f"{record.audio}: no such object")
            with open(copied, "rb") as file:
                return _part(file, record, record.offset - start)
        file = self._local_file(record.audio, store)
        if file is None:
            return FetchError(f"{record.audio}: no such object")
        content = _part(file, record, record.offset)
        if not isinstance(content, FetchError):
            store.counts.bytes_read += len(content)
        return content

    def _local_file(self, audio: str, store: ObjectStore) -> BinaryIO | None:
        """Open a local audio file, which stays open; None if it does not exist."""
        if audio not in self._open:
            store.counts.get += 1
            path = local_path(resolve(audio, self._lake))
            exists = os.path.isfile(path)
            file = open(path, "rb") if exists else None  # noqa: SIM115 - the stack closes it
            self._open[audio] = self._stack.enter_context(file) if exists else None
        return self._open[audio]


def _part(file: BinaryIO, record: Record, start: int) -> bytearray | FetchError:
    """Read a record's audio from byte `start`; return an error if the file is too short."""
    if start + record.size > os.fstat(file.fileno()).st_size:
        return FetchError(
            f"{record.audio}: the file ends before byte {record.offset + record.size}, where the "
            "utterance ends"
        )
    content = bytearray(record.size)  # numpy and torch can use it without a copy
    read = os.preadv(file.fileno(), [content], start)
    return content if read == record.size else FetchError(f"{record.audio}: {read} bytes read")


def _read_span(store: ObjectStore, span: Span, path: str) -> bytes | None:
    """Read a span, or its part within the object; return None if there is no such object."""
    if span.start == span.end:
        return b""  # HTTP has no empty range: servers answer with the whole object
    try:
        return store.get_range(path, span.start, span.end - span.start)
    except MissingObjectError:
        return None
    except ObjectError:
        # Find out whether the object is too short (a fault of its records) or the store is failing.
        size = store.size(path)
        if size is None or size >= span.end:
            raise
        return store.get_range(path, span.start, size - span.start) if size > span.start else b""


class _Workers:
    """Threads with an object store each; their counts are added to those of `store` at the end."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._local = threading.local()
        self._stores: list[ObjectStore] = []

    def map(
        self, function: Callable[[ObjectStore, Item], Value], items: Sequence[Item], threads: int
    ) -> Iterator[Value]:
        """Yield the results in order, computed `2 * threads` items ahead; if 0, on demand."""
        if threads == 0:
            for item in items:
                yield function(self._store, item)
            return
        # Two items per thread, and the item whose result is awaited.
        yield from map_in_threads(partial(self._call, function), items, threads, 2 * threads + 1)

    def _call(self, function: Callable[[ObjectStore, Item], Value], item: Item) -> Value:
        """Apply the function in a thread, with an object store of its own."""
        if not hasattr(self._local, "store"):
            self._local.store = ObjectStore(self._store.config)
            self._stores.append(self._local.store)
        return function(self._local.store, item)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for thread_store in self._stores:
            self._store.counts = self._store.counts + thread_store.counts


DURATION_TOLERANCE = 0.1
"""Accepted difference in seconds between audio and record; if larger, one of them is damaged."""


@dataclass(frozen=True)
class ExtractConfig:
    """Settings of `Extract`."""

    lake: str
    """Prefix of the lake: base of the relative paths in records."""
    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    """The front end (C5 by default)."""


@dataclass(frozen=True)
class Extract:
    """Fetch and decode audio, and write raw features and causal mean states, as the recipe does.

    A partition is one file of `Group`; its `about["shard"]` is the number of the shard written.
    Like `toolkit.features.extract`, it stores the raw features and the sum over the speaker's
    earlier frames; the causal mean is computed from both at load time. An utterance whose audio is
    missing or broken is listed as a failure and does not enter the mean.
    """

    config: ExtractConfig
    name = "extract"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Extract the features of one file; see `Step.run`."""
        index = partition.about["shard"]
        frontend = self.config.frontend
        failures: list[tuple[str, str]] = []
        records = [
            record
            for ref in partition.inputs
            for record in read_records(store.get(ref), ref.path, failures)
        ]
        check_order(records)
        folder = resources.scratch / SHARDS
        seconds: list[float] = []
        # A chain of generators: an utterance is fetched, computed and written before the next.
        with torch_threads(resources.threads):
            fetched = fetch(records, store, self.config.lake, resources.scratch / "audio")
            computed = _features(fetched, frontend, failures, seconds)
            utterances, frames = write_shard(folder, index, computed, frontend)
        files = {"cuts": cuts_path(folder, index), "features": features_path(folder, index)}
        about = {"hours": sum(seconds) / 3600, "utterances": utterances, "frames": frames}
        return StepResult(
            put_shard(files, index, about, store, out), tuple(failures), {**about, "shard": index}
        )


def plan_extract(
    files: Sequence[ObjectRef], numbers: Sequence[int] | None = None
) -> list[Partition]:
    """Make a partition of each file of records, for which `Extract` computes features.

    Args:
      files: the files that `select` returned.
      numbers: the shard number of each file if files are shuffled too (C18, the second level of
        the hierarchical shuffle); None: in order.

    Returns:
      The partitions; `about` has the shard number (`shard`) and the position of the file (`from`).
    """
    numbers = range(len(files)) if numbers is None else numbers
    return [
        Partition(f"{number:06d}", (ref,), {**ref.about, "shard": shard, "from": number})
        for number, (ref, shard) in enumerate(zip(files, numbers, strict=True))
    ]


def read_records(content: bytes, name: str, failures: list[tuple[str, str]]) -> Iterator[Record]:
    """Read the records of a file; invalid lines are added to `failures`."""
    for row, line in enumerate(BytesIO(content), start=1):
        try:
            yield Record.from_line(line)
        except LakeError as error:
            failures.append((f"{name.rsplit('/', 1)[-1]}:{row}", str(error)))


def check_order(records: Sequence[Record]) -> None:
    """Check that each speaker's records are contiguous and in time order.

    Raises:
      StepError: they are not, so the mean would not be causal.
    """
    seen_speakers, previous = set(), None
    for record in records:
        if previous is not None and record.speaker == previous.speaker:
            if (record.time, record.id) <= (previous.time, previous.id):
                raise StepError(
                    f"{record.id}: its time must be later than the time of {previous.id}, the "
                    "record before it, which has the same speaker"
                )
        elif record.speaker in seen_speakers:
            raise StepError(
                f"{record.id}: the records of speaker {record.speaker} are not contiguous"
            )
        seen_speakers.add(record.speaker)
        previous = record


def _features(
    fetched: Iterator[tuple[Record, Content | FetchError]],
    config: FrontendConfig,
    failures: list[tuple[str, str]],
    seconds: list[float],
) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yield each utterance's cut, speaker and features [T, F]; add to `failures` and `seconds`."""
    compute = Frontend(config)
    for record, content in fetched:
        try:
            if isinstance(content, FetchError):
                raise content
            audio = decode_audio(content, record.audio, config.sampling_rate, int16=True)
            cut = make_cut(record, audio)
            features = compute(audio.samples)
        except (FetchError, AudioError, FrontendError) as error:
            failures.append((record.id, " ".join(str(error).split())))
        else:
            seconds.append(cut["duration"])
            yield cut, record.speaker, features


def make_cut(record: Record, audio: Decoded) -> dict[str, Any]:
    """Make the cut of a record, in the form of lhotse's `MonoCut.to_dict`.

    Raises:
      AudioError: the audio's length differs from the record's duration.
    """
    seconds = audio.num_samples / audio.sampling_rate
    if abs(seconds - record.duration) > DURATION_TOLERANCE:
        raise AudioError(
            f"{record.audio}: the audio lasts {seconds:.3f} s, but its record has a duration of "
            f"{record.duration:.3f} s"
        )
    channels = list(range(audio.channels))
    custom = {"time": record.time, "locale": record.locale}
    if record.offset is not None:
        custom |= {"audio_offset": record.offset, "audio_size": record.size}
    if audio.channels > 1:
        custom["mix_channels"] = True  # as in toolkit.corpus.manifest
    return {
        "id": record.id,
        "start": 0.0,
        "duration": seconds,
        "channel": 0,
        "supervisions": [
            {
                "id": record.id,
                "recording_id": record.id,
                "start": 0.0,
                "duration": seconds,
                "channel": 0,
                "speaker": record.speaker,
            }
        ],
        "recording": {
            "id": record.id,
            "sources": [{"type": "file", "channels": channels, "source": record.audio}],
            "sampling_rate": audio.sampling_rate,
            "num_samples": audio.num_samples,
            "duration": seconds,
            "channel_ids": channels,
        },
        "custom": custom,
        "type": "MonoCut",
    }
