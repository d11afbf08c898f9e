"""Steps on the unlabelled audio of a recipe: features and teacher's targets from a data lake.

With `storage`, an address such as s3://bucket/folder, the lake is copied there and the steps write
there. Features come back to `unlabelled/`, where later stages read them in any order; the shards to
train on stay, and are read from there.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.features.extract import FAILED
from toolkit.features.shards import MANIFEST, SHARDS, field_file
from toolkit.pipeline.config import StatsConfig
from toolkit.pipeline.lake import copy_lake
from toolkit.pipeline.markers import rebuild_damaged
from toolkit.pipeline.objects import ObjectStore, filesystem, is_local, local_path
from toolkit.pipeline.prepare import (
    NORMALISER,
    ShardSet,
    make_features,
    make_training_shards,
    open_executor,
)
from toolkit.pipeline.shard_cache import CachedShards
from toolkit.pipeline.shards import SHARD_LIST, read_shards
from toolkit.pipeline.spark import check_spark
from toolkit.pipeline.steps.targets import Teacher
from toolkit.ssl.targets import MANIFEST as TARGETS
from toolkit.ssl.unlabelled import ShardFiles
from toolkit.stages.run import Run
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import link_atomically, write_atomically

ADDRESS = "address.json"
"""In place of shards: where they are, and the digest of their list."""


def check_executor(config: Any) -> None:
    """Check that the configured executor can start on this machine, and open the storage."""
    if config.executor.kind == "spark":
        check_spark()
    if config.storage:
        store = config.executor.settings.store
        filesystem(config.storage, store.options, store.timeout)


def prepare_unlabelled(run: Run) -> dict[str, float]:
    """Select records, extract features in a shuffled order, estimate statistics (C16-C19).

    The steps write to `pipeline/`; `unlabelled/` gets the features without the bookkeeping.
    """
    out, store = run.make("unlabelled"), _store(run)
    lake, work = str(run.need("rooms/lake")), _place(run, "features")
    if run.config.storage:
        # These places outlive the stage, and metadata does not tell steps of other audio.
        content = run.digest("rooms/lake")[:12]
        work, copy = f"{work}-{content}", f"{_place(run, 'lake')}-{content}"
        lake = copy_lake(store, lake, copy).url
    config = replace(
        run.config.prepare,
        frontend=run.setting("fbank.frontend"),
        stats=StatsConfig(run.config.prior_frames),
    )
    with open_executor(run.config.executor, run.jobs) as executor:
        features, _ = make_features(lake, config, executor, store, work)
    if is_local(features.url):
        _link(features, store, out)
    else:
        _fetch(features, store, out)
    return _headline(features)


def label_with_teacher(run: Run, teacher: str, normaliser: Path) -> dict[str, float]:
    """Compute the teacher's targets of all unlabelled audio, and shards for training (C11, C21).

    The shards are in `taught/`, a folder for each offset, or named there.

    Returns:
      The amount of data in the shards, and `tail_mass`, the mean probability mass per frame of the
      logits that are not kept.
    """
    out, store, work = run.make("taught"), _store(run), _place(run, "targets")
    kept, unlabelled = run.config.targets, run.need("unlabelled")
    url = _address(unlabelled) if (unlabelled / ADDRESS).exists() else str(unlabelled)
    features = ShardSet(url, read_shards(store, url), ())
    place = _place(run, "teacher") if run.config.storage else None
    model = Teacher.at(store, run.need(teacher), normaliser, place)
    steps = kept, run.config.repartition, run.setting("fbank.frontend")
    with open_executor(run.config.executor, run.jobs, run.device) as executor:
        shards = make_training_shards(features, model, *steps, executor, store, work)
        for done, (offset, made) in enumerate(shards, 1):
            if is_local(made.url):
                _link(made, store, out / f"{offset}")
            else:
                _name(made, store, out / f"{offset}")
            run.progress(done, len(kept.offsets))
    manifest = json.loads(store.get(f"{made.url}/{TARGETS}"))
    return _headline(made) | {"tail_mass": manifest["tail_mass"]}


def training_shards(run: Run) -> list[Path | ShardFiles]:
    """Return the shards with features and teacher's targets, one set for each offset."""
    found: list[Path | ShardFiles] = []
    for offset in run.setting("targets.offsets"):
        folder = run.need(f"taught/{offset}")
        if not (folder / ADDRESS).exists():
            found.append(folder)
            continue
        cache = run.config.cache.folder or _user_cache()
        found.append(CachedShards(_address(folder), _store(run), cache, run.config.cache))
    return found


def _place(run: Run, name: str) -> str:
    """Return the prefix below which steps write."""
    storage = run.config.storage
    if not storage:
        return str(run.make(f"pipeline/{name}"))
    if is_local(storage):  # what is noted must not depend on the shell's directory
        storage = os.path.abspath(local_path(storage))
    return f"{storage.rstrip('/')}/{name}"


def _user_cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return cache / "asr-recipe-toolkit" / "shards"


def _link(made: ShardSet, store: ObjectStore, out: Path) -> None:
    """Hard-link a set of shards into a folder of its own, without the pipeline's bookkeeping.

    Stages that read the folder thus depend on neither the executor nor on interruptions.
    """
    root = Path(made.url)
    manifests = [path for path in root.iterdir() if path.is_file() and path.name[0] != "_"]
    listed = [ref for shard in read_shards(store, made.url) for ref in shard.inputs]
    for path in [*manifests, *(Path(ref.path) for ref in listed)]:
        link_atomically(path, out / path.relative_to(root))


def _name(made: ShardSet, store: ObjectStore, out: Path) -> None:
    """Write the address of a set of shards into a folder, in their place."""
    address = {"url": made.url, "list": digest_bytes(store.get(f"{made.url}/{SHARD_LIST}"))}
    write_atomically(out / ADDRESS, json.dumps(address, indent=1) + "\n")


def _address(folder: Path) -> str:
    """Read the address that `_name` wrote."""
    return json.loads((folder / ADDRESS).read_text(encoding="utf-8"))["url"]


def _fetch(made: ShardSet, store: ObjectStore, out: Path) -> None:
    """Copy a set of features into a folder, as `FeatureStore` opens it, and note its address."""
    _name(made, store, out)
    for name in (NORMALISER, MANIFEST, FAILED):
        write_atomically(out / name, store.get(f"{made.url}/{name}"))
    with rebuild_damaged(store):
        for shard in read_shards(store, made.url):
            for field, ref in shard.objects.items():
                write_atomically(out / SHARDS / field_file(field, shard.index), store.get(ref))


def _store(run: Run) -> ObjectStore:
    return ObjectStore(run.config.executor.settings.store)


def _headline(made: ShardSet) -> dict[str, float]:
    return {
        "hours": sum(shard.hours for shard in made.shards),
        "utterances": sum(shard.utterances for shard in made.shards),
        "shards": len(made.shards),
        "lost": len(made.failures),
    }
