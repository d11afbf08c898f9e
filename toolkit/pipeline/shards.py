"""Shards as objects in a store, the manifests of a set of shards, and the rows of a shard.

<out>/shards.jsonl    per shard: hours, utterances, frames, path, size and digest of each object
<out>/shards/cuts.NNNNNN.jsonl, features.NNNNNN.tar, targets.NNNNNN.tar   lhotse's Shar layout
<out>/features.json   what `FeatureStore` needs to open `<out>`
<out>/failed.tsv      utterances that were left out, with the reason

Each attempt at a partition writes its own objects (`toolkit.pipeline.markers`). The manifests name
the objects that count. On a disk, the files in `shards/` are links to these, for readers of the
Shar layout; in a store there is no `shards/`, and `shards.jsonl` names the objects themselves.

A row is an utterance's cut and its bytes in the tar of every field. Shuffling and repartitioning
move whole rows. The two tar members of an utterance (array and manifest) do not depend on their
neighbours, so a row is copied as one range of bytes, undecoded.
"""

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from toolkit.features.config import FrontendConfig
from toolkit.features.extract import FAILED
from toolkit.features.shards import (
    BLOCK,
    CUTS,
    MANIFEST,
    SHARDS,
    TarWriter,
    field_file,
    manifest_text,
    read_members,
)
from toolkit.pipeline.objects import ObjectRef, ObjectStore, is_local, local_path
from toolkit.pipeline.step import StepError, StepResult
from toolkit.storage.files import link_atomically, open_atomically
from toolkit.storage.reading import NATURAL, reading, validated

SHARD_LIST = "shards.jsonl"
_LISTED = {
    **{"index": NATURAL, "hours": float, "utterances": NATURAL, "frames": NATURAL},
    "objects": {str: {"path": str, "size": NATURAL, "digest": str}},
}


@dataclass(frozen=True)
class Shard:
    """One shard of a set."""

    index: int
    """Index of the shard, a part of its file names."""
    objects: Mapping[str, ObjectRef]
    """Objects by field, cuts first. The cuts' `about` has `hours`, `utterances` and `frames`."""

    @property
    def hours(self) -> float:
        """Hours of audio."""
        return self.objects[CUTS].about["hours"]

    @property
    def frames(self) -> int:
        """Number of raw frames."""
        return self.objects[CUTS].about["frames"]

    @property
    def utterances(self) -> int:
        """Number of utterances."""
        return self.objects[CUTS].about["utterances"]

    @property
    def inputs(self) -> tuple[ObjectRef, ...]:
        """The objects that a partition of this shard reads."""
        return tuple(self.objects.values())


def shards_of(refs: Iterable[ObjectRef]) -> list[Shard]:
    """Group objects into shards by their `about`, which has `field` and `shard` (its index)."""
    objects_by_shard: dict[int, dict[str, ObjectRef]] = {}
    for ref in refs:
        if "field" in ref.about:
            objects_by_shard.setdefault(ref.about["shard"], {})[ref.about["field"]] = ref
    # The objects may come in any order, but every shard needs its cuts.
    for index, objects in objects_by_shard.items():
        if CUTS not in objects:
            raise StepError(f"shard {index} has no cuts")
    return [
        Shard(index, dict(sorted(objects.items(), key=lambda item: (item[0] != CUTS, item[0]))))
        for index, objects in sorted(objects_by_shard.items())
    ]


def with_fields(shards: Iterable[Shard], refs: Iterable[ObjectRef]) -> list[Shard]:
    """Add further fields, such as targets, to shards."""
    return shards_of([*(ref for shard in shards for ref in shard.inputs), *refs])


def single_shard(refs: Iterable[ObjectRef]) -> Shard:
    """Return the shard of a partition's inputs, which must be those of exactly one shard."""
    shards = shards_of(refs)
    if len(shards) != 1:
        raise StepError(f"a partition must contain exactly one shard, but contains {len(shards)}")
    return shards[0]


def tar_rows(path: Path) -> list[tuple[int, int]]:
    """Find the byte range [start, end) of every row in a shard's tar."""
    with reading(path, StepError, "write the shard again", "damaged"), open(path, "rb") as file:
        members = list(read_members(file))
    if len(members) % MEMBERS_PER_ROW:
        raise StepError(f"{path.name}: an array in this tar file has no manifest")
    # A row begins at the header of its first member and ends behind the padding of its second.
    starts = [start for _, start, _, _ in members[::MEMBERS_PER_ROW]]
    ends = [content + size + -size % BLOCK for _, _, content, size in members[1::MEMBERS_PER_ROW]]
    return list(zip(starts, ends, strict=True))


class ShardRows:
    """The rows of a local shard, in any order.

    Args:
      files: files by field, with the same utterances in the same order.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.lines = files[CUTS].read_bytes().splitlines(keepends=True)
        """The cuts as stored, one line of JSON each."""
        self.fields = tuple(sorted(field for field in files if field != CUTS))
        self._ranges = {field: tar_rows(files[field]) for field in self.fields}
        self._files = {field: files[field] for field in self.fields}
        for field, ranges in self._ranges.items():
            if len(ranges) != len(self.lines):
                raise StepError(
                    f"{files[field].name} contains {len(ranges)} utterances, but "
                    f"{files[CUTS].name} contains {len(self.lines)}"
                )

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, order: Iterable[int]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Yield the rows in `order`: the cut and each field's bytes."""
        with ExitStack() as stack:
            files = {f: stack.enter_context(open(p, "rb")) for f, p in self._files.items()}
            # A row is a byte range of each file, so that any order can be read without unpacking.
            for row in order:
                content = {}
                for field, file in files.items():
                    start, end = self._ranges[field][row]
                    file.seek(start)
                    content[field] = file.read(end - start)
                yield self.lines[row], content


