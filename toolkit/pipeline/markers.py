"""Markers of finished partitions: `_done/<partition id>.json` beside the outputs.

A marker is written after the outputs, so that all objects it lists exist. A marker of another
configuration or of other inputs, or one whose outputs are gone, is ignored.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from toolkit.pipeline.objects import Counts, ObjectError, ObjectRef, ObjectStore, StoreConfig
from toolkit.pipeline.step import Partition, Step, StepResult, work_digest
from toolkit.storage.reading import DAMAGE_ERRORS, NATURAL, validated

FOLDER = "_done"
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

    def write(self, store: ObjectStore, out: str, partition: str) -> None:
        """Write the marker below `out`."""
        outputs = tuple(_move(ref, f"{out}/", "") for ref in self.result.outputs)
        result = replace(self.result, outputs=outputs).to_dict()
        plain = {"work": self.work, "result": result, "run": dict(self.run)}
        store.put(marker_path(out, partition), (json.dumps(plain, indent=1) + "\n").encode())

    @classmethod
    def read(cls, store: ObjectStore, out: str, partition: str) -> "Marker | None":
        """Read the marker; None when there is none or it cannot be read."""
        try:
            plain = validated(json.loads(store.get(marker_path(out, partition))), _FORM)
            result = StepResult.from_dict(plain["result"])
            marker = cls(plain["work"], result, plain["run"])
        except (ObjectError, *DAMAGE_ERRORS):
            return None
        outputs = tuple(
            ref if _is_absolute(ref.path) else _move(ref, "", f"{out}/") for ref in result.outputs
        )
        return replace(marker, result=replace(result, outputs=outputs))


def marker_path(out: str, partition: str) -> str:
    """Return the path of a partition's marker."""
    return f"{out}/{FOLDER}/{partition}.json"


def finished(store: ObjectStore, step: Step, partition: Partition, out: str) -> Marker | None:
    """Return the marker of a partition if it is valid and its outputs exist, else None."""
    marker = Marker.read(store, out, partition.id)
    if marker is None or marker.work != work_digest(step, partition):
        return None
    complete = all(store.size(ref.path) == ref.size for ref in marker.result.outputs)
    return marker if complete else None


def all_finished(
    step: Step, partitions: Sequence[Partition], out: str, config: StoreConfig
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
        return finished(local.store, step, partition, out)

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(read, candidates))
    markers = {p.id: m for p, m in zip(candidates, found, strict=True) if m is not None}
    return markers, sum((s.counts for s in stores), Counts())


def _move(ref: ObjectRef, old: str, new: str) -> ObjectRef:
    if not ref.path.startswith(old):
        return ref
    return replace(ref, path=new + ref.path.removeprefix(old))


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or "://" in path
