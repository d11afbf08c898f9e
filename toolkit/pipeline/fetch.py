"""Fetching the audio of metadata records with few calls, and ahead of its use (C24, C34).

A call has a latency of about 200 ms, and then reads at 50 MB/s. So records in the same object are
fetched together, including the gaps between them where reading a gap is cheaper than another call;
audio files that are objects of their own are prefetched, many at a time.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

from toolkit.pipeline.filesystems import is_local, local_path
from toolkit.pipeline.lake import Record, resolve
from toolkit.pipeline.objects import MissingObjectError, ObjectError, ObjectStore
from toolkit.processes.workers import map_in_threads

GAP_BYTES = 8 << 20
"""Largest gap between records that is read along rather than skipped by another call."""
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
    """The object, as in the records."""
    start: int
    end: int


def plan_spans(records: Sequence[Record]) -> list[Span]:
    """Cover the records that are parts of larger objects by few spans.

    Spans of an object do not overlap; each record lies within one, and none is longer than
    32 MiB unless a single record is.
    """
    parts = sorted(
        {(r.audio, r.offset, r.offset + r.size) for r in records if r.offset is not None}
    )
    spans: list[Span] = []
    for path, start, end in parts:
        last = spans[-1] if spans else None
        if last and last.path == path:
            grown = max(end, last.end)
            near = start - last.end <= GAP_BYTES and grown - last.start <= SPAN_BYTES
            if near or start < last.end:
                spans[-1] = Span(path, last.start, grown)
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
      store: gets the counts of the calls.
      lake: base of relative paths.
      scratch: local folder for spans.

    Yields:
      Each record with the content of its audio file, or with the reason why there is none. If the
      object store does not answer, an error is raised instead, since the audio may well exist.
    """
    with _Workers(store) as workers, ExitStack() as stack:
        spans = _Spans(records, workers, lake, scratch, stack)

        def read(own: ObjectStore, record: Record) -> Content | FetchError:
            if record.offset is not None:
                return spans.read(own, record)
            path = resolve(record.audio, lake)
            if is_local(path) and not os.path.isfile(local_path(path)):
                return FetchError(f"{record.audio}: no such object")
            try:
                return own.get(path)
            except MissingObjectError:
                return FetchError(f"{record.audio}: no such object")

        ahead = any(r.offset is None and not is_local(resolve(r.audio, lake)) for r in records)
        contents = workers.map(read, records, FILE_THREADS if ahead else 0)
        yield from zip(records, contents, strict=True)


class _Spans:
    """Records that are parts of objects: copied to `scratch` by spans, or read from local files."""

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

        def copy(own: ObjectStore, numbered: tuple[int, Span]) -> Path | None:
            content = _read_span(own, numbered[1], resolve(numbered[1].path, lake))
            if content is None:
                return None
            copied = scratch / f"span.{numbered[0]:06d}"
            copied.write_bytes(content)
            return copied

        remote = [r for r in records if not is_local(resolve(r.audio, lake))]
        spans = plan_spans(remote)
        found = workers.map(copy, list(enumerate(spans)), SPAN_THREADS)
        for span, copied in zip(spans, found, strict=True):
            self._copies.setdefault(span.path, []).append((span.start, copied))

    def read(self, store: ObjectStore, record: Record) -> bytearray | FetchError:
        if record.audio in self._copies:
            copies = self._copies[record.audio]
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
        if audio not in self._open:
            store.counts.get += 1
            path = local_path(resolve(audio, self._lake))
            exists = os.path.isfile(path)
            file = open(path, "rb") if exists else None  # noqa: SIM115 - the stack closes it
            self._open[audio] = self._stack.enter_context(file) if exists else None
        return self._open[audio]


def _part(file: BinaryIO, record: Record, start: int) -> bytearray | FetchError:
    """Read a record's audio; the record may ask for more bytes than the file has."""
    if start + record.size > os.fstat(file.fileno()).st_size:
        return FetchError(f"{record.audio}: ends before byte {record.offset + record.size}")
    content = bytearray(record.size)  # numpy and torch can use it without a copy
    read = os.preadv(file.fileno(), [content], start)
    return content if read == record.size else FetchError(f"{record.audio}: {read} bytes read")


def _read_span(store: ObjectStore, span: Span, path: str) -> bytes | None:
    """Read a span as far as the object reaches; None: no such object."""
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
        """Apply `function`, at most `2 * threads` items ahead; without threads, on demand."""
        if threads == 0:
            for item in items:
                yield function(self._store, item)
            return
        # One more than two for each thread: the one whose result is awaited.
        yield from map_in_threads(partial(self._call, function), items, threads, 2 * threads + 1)

    def _call(self, function: Callable[[ObjectStore, Item], Value], item: Item) -> Value:
        if not hasattr(self._local, "store"):
            self._local.store = ObjectStore(self._store.config)
            self._stores.append(self._local.store)
        return function(self._local.store, item)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for own in self._stores:
            self._store.counts = self._store.counts + own.counts
