"""Removal of what attempts that lost or were killed have left, and of replaced markers."""

import contextlib
from collections.abc import Mapping, Sequence

from toolkit.pipeline.attempt_store import OBJECTS
from toolkit.pipeline.filesystems import is_local, local_path
from toolkit.pipeline.markers import FOLDER, Marker, marker_path, partition_of
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.step import Partition, Step, StepResult, work_digest


def remove_leftovers(
    store: ObjectStore,
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    results: Sequence[StepResult],
    numeric: Mapping[str, str] | None = None,
) -> None:
    """Remove leftovers below `out`, once every partition is done; readers never see them.

    A marker of a partition with other settings goes when there is one with these. One with the
    same settings but another numeric environment stays, with its objects: they may be those of a
    run that is still going on. An attempt that is still going on may leave objects afterwards; they
    are removed after the next run that has something to do.

    Args:
      store, step, partitions, out, numeric: as for `toolkit.pipeline.markers.finished`.
      results: of all partitions.
    """
    valid = {p.id: marker_path(step, p, out, numeric) for p in partitions}
    listed = [ref.path for ref in store.list(f"{out}/{FOLDER}")]
    found, others = set(listed), []
    works = {p.id: work_digest(step, p) for p in partitions}
    for path in listed:
        partition = partition_of(path)
        own = valid.get(partition)
        if path == own:
            continue
        if own is None or own not in found:
            others.append(path)
            continue
        marker = Marker.read(store, path)
        same = marker is not None and marker.work == works[partition]
        if same and marker.numeric != numeric:
            others.append(path)
        else:
            store.remove(path)
    kept = {ref.path for result in results for ref in result.outputs}
    orphans = {ref.path for ref in store.list(f"{out}/{OBJECTS}")} - kept
    for path in others if orphans else ():
        marker = Marker.read(store, path)
        orphans -= {ref.path for ref in marker.result.outputs} if marker else set()
    for path in sorted(orphans):
        store.remove(path)
        if is_local(path):
            with contextlib.suppress(OSError):  # another attempt writes there
                local_path(path).parent.rmdir()
