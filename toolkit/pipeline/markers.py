"""Markers of finished partitions: `_done/<partition id>.<digest of the work>.json`.

A marker is created after its objects, and never replaced: of two attempts at the same work, one
creates it, and the other takes over that result. The outputs of a partition are those that its
marker names, not those that a listing shows. A marker of another configuration or of other inputs,
or one whose outputs are gone, is ignored. A reader that finds an output damaged has the marker
removed, so that its partition is done again.

Objects are named after their content, so that two attempts never write different bytes under one
name. Attempts may run at the same time, and the last bits of their results may differ between kinds
of processors. An object that a step writes as `<out>/<folder>/<name>` is stored as
`<out>/_objects/<folder>/<digest>/<name>`.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.pipeline.config import StoreConfig
from toolkit.pipeline.objects import (
    Counts,
    DamagedObjectError,
    MissingObjectError,
    ObjectRef,
    ObjectStore,
    is_local,
    local_path,
)
from toolkit.pipeline.step import Partition, Step, StepResult, work_digest
from toolkit.startup import BLAS_VARIABLE, THREAD_VARIABLES, blas_setting
from toolkit.storage.digests import digest_bytes
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, validated

OBJECTS = "_objects"


class AttemptStore(ObjectStore):
    """The store of one attempt at a partition.

    Args:
      config: configuration of the store.
      out: prefix of the step's output; objects written elsewhere keep their names.
      scratch: the attempt's own folder, which may lie below `out`.
    """

    def __init__(self, config: StoreConfig, out: str, scratch: Path) -> None:
        super().__init__(config)
        self._out, self._scratch = f"{out}/", f"{scratch}/"

    def _name(self, path: str, digest: str) -> str:
        """Return the path of an object with the digest of its content in its name."""
        if not path.startswith(self._out) or path.startswith(self._scratch):
            return path
        folder, slash, name = path.removeprefix(self._out).rpartition("/")
        return f"{self._out}{OBJECTS}/{folder}{slash}{digest}/{name}"


def plain_name(path: str, out: str) -> str:
    """Return the name below `out` that a step gave an object, without the digest."""
    name = path.removeprefix(f"{out.rstrip('/')}/")
    if not name.startswith(f"{OBJECTS}/"):
        return name
    *folder, _digest, last = name.removeprefix(f"{OBJECTS}/").split("/")
    return "/".join((*folder, last))


FOLDER = "_done"
REBUILD_HINT = "run the same command again: it rebuilds the damaged object and continues"
_REF = {"path": str, "size": NATURAL, "digest": str | None, "about": {str: Any}}
_FORM = {
    "work": str,
    "result": {"outputs": [_REF], "failures": [[str]], "about": {str: Any}},
    "run": {str: Any},
    "digest": str,
}
READS = 4
THREADS = 32
"""Number of markers that are read in parallel, as reading one is mostly waiting."""


class MarkerError(ToolkitError):
    """The marker of another attempt cannot be read."""


@dataclass(frozen=True)
class Marker:
    """The marker of a finished partition."""

    work: str
    """`work_digest` of the step and the partition."""
    result: StepResult
    run: Mapping[str, Any]
    """Statistics: seconds, calls, device, ...; they differ from run to run."""
    numeric: Mapping[str, str] | None = None
    """Environment variables on which the results depend, see `numeric_variables`; None: not
    recorded."""

    def commit(self, store: ObjectStore, out: str, partition: str) -> "Marker":
        """Create the marker below `out`, unless another attempt has; return the one that counts.

        Raises:
          MarkerError: the other attempt's marker cannot be read.
        """
        # Stored paths are relative to `out`, so that a run's output can be moved.
        outputs = tuple(_move(ref, f"{out}/", "") for ref in self.result.outputs)
        result = replace(self.result, outputs=outputs).to_dict()
        record = {"work": self.work, "result": result, "run": dict(self.run)}
        if self.numeric is not None:
            record["numeric"] = dict(self.numeric)
        record["digest"] = _digest(record)
        path = _path(out, partition, self.work, self.numeric)
        # Of several attempts the first to create the marker counts.
        if store.create(path, (json.dumps(record, indent=1) + "\n").encode()):
            return self
        committed = Marker.read(store, path)
        if committed is None:
            raise MarkerError(f"{path}: this marker cannot be read; run the same command again")
        return committed

    @classmethod
    def read(cls, store: ObjectStore, path: str) -> "Marker | None":
        """Read a marker; None when there is none or it is damaged, however often it is read."""
        # The marker contains its own digest: content that a faulty transfer has changed is read
        # again.
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
        """Return the marker in the content of its file; raise an error if it is damaged."""
        record = validated(json.loads(content), _FORM)
        if record["digest"] != _digest(record):
            raise ValueError("the digest does not match the content")
        result = StepResult.from_dict(record["result"])
        numeric = validated(record["numeric"], {str: str}) if "numeric" in record else None
        marker = cls(record["work"], result, record["run"], numeric)
        outputs = tuple(
            ref if _is_absolute(ref.path) else _move(ref, "", f"{out}/") for ref in result.outputs
        )
        return replace(marker, result=replace(result, outputs=outputs))


def marker_path(
    step: Step, partition: Partition, out: str, numeric: Mapping[str, str] | None = None
) -> str:
    """Return the path of a partition's marker; for the arguments see `finished`."""
    return _path(out, partition.id, work_digest(step, partition), numeric)


