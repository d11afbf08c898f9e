"""Markers of finished partitions: `_done/<partition id>.json` beside the outputs.

A marker is written after the outputs, so that all objects it lists exist. A marker of another
configuration or of other inputs, or one whose outputs are gone, is ignored. A reader that finds an
output damaged has the marker removed, so that its partition is done again.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from toolkit.pipeline.objects import (
    Counts,
    DamagedObjectError,
    ObjectError,
    ObjectRef,
    ObjectStore,
    StoreConfig,
)
from toolkit.pipeline.step import Partition, Step, StepResult, work_digest
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, validated

FOLDER = "_done"
HEALS = "the same command makes it again, and goes on"
_REF = {"path": str, "size": NATURAL, "digest": str | None, "about": {str: Any}}
_FORM = {
    "work": str,
    "result": {"outputs": [_REF], "failures": [[str]], "about": {str: Any}},
    "run": {str: Any},
}
THREADS = 32
"""Markers read at the same time, since reading one is nearly all waiting."""


@dataclass(frozen=True)
class Marker:
    """The marker of a finished partition."""

    work: str
    """`work_digest` of the step and the partition."""
    result: StepResult
    run: Mapping[str, Any]
    """Statistics: seconds, calls, device, ...; they differ from run to run."""
    numeric: Mapping[str, str] | None = None
    """What the worker's numbers depend on, see `worker_process.numeric_variables`; None in markers
    from before it was recorded, which count whatever it is."""

    def write(self, store: ObjectStore, out: str, partition: str) -> None:
        """Write the marker below `out`."""
        outputs = tuple(_move(ref, f"{out}/", "") for ref in self.result.outputs)
        result = replace(self.result, outputs=outputs).to_dict()
        plain = {"work": self.work, "result": result, "run": dict(self.run)}
        if self.numeric is not None:
            plain["numeric"] = dict(self.numeric)
        store.put(marker_path(out, partition), (json.dumps(plain, indent=1) + "\n").encode())

    @classmethod
    def read(cls, store: ObjectStore, out: str, partition: str) -> "Marker | None":
        """Read the marker; None when there is none or it cannot be read."""
        try:
            plain = validated(json.loads(store.get(marker_path(out, partition))), _FORM)
            result = StepResult.from_dict(plain["result"])
            numeric = validated(plain["numeric"], {str: str}) if "numeric" in plain else None
            marker = cls(plain["work"], result, plain["run"], numeric)
        except (ObjectError, *DAMAGE_ERRORS):
            return None
        outputs = tuple(
            ref if _is_absolute(ref.path) else _move(ref, "", f"{out}/") for ref in result.outputs
        )
        return replace(marker, result=replace(result, outputs=outputs))


def marker_path(out: str, partition: str) -> str:
    """Return the path of a partition's marker."""
    return f"{out}/{FOLDER}/{partition}.json"


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
      numeric: what it must have been computed with, `Marker.numeric`; None: anything.
    """
    marker = Marker.read(store, out, partition.id)
    if marker is None or marker.work != work_digest(step, partition):
        return None
    if numeric is not None and marker.numeric is not None and marker.numeric != numeric:
        return None
    complete = all(store.size(ref.path) == ref.size for ref in marker.result.outputs)
    return marker if complete else None


def all_finished(
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    config: StoreConfig,
    numeric: Mapping[str, str] | None = None,
) -> tuple[dict[str, Marker], Counts]:
    """Return the markers of all finished partitions by id, and the calls made to find them.

    One LIST finds the candidates; for a new run that is the only call.
    """
    store = ObjectStore(config)
    names = {ref.path.rsplit("/", 1)[-1] for ref in store.list(f"{out}/{FOLDER}")}
    candidates = [p for p in partitions if f"{p.id}.json" in names]
    local, stores = threading.local(), [store]

    def read(partition: Partition) -> Marker | None:
        if not hasattr(local, "store"):
            local.store = ObjectStore(config)
            stores.append(local.store)
        return finished(local.store, step, partition, out, numeric)

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(read, candidates))
    markers = {p.id: m for p, m in zip(candidates, found, strict=True) if m is not None}
    return markers, sum((s.counts for s in stores), Counts())


def invalidate(store: ObjectStore, path: str) -> bool:
    """Remove the marker that names a damaged object, so that its partition is done again.

    The object stays: only what a marker names is known to be a pipeline's, and not a user's.

    Returns:
      Whether there was such a marker.
    """
    prefix = path
    while (prefix := prefix.rpartition("/")[0]) and not prefix.endswith((":", "/")):
        for ref in store.list(f"{prefix}/{FOLDER}"):
            name = ref.path.rsplit("/", 1)[-1]
            marker = Marker.read(store, prefix, name.removesuffix(".json"))
            if marker and any(output.path == path for output in marker.result.outputs):
                store.remove(ref.path)
                return True
    return False


@contextmanager
def healing(store: ObjectStore) -> Iterator[None]:
    """Have made again, by the next run, an output that is found damaged inside.

    Raises:
      DamagedObjectError: after the marker of the damaged output was removed.
    """
    try:
        yield
    except DamagedObjectError as error:
        if not invalidate(store, error.path):
            raise
        raise DamagedObjectError(f"{error}; {HEALS}", error.path) from None


def _move(ref: ObjectRef, old: str, new: str) -> ObjectRef:
    if not ref.path.startswith(old):
        return ref
    return replace(ref, path=new + ref.path.removeprefix(old))


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or "://" in path
