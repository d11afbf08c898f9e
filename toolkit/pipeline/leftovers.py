"""Removal of what attempts that lost or were killed have left, and of replaced markers."""

import contextlib
from collections.abc import Mapping, Sequence

from toolkit.pipeline.attempt_store import OBJECTS
from toolkit.pipeline.filesystems import is_local, local_path
from toolkit.pipeline.markers import FOLDER, Marker, marker_path, partition_of
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.step import Partition, Step, StepResult


def remove_leftovers(
    store: ObjectStore,
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    results: Sequence[StepResult],
    numeric: Mapping[str, str] | None = None,
) -> None:
    """Remove leftovers below `out`, once every partition is done; readers never see them.

    A marker of a partition with other settings goes when there is one with these. An attempt that
    is still going on may leave objects afterwards; they are removed after the next run.

    Args:
      store, step, partitions, out, numeric: as for `toolkit.pipeline.markers.finished`.
      results: of all partitions.
    """
    valid = {p.id: marker_path(step, p, out, numeric) for p in partitions}
    listed = [ref.path for ref in store.list(f"{out}/{FOLDER}")]
    found, others = set(listed), []
    for path in listed:
        own = valid.get(partition_of(path, valid))
        if own is None:
            others.append(path)
        elif path != own and own in found:
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
