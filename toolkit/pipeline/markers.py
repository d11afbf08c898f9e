"""Markers of finished partitions: `_done/<partition id>.<digest of the work>.json`.

A marker is created after its objects, and never replaced: of two attempts at the same work one
creates it, and the other takes over its result. What belongs to a partition is what its marker
names, not what a listing shows. A marker of another configuration or of other inputs, or one whose
outputs are gone, is ignored. A reader that finds an output damaged has the marker removed, so that
its partition is done again.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.pipeline.objects import (
    Counts,
    DamagedObjectError,
    MissingObjectError,
    ObjectRef,
    ObjectStore,
    StoreConfig,
)
from toolkit.pipeline.step import Partition, Step, StepResult, work_digest
from toolkit.storage.digests import digest_bytes
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, validated

FOLDER = "_done"
HEALS = "the same command makes it again, and goes on"
_REF = {"path": str, "size": NATURAL, "digest": str | None, "about": {str: Any}}
_FORM = {
    "work": str,
    "result": {"outputs": [_REF], "failures": [[str]], "about": {str: Any}},
    "run": {str: Any},
    "digest": str,
}
READS = 4
THREADS = 32
"""Markers read at the same time, since reading one is nearly all waiting."""


class MarkerError(ToolkitError):
    """A marker is in the way."""


@dataclass(frozen=True)
class Marker:
    """The marker of a finished partition."""

    work: str
    """`work_digest` of the step and the partition."""
    result: StepResult
    run: Mapping[str, Any]
    """Statistics: seconds, calls, device, ...; they differ from run to run."""
    numeric: Mapping[str, str] | None = None
    """What the worker's numbers depend on, see `worker_process.numeric_variables`; None: not
    recorded."""

    def commit(self, store: ObjectStore, out: str, partition: str) -> "Marker":
        """Create the marker below `out`, unless another attempt has; return the one that counts.

        Raises:
          MarkerError: the other attempt's marker cannot be read.
        """
        outputs = tuple(_move(ref, f"{out}/", "") for ref in self.result.outputs)
        result = replace(self.result, outputs=outputs).to_dict()
        plain = {"work": self.work, "result": result, "run": dict(self.run)}
        if self.numeric is not None:
            plain["numeric"] = dict(self.numeric)
        plain["digest"] = _digest(plain)
        path = _path(out, partition, self.work, self.numeric)
        if store.create(path, (json.dumps(plain, indent=1) + "\n").encode()):
            return self
        other = Marker.read(store, path)
        if other is None:
            raise MarkerError(f"{path}: a marker that cannot be read; run the same command again")
        return other

    @classmethod
    def read(cls, store: ObjectStore, path: str) -> "Marker | None":
        """Read a marker; None when there is none or it is damaged, however often it is read."""
        for _ in range(READS):
            try:
                return cls._parse(store.get(path), path.rsplit("/", 2)[0])
            except MissingObjectError:
                return None
            except DAMAGE_ERRORS:
                continue
        return None

    @classmethod
    def _parse(cls, content: bytes, out: str) -> "Marker":
        plain = validated(json.loads(content), _FORM)
        if plain["digest"] != _digest(plain):
            raise ValueError("the digest is not that of the content")
        result = StepResult.from_dict(plain["result"])
        numeric = validated(plain["numeric"], {str: str}) if "numeric" in plain else None
        marker = cls(plain["work"], result, plain["run"], numeric)
        outputs = tuple(
            ref if _is_absolute(ref.path) else _move(ref, "", f"{out}/") for ref in result.outputs
        )
        return replace(marker, result=replace(result, outputs=outputs))


def marker_path(
    step: Step, partition: Partition, out: str, numeric: Mapping[str, str] | None = None
) -> str:
    """Return the path of a partition's marker: see `finished`."""
    return _path(out, partition.id, work_digest(step, partition), numeric)