def partition_of(path: str) -> str:
    """Return the partition id in the path of a marker."""
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
      numeric: the numeric environment that it must have, see `Marker.numeric`; None: not recorded.
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

    One LIST finds the candidates; for a new run that is the only call. A marker for this work is
    removed if it is damaged, or if an object it names is missing or has another size, since it
    would prevent a new marker. So this must not be called while attempts are running.
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
        stored = list(threads.map(read, candidates))
    markers = {p.id: m for p, m in zip(candidates, stored, strict=True) if m is not None}
    return markers, sum((s.counts for s in stores), Counts())


def remove_markers_of(store: ObjectStore, path: str) -> bool:
    """Remove the markers that name a damaged object, so that its partition is done again.

    The object is kept: an object that no marker names could be a user's file.

    Returns:
      Whether there was such a marker.
    """
    # The output prefix of the step is unknown: try every folder above the object.
    prefix, is_named = path, False
    while (prefix := prefix.rpartition("/")[0]) and not prefix.endswith((":", "/")):
        for ref in store.list(f"{prefix}/{FOLDER}"):
            marker = Marker.read(store, ref.path)
            if marker and any(output.path == path for output in marker.result.outputs):
                store.remove(ref.path)
                is_named = True
        if is_named:
            return True
    return False


@contextmanager
def rebuild_damaged(store: ObjectStore, hint: str = REBUILD_HINT) -> Iterator[None]:
    """Remove the marker of an output that turns out damaged, so that the next run makes it again.

    Args:
      store: the store that holds the output.
      hint: what to do, for the error message.

    Raises:
      DamagedObjectError: after the marker of the damaged output was removed.
    """
    try:
        yield
    except DamagedObjectError as error:
        if not remove_markers_of(store, error.path):
            raise
        raise DamagedObjectError(f"{error}; {hint}", error.path) from None


def _path(out: str, partition: str, digest_of_work: str, numeric: Mapping[str, str] | None) -> str:
    """Return the path of a marker, which depends on its work and numeric environment."""
    variables = None if numeric is None else dict(numeric)
    # 64 bits of the digest are enough to distinguish the markers of one partition.
    key = digest_bytes(json.dumps([digest_of_work, variables], sort_keys=True).encode())[:16]
    return f"{out}/{FOLDER}/{partition}.{key}.json"


