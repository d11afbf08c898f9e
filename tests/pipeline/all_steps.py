"""Runs all steps of the pipeline, unfused, one after the other, on a small lake."""

import tempfile
from pathlib import Path

import torch

from toolkit.features.config import FrontendConfig
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.store import save_model
from toolkit.pipeline.config import RepartitionConfig, SelectConfig, ShuffleConfig, StatsConfig
from toolkit.pipeline.executor import outputs_digest
from toolkit.pipeline.lake import open_lake
from toolkit.pipeline.prepare import ShardSet, prepare_targets, repartition
from toolkit.pipeline.shards import shards_of, write_manifests
from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract
from toolkit.pipeline.steps.select import select_records
from toolkit.pipeline.steps.shuffle import Shuffle, plan_shuffle
from toolkit.pipeline.steps.stats import Stats, merge_stats, plan_shards
from toolkit.pipeline.steps.targets import TargetsConfig, Teacher

STEPS = ("sample", "group", "extract", "shuffle", "stats", "targets", "repartition")
FRONTEND = FrontendConfig(num_mel_bins=8)
SENONES = 11


def outputs(results):
    return [ref for result in results for ref in result.outputs]


def run_all(lake, executor, store, base, hours=0.01, hours_per_file=0.003, k=3):
    """Run every step by itself; returns the result of the last one.

    Args:
      lake: URL of the lake.
      executor: runs (step, partitions, output prefix) for each step.
      store: reads and writes manifests, normaliser and teacher.
      base: prefix of all outputs.
      hours, hours_per_file: of audio.
      k: targets per frame.
    """
    files = select_records(
        open_lake(store, lake), SelectConfig(hours, hours_per_file), executor, store, base
    ).files
    extract, shuffle = Extract(ExtractConfig(lake, FRONTEND)), ShuffleConfig()
    extracted = executor.run(extract, plan_extract(files), f"{base}/extract")
    plan = plan_shuffle(shards_of(outputs(extracted)), shuffle)
    shuffled = executor.run(Shuffle(shuffle), plan, f"{base}/shuffle")
    shards = write_manifests(store, f"{base}/shuffle", shuffled, FRONTEND)
    counted = executor.run(Stats(StatsConfig()), plan_shards(shards), f"{base}/stats")
    teacher = make_teacher(store, merge_stats(outputs(counted), store), f"{base}/teacher")
    features = ShardSet(f"{base}/shuffle", shards, ())
    config = TargetsConfig(teacher, k=k)
    targets = prepare_targets(features, config, executor, store, f"{base}/targets")
    parts = RepartitionConfig(0.75 * hours_per_file)
    return repartition(
        targets.shards, parts, FRONTEND, executor, store, f"{base}/parts", targets.url
    )


def make_teacher(store, normaliser, url, frontend=FRONTEND):
    """Make an untrained model, always the same, and upload it for the workers."""
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(3 * frontend.dimension, SENONES, hidden=8, layers=1))
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), model)
        normaliser.save(Path(folder) / "normaliser.json")
        return Teacher.at(store, Path(folder), Path(folder) / "normaliser.json", url)


def digests(runs):
    """The digest of each step's outputs: see `KillingExecutor.runs`."""
    return {name: outputs_digest(out, results) for name, (out, _, results) in runs.items()}
