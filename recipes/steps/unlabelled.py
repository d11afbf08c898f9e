"""Steps on the unlabelled audio of a recipe: features and teacher's targets from a data lake."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.pipeline.far_field import make_features, make_training_shards, open_executor
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.prepare import ShardSet
from toolkit.pipeline.shards import read_shards
from toolkit.pipeline.spark import check_spark
from toolkit.pipeline.steps.stats import StatsConfig
from toolkit.pipeline.steps.targets import Teacher
from toolkit.ssl.target_store import TargetStore
from toolkit.stages.run import Run
from toolkit.storage.files import link_atomically


def check_executor(config: Any) -> None:
    """Check that the configured executor can start on this machine."""
    if config.executor.kind == "spark":
        check_spark()


def prepare_unlabelled(run: Run) -> dict[str, float]:
    """Select records, extract features in a shuffled order, estimate statistics (C16-C19).

    The steps write to `pipeline/`; `unlabelled/` gets the features without the bookkeeping.
    """
    work, out, store = run.make("pipeline/features"), run.make("unlabelled"), _store(run)
    lake = str(run.need("rooms/lake"))
    config = replace(
        run.config.prepare,
        frontend=run.config.fbank.frontend,
        stats=StatsConfig(run.config.prior_frames),
    )
    with open_executor(run.config.executor, run.jobs) as executor:
        features, _ = make_features(lake, config, executor, store, str(work))
    _link(features, store, out)
    return _headline(features)


def label_with_teacher(run: Run, teacher: str, normaliser: Path) -> dict[str, float]:
    """Compute the teacher's targets of all unlabelled audio, and shards for training (C11, C21).

    The shards are in `taught/`, a folder for each offset.

    Returns:
      The amount of data in the shards, and `tail_mass`, the mean probability mass per frame of the
      logits that are not kept.
    """
    work, out, store = run.make("pipeline/targets"), run.make("taught"), _store(run)
    kept, url = run.config.targets, str(run.need("unlabelled"))
    features = ShardSet(url, read_shards(store, url), ())
    model = Teacher.at(store, run.need(teacher), normaliser)
    steps = kept, run.config.repartition, run.config.fbank.frontend
    with open_executor(run.config.executor, run.jobs, run.device) as executor:
        shards = make_training_shards(features, model, *steps, executor, store, str(work))
        for done, (offset, made) in enumerate(shards, 1):
            _link(made, store, out / f"{offset}")
            run.progress(done, len(kept.offsets))
    return _headline(made) | {"tail_mass": TargetStore(Path(made.url)).manifest["tail_mass"]}


def training_shard_folders(run: Run) -> list[Path]:
    """Return the folders of shards with features and teacher's targets, one for each offset."""
    return [run.need(f"taught/{offset}") for offset in run.config.targets.offsets]


def _link(made: ShardSet, store: ObjectStore, out: Path) -> None:
    """Hard-link a set of shards into a folder of its own, without the pipeline's bookkeeping.

    Stages that read the folder thus depend on neither the executor nor on interruptions.
    """
    root = Path(made.url)
    manifests = [path for path in root.iterdir() if path.is_file() and path.name[0] != "_"]
    listed = [ref for shard in read_shards(store, made.url) for ref in shard.inputs]
    for path in [*manifests, *(Path(ref.path) for ref in listed)]:
        link_atomically(path, out / path.relative_to(root))


def _store(run: Run) -> ObjectStore:
    return ObjectStore(run.config.executor.settings.store)


def _headline(made: ShardSet) -> dict[str, float]:
    return {
        "hours": sum(shard.hours for shard in made.shards),
        "utterances": sum(shard.utterances for shard in made.shards),
        "shards": len(made.shards),
        "lost": len(made.failures),
    }