def _digest(record: Mapping[str, Any]) -> str:
    """Return the digest of a marker's record, without the field `digest`."""
    content = {name: value for name, value in record.items() if name != "digest"}
    return digest_bytes(json.dumps(content, sort_keys=True).encode())


def _move(ref: ObjectRef, old: str, new: str) -> ObjectRef:
    """Return a reference with the prefix `old` of its path replaced by `new`."""
    if not ref.path.startswith(old):
        return ref
    return replace(ref, path=new + ref.path.removeprefix(old))


def _is_absolute(path: str) -> bool:
    """Return whether a path is absolute or a URL."""
    return path.startswith("/") or "://" in path


def remove_leftovers(
    store: ObjectStore,
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    results: Sequence[StepResult],
    numeric: Mapping[str, str] | None = None,
) -> None:
    """Remove leftovers below `out`, once every partition is done; readers never see them.

    A partition's marker for other settings is removed if there is also one for these settings. A
    marker for the same settings but another numeric environment stays, with its objects, since they
    may belong to a run that is not over. An attempt that is not over may leave objects later; these
    are removed after the next run that has something to do.

    Args:
      store, step, partitions, out, numeric: as for `toolkit.pipeline.markers.finished`.
      results: results of all partitions.
    """
    # 1. Markers. `foreign` ones stay, and so do the objects that they name.
    valid = {p.id: marker_path(step, p, out, numeric) for p in partitions}
    listed = [ref.path for ref in store.list(f"{out}/{FOLDER}")]
    existing, foreign = set(listed), []
    works = {p.id: work_digest(step, p) for p in partitions}
    # Remove markers of earlier configurations, unless another machine's run may still need them.
    for path in listed:
        partition = partition_of(path)
        expected = valid.get(partition)
        if path == expected:
            continue
        if expected is None or expected not in existing:
            foreign.append(path)
            continue
        marker = Marker.read(store, path)
        same = marker is not None and marker.work == works[partition]
        if same and marker.numeric != numeric:
            foreign.append(path)
        else:
            store.remove(path)
    # 2. Objects. Those that no marker names were left by killed or repeated attempts.
    referenced = {ref.path for result in results for ref in result.outputs}
    orphans = {ref.path for ref in store.list(f"{out}/{OBJECTS}")} - referenced
    for path in foreign if orphans else ():
        marker = Marker.read(store, path)
        orphans -= {ref.path for ref in marker.result.outputs} if marker else set()
    for path in sorted(orphans):
        store.remove(path)
        if is_local(path):
            with contextlib.suppress(OSError):  # another attempt writes there
                local_path(path).parent.rmdir()


@dataclass(frozen=True)
class TaskResult:
    """The outcome of one attempt at a partition."""

    partition: str
    """Id of the partition."""
    result: StepResult | None
    """Result of the step; None after a failure."""
    reason: str = ""
    """Reason for the failure in one line; empty if there was none."""
    trace: str = ""
    """Traceback of the failure."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Statistics: `hours` of the partition if known, `seconds` (wall time), `store_seconds` (the
    part spent in calls to the store), `cpu_seconds`, `peak_bytes` (peak memory of the process),
    `device`, and the store's calls and bytes."""
    damaged: str | None = None
    """Path of the damaged object that made the attempt fail; None if there was none."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        result = None if self.result is None else self.result.to_dict()
        return {**vars(self), "result": result, "run": dict(self.run)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TaskResult":
        """Restore an outcome from the result of `to_dict`."""
        result = values["result"]
        return cls(**{**values, "result": None if result is None else StepResult.from_dict(result)})


def numeric_variables(threads: int) -> dict[str, str]:
    """Return the environment variables on which the last bits of a worker's results depend.

    They are set before the worker's interpreter starts, since libraries read them when they are
    loaded. What the parent process has loaded or set does not matter.
    """
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), BLAS_VARIABLE: blas_setting()}
