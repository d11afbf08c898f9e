"""A data lake: audio and the metadata records that describe it (C15).

    <lake>/metadata/2026-01-01/speakers.0003.jsonl   records of one interval and speaker bucket
    <lake>/audio/...                                 the audio, in objects of any layout
    <lake>/lake.json                                 the metadata objects, with hours and utterances

Metadata is partitioned by time interval and, within an interval, by a hash of the speaker, so that
a speaker's records are found without a shuffle. Paths in records and in lake.json are relative
to the lake, so that a copy of it elsewhere gives the same bytes in every later step; a record's
audio may also be an absolute path or URL.
"""

import hashlib
import json
import logging
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.pipeline.objects import MissingObjectError, ObjectRef, ObjectStore
from toolkit.processes.workers import map_in_threads
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, reading, reason, validated

LAKE = "lake.json"
METADATA = "metadata"
_BUCKET = re.compile(r"speakers\.(\d{4,6})\.jsonl", re.ASCII)
_OBJECT = {"path": str, "size": NATURAL, "digest": str | None, "about": {str: Any}}


class LakeError(ToolkitError):
    """A lake or a metadata record cannot be read."""


@dataclass(frozen=True)
class Record:
    """Metadata of one utterance (C15). It holds no transcript."""

    id: str
    """Id, unique in the lake."""
    speaker: str
    """Anonymised name of the speaker."""
    duration: float
    """Duration in seconds."""
    time: float
    """Creation time in seconds since 1970 (UTC)."""
    locale: str
    """Locale such as `en-US`."""
    audio: str
    """Object that holds the audio: relative to the lake, or an absolute path or URL."""
    offset: int | None = None
    """First byte of the audio file within the object; None: the object is itself the audio file."""
    size: int | None = None
    """Size of the audio file within the object in bytes; None if `offset` is None."""

    def to_line(self) -> bytes:
        """Return the record's line in a metadata object."""
        values = {key: value for key, value in vars(self).items() if value is not None}
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Record":
        """Parse a line in the format of `to_line`; unknown keys are ignored.

        Raises:
          LakeError: the line is not a JSON object, or fields are missing or invalid.
        """
        try:
            values = json.loads(line)
            record = cls(
                id=_text(values["id"]),
                speaker=_text(values["speaker"]),
                duration=float(values["duration"]),
                time=float(values["time"]),
                locale=_text(values.get("locale", ""), empty=True),
                audio=_text(values["audio"]),
                offset=values.get("offset"),
                size=values.get("size"),
            )
        except KeyError as error:
            raise LakeError(f"the record has no {error}") from error
        except DAMAGE_ERRORS as error:
            raise LakeError(f"not a metadata record: {reason(error)}") from error
        if not 0 < record.duration < float("inf") or not math.isfinite(record.time):
            raise LakeError(
                f"{record.id}: duration {record.duration:g} s or time {record.time:g} is not valid"
            )
        if (record.offset is None) != (record.size is None):
            raise LakeError(f"{record.id}: offset and size must be given together")
        if record.size is not None and not (_natural(record.offset) and _natural(record.size)):
            raise LakeError(f"{record.id}: offset and size must be numbers of bytes")
        return record


