"""Copies a data lake to another place, such as from a disk to an object store."""

import logging
from functools import partial
from io import BytesIO

from toolkit.pipeline.lake import Lake, LakeError, open_lake, readable, resolve
from toolkit.pipeline.objects import ObjectStore
from toolkit.processes.workers import map_in_threads

THREADS = 16

logger = logging.getLogger(__name__)


def copy_lake(store: ObjectStore, source: str, target: str) -> Lake:
    """Copy metadata and audio; objects that are there with their size are kept.

    Later steps give the same bytes for both, since paths in a lake are relative to it. Audio that
    is missing and lines that are no records are left to them: they list each.

    Args:
      store: of both places.
      source: prefix of the lake.
      target: prefix of the copy.

    Raises:
      LakeError: audio lies outside the lake, so that a copy would not hold it.
    """
    lake = open_lake(store, source)
    found = [store.get(ref) for ref in lake.objects]
    audio = {record.audio for content in found for record in readable(BytesIO(content))}
    outside = sorted(name for name in audio if ".." in name.split("/") or name == resolve(name, ""))
    if outside:
        raise LakeError(f"{source}: {outside[0]} lies outside the lake, which cannot be copied")
    copy = partial(_copy, store, source, target)
    for _ in map_in_threads(copy, sorted(audio), THREADS, 2 * THREADS):
        pass
    paths = [f"{target}/{ref.path.removeprefix(f'{lake.url}/')}" for ref in lake.objects]
    objects = tuple(
        store.put(path, content, ref.about)
        for path, content, ref in zip(paths, found, lake.objects, strict=True)
    )
    made = Lake(target, objects, lake.buckets)
    made.save(store)
    return made


def _copy(store: ObjectStore, source: str, target: str, audio: str) -> None:
    size = store.size(resolve(audio, source))
    if size is None:
        logger.warning("%s: there is no such audio", resolve(audio, source))
    elif size != store.size(resolve(audio, target)):
        store.put(resolve(audio, target), store.get(resolve(audio, source)))