def partition_of(path: str) -> str:
    """Return the id of the partition that a marker at `path` is of."""
    return path.rsplit("/", 1)[-1].removesuffix(".json").rpartition(".")[0]


def finished(
    store: ObjectStore,
    step: Step,
    partition: Partition,
    out: str,
    numeric: Mapping[str, str] | None = None,
) -> Marker | None:
    """Return the marker of a partition if it is valid and its outputs exist, else None.

    Args:
      store, step, partition, out: as for `Step.run`.
      numeric: what it must have been computed with, `Marker.numeric`; None: not recorded.
    """
    marker = Marker.read(store, marker_path(step, partition, out, numeric))
    if marker is None or marker.work != work_digest(step, partition) or marker.numeric != numeric:
        return None
    present = all(store.size(ref.path) == ref.size for ref in marker.result.outputs)
    return marker if present else None


def all_finished(
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    config: StoreConfig,
    numeric: Mapping[str, str] | None = None,
) -> tuple[dict[str, Marker], Counts]:
    """Return the markers of all finished partitions by id, and the calls made to find them.

    One LIST finds the candidates; for a new run that is the only call. A marker for this work that
    does not count, since it or what it names is damaged, is removed: it would be in the way. So
    this must not be called while attempts are going on.
    """
    store = ObjectStore(config)
    listed = {ref.path for ref in store.list(f"{out}/{FOLDER}")}
    paths = {p.id: marker_path(step, p, out, numeric) for p in partitions}
    candidates = [p for p in partitions if paths[p.id] in listed]
    local, stores = threading.local(), [store]

    def read(partition: Partition) -> Marker | None:
        if not hasattr(local, "store"):
            local.store = ObjectStore(config)
            stores.append(local.store)
        marker = finished(local.store, step, partition, out, numeric)
        if marker is None:
            local.store.remove(paths[partition.id])
        return marker

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(read, candidates))
    markers = {p.id: m for p, m in zip(candidates, found, strict=True) if m is not None}
    return markers, sum((s.counts for s in stores), Counts())


def invalidate(store: ObjectStore, path: str) -> bool:
    """Remove the markers that name a damaged object, so that its partition is done again.

    The object stays: only what a marker names is known to be a pipeline's, and not a user's.

    Returns:
      Whether there was such a marker.
    """
    prefix, found = path, False
    while (prefix := prefix.rpartition("/")[0]) and not prefix.endswith((":", "/")):
        for ref in store.list(f"{prefix}/{FOLDER}"):
            marker = Marker.read(store, ref.path)
            if marker and any(output.path == path for output in marker.result.outputs):
                store.remove(ref.path)
                found = True
        if found:
            return True
    return False


@contextmanager
def healing(store: ObjectStore, way_out: str = HEALS) -> Iterator[None]:
    """Have made again, by the next run of its step, an output that is found damaged inside.

    Args:
      store: that holds it.
      way_out: what to do, for the message.

    Raises:
      DamagedObjectError: after the marker of the damaged output was removed.
    """
    try:
        yield
    except DamagedObjectError as error:
        if not invalidate(store, error.path):
            raise
        raise DamagedObjectError(f"{error}; {way_out}", error.path) from None


def _path(out: str, partition: str, work: str, numeric: Mapping[str, str] | None) -> str:
    plain = None if numeric is None else dict(numeric)
    key = digest_bytes(json.dumps([work, plain], sort_keys=True).encode())[:16]
    return f"{out}/{FOLDER}/{partition}.{key}.json"


def _digest(plain: Mapping[str, Any]) -> str:
    content = {name: value for name, value in plain.items() if name != "digest"}
    return digest_bytes(json.dumps(content, sort_keys=True).encode())


def _move(ref: ObjectRef, old: str, new: str) -> ObjectRef:
    if not ref.path.startswith(old):
        return ref
    return replace(ref, path=new + ref.path.removeprefix(old))


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or "://" in path
