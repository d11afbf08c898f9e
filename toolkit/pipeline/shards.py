"""Shards as objects in a store, and the manifests of a whole set of shards.

<out>/shards/cuts.NNNNNN.jsonl, features.NNNNNN.tar, targets.NNNNNN.tar   lhotse's Shar layout
<out>/shards.jsonl    per shard: hours, utterances, frames, size and digest of each object
<out>/features.json   what `FeatureStore` needs to open `<out>`
<out>/failed.tsv      utterances that were left out, with the reason
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.features.extract import FAILED
from toolkit.features.frontend import FrontendConfig
from toolkit.features.shards import MANIFEST, SHARDS, manifest_text
from toolkit.pipeline.filesystems import is_local, local_path
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.rows import CUTS, ShardRows, field_file
from toolkit.pipeline.step import StepError, StepResult
from toolkit.storage.reading import NATURAL, reading, validated

SHARD_LIST = "shards.jsonl"
_LISTED = {
    **{"index": NATURAL, "hours": float, "utterances": NATURAL, "frames": NATURAL},
    "objects": {str: {"path": str, "size": NATURAL, "digest": str}},
}


@dataclass(frozen=True)
class Shard:
    """A shard of a set."""

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
    found: dict[int, dict[str, ObjectRef]] = {}
    for ref in refs:
        if "field" in ref.about:
            found.setdefault(ref.about["shard"], {})[ref.about["field"]] = ref
    for index, objects in found.items():
        if CUTS not in objects:
            raise StepError(f"shard {index} has no cuts")
    return [
        Shard(index, dict(sorted(objects.items(), key=lambda item: (item[0] != CUTS, item[0]))))
        for index, objects in sorted(found.items())
    ]


def with_fields(shards: Iterable[Shard], refs: Iterable[ObjectRef]) -> list[Shard]:
    """Add further fields, such as targets, to shards."""
    return shards_of([*(ref for shard in shards for ref in shard.inputs), *refs])


def single_shard(refs: Iterable[ObjectRef]) -> Shard:
    """Return the shard of a partition's inputs, which must be exactly one."""
    found = shards_of(refs)
    if len(found) != 1:
        raise StepError(f"{len(found)} shards in a partition that must have exactly one")
    return found[0]


def open_rows(shard: Shard, store: ObjectStore, scratch: Path) -> ShardRows:
    """Open a shard's rows; files that are not local are copied to `scratch`."""
    folder = scratch / "inputs"
    return ShardRows({f: store.local(ref, folder) for f, ref in shard.objects.items()})


def shard_folder(out: str, scratch: Path) -> Path:
    """Return the folder to write a shard in: that of `out` where it is local, else in scratch."""
    return local_path(out) / SHARDS if is_local(out) else scratch / SHARDS


def put_shard(
    files: Mapping[str, Path],
    index: int,
    about: Mapping[str, object],
    store: ObjectStore,
    out: str,
) -> tuple[ObjectRef, ...]:
    """Write a shard's local files to the store.

    Args:
      files: the shard's files by field.
      index: index of the shard.
      about: hours, utterances and frames, stored with the cuts.
    """
    return tuple(
        store.put_file(
            path,
            f"{out}/{SHARDS}/{field_file(field, index)}",
            {"field": field, "shard": index, **(about if field == CUTS else {})},
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
      results: of the step or steps that wrote them.
      frontend: of the features; None where there are none.

    Returns:
      The shards.
    """
    shards = shards_of(ref for result in results for ref in result.outputs)
    failures = [failure for result in results for failure in result.failures]
    lines = "".join(f"{name}\t{reason}\n" for name, reason in failures)
    store.put(f"{out}/{FAILED}", lines.encode())
    listed = "".join(json.dumps(_listed(shard)) + "\n" for shard in shards)
    store.put(f"{out}/{SHARD_LIST}", listed.encode())
    if frontend is not None:
        counts = [{"utterances": s.utterances, "frames": s.frames} for s in shards]
        text = manifest_text(frontend, counts, len(failures))
        store.put(f"{out}/{MANIFEST}", text.encode())
    return shards


def read_shards(store: ObjectStore, out: str) -> list[Shard]:
    """Read the list of shards that `write_manifests` wrote.

    Raises:
      StepError: the list is damaged; names the line.
    """
    shards = []
    for number, line in enumerate(store.get(f"{out}/{SHARD_LIST}").split(b"\n")[:-1], start=1):
        with reading(f"{out}/{SHARD_LIST}:{number}", StepError, "run the step again", "damaged"):
            plain = validated(json.loads(line), _LISTED)
        about = {key: plain[key] for key in ("hours", "utterances", "frames")}
        objects = {}
        for field, entry in plain["objects"].items():
            entry_about = {
                "field": field,
                "shard": plain["index"],
                **(about if field == CUTS else {}),
            }
            path = f"{out}/{entry['path']}"
            objects[field] = ObjectRef(path, entry["size"], entry["digest"], entry_about)
        shards.append(Shard(plain["index"], objects))
    return shards


def _listed(shard: Shard) -> dict:
    objects = {
        field: {"path": _name(ref), "size": ref.size, "digest": ref.digest}
        for field, ref in shard.objects.items()
    }
    plain = {"index": shard.index, "hours": shard.hours, "utterances": shard.utterances}
    return {**plain, "frames": shard.frames, "objects": objects}


def _name(ref: ObjectRef) -> str:
    return "/".join(ref.path.rsplit("/", 2)[-2:])