def open_rows(shard: Shard, store: ObjectStore, scratch: Path) -> ShardRows:
    """Open a shard's rows; files that are not local are copied to `scratch`."""
    folder = scratch / "inputs"
    return ShardRows({f: store.local(ref, folder) for f, ref in shard.objects.items()})


def put_shard(
    files: Mapping[str, Path],
    index: int,
    about: Mapping[str, object],
    store: ObjectStore,
    out: str,
) -> tuple[ObjectRef, ...]:
    """Write a shard's local files to the store.

    Args:
      files: the shard's files by field, which are never changed again.
      index: index of the shard.
      about: hours, utterances and frames, stored with the cuts.
      store: writes the objects.
      out: prefix of the shards.
    """
    return tuple(
        store.put_file(
            path,
            _layout(out, field, index),
            {"field": field, "shard": index, **(about if field == CUTS else {})},
            link=True,
        )
        for field, path in files.items()
    )


def write_manifests(
    store: ObjectStore, out: str, results: Sequence[StepResult], frontend: FrontendConfig | None
) -> list[Shard]:
    """Write the manifests of a set of shards, once every partition is done.

    Args:
      store: the store to write to.
      out: prefix of the shards.
      results: results of the step or steps that wrote them.
      frontend: front end of the features; None if there are no features.

    Returns:
      The shards.
    """
    # Failures, then links, then the lists: a set of shards whose lists exist is complete.
    shards = shards_of(ref for result in results for ref in result.outputs)
    failures = [failure for result in results for failure in result.failures]
    lines = "".join(f"{name}\t{reason}\n" for name, reason in failures)
    store.put(f"{out}/{FAILED}", lines.encode())
    link_fields(out, (ref for shard in shards for ref in shard.inputs))
    listed = "".join(json.dumps(_listed(shard, out)) + "\n" for shard in shards)
    store.put(f"{out}/{SHARD_LIST}", listed.encode())
    if frontend is not None:
        counts = [{"utterances": s.utterances, "frames": s.frames} for s in shards]
        text = manifest_text(frontend, counts, len(failures))
        store.put(f"{out}/{MANIFEST}", text.encode())
    return shards


def link_fields(out: str, refs: Iterable[ObjectRef]) -> None:
    """Link objects of shards into the Shar layout below `out`, if it is on a disk."""
    for ref in refs if is_local(out) else ():
        target = _layout(out, ref.about["field"], ref.about["shard"])
        link_atomically(local_path(ref.path), local_path(target))


def read_shards(store: ObjectStore, out: str) -> list[Shard]:
    """Read the list of shards that `write_manifests` wrote.

    Raises:
      StepError: the list is damaged; the message names the line.
    """
    shards = []
    for number, line in enumerate(store.get(f"{out}/{SHARD_LIST}").split(b"\n")[:-1], start=1):
        with reading(f"{out}/{SHARD_LIST}:{number}", StepError, "run the step again", "damaged"):
            entry_of_shard = validated(json.loads(line), _LISTED)
        about = {key: entry_of_shard[key] for key in ("hours", "utterances", "frames")}
        objects = {}
        for field, entry in entry_of_shard["objects"].items():
            entry_about = {
                "field": field,
                "shard": entry_of_shard["index"],
                **(about if field == CUTS else {}),
            }
            path = _resolved(entry["path"], out)
            objects[field] = ObjectRef(path, entry["size"], entry["digest"], entry_about)
        shards.append(Shard(entry_of_shard["index"], objects))
    return shards


def _listed(shard: Shard, out: str) -> dict:
    """Return a shard as plain data for the list of shards, with paths relative to `out`."""
    objects = {}
    for field, ref in shard.objects.items():
        path = _layout(out, field, shard.index) if is_local(out) else ref.path
        objects[field] = {"path": _relative(path, out), "size": ref.size, "digest": ref.digest}
    counts = {"index": shard.index, "hours": shard.hours, "utterances": shard.utterances}
    return {**counts, "frames": shard.frames, "objects": objects}


def _layout(out: str, field: str, index: int) -> str:
    """Return the path of a field of a shard in the Shar layout."""
    return f"{out}/{SHARDS}/{field_file(field, index)}"


def _relative(path: str, out: str) -> str:
    """Return a path relative to `out`; both may be URLs."""
    return posixpath.relpath(path.split("://", 1)[-1], out.split("://", 1)[-1])


def _resolved(name: str, out: str) -> str:
    """Return the path or URL of a name that is relative to `out`."""
    scheme, separator, where = out.rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(f'{where}/{name}')}"


MEMBERS_PER_ROW = 2


def write_rows(
    folder: Path,
    index: int,
    fields: Iterable[str],
    rows: Iterable[tuple[bytes, Mapping[str, bytes]]],
) -> dict[str, Path]:
    """Write a shard of the given rows, with the same bytes as if extraction had written it.

    Returns:
      The files by field, cuts first.
    """
    paths = {field: folder / field_file(field, index) for field in (CUTS, *fields)}
    with ExitStack() as stack:
        files = {f: stack.enter_context(open_atomically(p, "wb")) for f, p in paths.items()}
        tars = {field: TarWriter(file) for field, file in files.items() if field != CUTS}
        for line, content in rows:
            files[CUTS].write(line)
            for field, members in content.items():
                tars[field].write(members)
        for tar in tars.values():
            tar.close()
    return paths