def readable(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the valid records among a metadata object's lines, and skip the rest."""
    for line in lines:
        try:
            yield Record.from_line(line)
        except LakeError:
            continue


@dataclass(frozen=True)
class Lake:
    """The metadata objects of a lake."""

    url: str
    """Prefix of the lake, without a slash at its end."""
    objects: tuple[ObjectRef, ...]
    """Metadata objects sorted by name; `about` has `hours` and `utterances` if lake.json exists."""
    buckets: int | None = None
    """Number of speaker buckets; None if neither lake.json nor the objects' names tell it."""

    def save(self, store: ObjectStore) -> None:
        """Write lake.json."""
        objects = [ref.to_dict() | {"path": _relative(ref.path, self.url)} for ref in self.objects]
        manifest = {"buckets": self.buckets, "objects": objects}
        store.put(f"{self.url}/{LAKE}", json.dumps(manifest, indent=1).encode() + b"\n")


def open_lake(store: ObjectStore, url: str) -> Lake:
    """Find a lake's metadata objects in its lake.json, or by listing them if there is none.

    Raises:
      LakeError: there are no metadata objects, or lake.json is damaged.
    """
    url = url.rstrip("/")
    try:
        content = store.get(f"{url}/{LAKE}")
    except MissingObjectError:
        # Listed objects have no digests: their versions show whether they have changed.
        listed = store.list(f"{url}/{METADATA}", versions=True)
        objects = [ref for ref in listed if ref.path.endswith(".jsonl")]
        if not objects:
            raise LakeError(
                f"{url} is not a data lake: it has neither {LAKE} nor {METADATA}/**/*.jsonl"
            ) from None
        return Lake(url, tuple(objects), _buckets(objects))
    advice = f"write it again, or remove it. Without it, all of {METADATA}/ is read"
    with reading(f"{url}/{LAKE}", LakeError, advice, "damaged"):
        manifest = validated(json.loads(content), {"objects": [_OBJECT], "buckets": int | None})
        refs = [ObjectRef.from_dict(entry) for entry in manifest["objects"]]
        for ref in refs:
            for name in ("hours", "utterances"):
                validated(ref.about.get(name, 0), float, f"{name!r} of {ref.path[:80]!r}")
        if not refs:
            raise ValueError("no objects")
        if manifest["buckets"] is not None and manifest["buckets"] < 1:
            raise ValueError(f"{manifest['buckets']} buckets")
    # Paths in lake.json are relative to the lake, so that it can be moved.
    objects = [ObjectRef(f"{url}/{r.path}", r.size, r.digest, r.about) for r in refs]
    return Lake(url, tuple(objects), manifest["buckets"])


def _buckets(objects: Sequence[ObjectRef]) -> int | None:
    """Return the number of speaker buckets that the objects' names show, see `metadata_path`.

    None if a name does not show its bucket. The number is too small if the last buckets have no
    objects; that affects how the steps group records, not which records are selected.
    """
    names = [_BUCKET.fullmatch(ref.path.rsplit("/", 1)[-1]) for ref in objects]
    if not all(names):
        return None
    return 1 + max(int(name[1]) for name in names if name)


def metadata_path(url: str, interval: str, bucket: int) -> str:
    """Return the path of the metadata object of an interval and a speaker bucket."""
    return f"{url}/{METADATA}/{interval}/speakers.{bucket:04d}.jsonl"


def bucket_of(speaker: str, buckets: int) -> int:
    """Return the bucket of a speaker, the same in every process."""
    return stable_hash(speaker) % buckets


def stable_hash(*parts: object) -> int:
    """Return a uniform 64-bit hash of `parts`, the same in every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def resolve(audio: str, url: str) -> str:
    """Return the path or URL of a record's audio in the lake at `url`."""
    absolute = "://" in audio or PurePosixPath(audio).is_absolute()
    return audio if absolute else f"{url.rstrip('/')}/{audio}"


def metadata_totals(objects: tuple[ObjectRef, ...]) -> Mapping[str, float] | None:
    """Sum the hours and utterances of metadata objects; None if one does not have them."""
    if not all("hours" in ref.about and "utterances" in ref.about for ref in objects):
        return None
    return {key: sum(ref.about[key] for ref in objects) for key in ("hours", "utterances")}


def _relative(path: str, url: str) -> str:
    """Return a path relative to the lake's URL; a path elsewhere stays as it is."""
    return path.removeprefix(f"{url}/")


def _natural(value: object) -> bool:
    """Return whether a value is an integer from 0 to 2^63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _text(value: object, empty: bool = False) -> str:
    """Return a value if it is text that can be written as UTF-8; raise a ValueError otherwise."""
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"{reprlib.repr(value)} instead of a name")
    value.encode()  # fails for half a surrogate pair, which could not be written
    return value


THREADS = 16

logger = logging.getLogger(__name__)


def copy_lake(store: ObjectStore, source: str, target: str) -> Lake:
    """Copy a lake's metadata and audio; audio that the copy has with the same size is kept.

    Later steps write the same bytes for both lakes, since paths in a lake are relative to it. They
    also report missing audio and invalid records, which are no errors here.

    Args:
      store: store of both places.
      source: prefix of the lake.
      target: prefix of the copy.

    Raises:
      LakeError: audio lies outside the lake, so that a copy would not contain it.
    """
    lake = open_lake(store, source)
    # 1. Read all metadata, to learn which audio belongs to the lake. Many records share an object.
    contents = [store.get(ref) for ref in lake.objects]
    audio = {record.audio for content in contents for record in readable(BytesIO(content))}
    outside = sorted(name for name in audio if ".." in name.split("/") or name == resolve(name, ""))
    if outside:
        raise LakeError(
            f"{source}: {outside[0]} lies outside the lake, so the lake cannot be copied"
        )
    # 2. Copy the audio, then the metadata, and lake.json last: an interrupted copy is no lake yet.
    copy = partial(_copy, store, source, target)
    for _ in map_in_threads(copy, sorted(audio), THREADS, 2 * THREADS):
        pass
    paths = [f"{target}/{ref.path.removeprefix(f'{lake.url}/')}" for ref in lake.objects]
    objects = tuple(
        store.put(path, content, ref.about)
        for path, content, ref in zip(paths, contents, lake.objects, strict=True)
    )
    copied = Lake(target, objects, lake.buckets)
    copied.save(store)
    return copied


def _copy(store: ObjectStore, source: str, target: str, audio: str) -> None:
    """Copy one object to the target lake, unless it is there with the same size."""
    size = store.size(resolve(audio, source))
    if size is None:
        logger.warning("%s: no such audio file", resolve(audio, source))
    elif size != store.size(resolve(audio, target)):
        store.put(resolve(audio, target), store.get(resolve(audio, source)))
