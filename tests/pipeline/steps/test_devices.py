"""Target generation on simulated GPUs: Spark gives each one task at a time (C20).

By hand: `PIPELINE_PROOFS=1 pytest tests/pipeline/steps/test_devices.py`.
"""

import itertools
import os
import shutil
import stat
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None or "PIPELINE_PROOFS" not in os.environ:
    pytest.skip("needs Java, and a minute", allow_module_level=True)

from all_steps import make_teacher
from killed_steps import LoggedStep

from tests.ssl.target_store import TargetStore
from toolkit.features.config import FrontendConfig
from toolkit.pipeline.config import SparkConfig, StatsConfig
from toolkit.pipeline.prepare import ShardSet, prepare_targets
from toolkit.pipeline.spark import SparkExecutor
from toolkit.pipeline.steps.stats import Stats, merge_stats, plan_shards
from toolkit.pipeline.steps.targets import TargetsConfig

HERE = Path(__file__).parents[1]
FRONTEND = FrontendConfig(num_mel_bins=4)  # of the fixture `shards`
SECONDS = 0.5


class Watched:
    """An executor whose steps note their devices."""

    def __init__(self, executor, ledger):
        self.executor, self.ledger = executor, str(ledger)

    def run(self, step, partitions, out):
        return self.executor.run(LoggedStep(step, self.ledger, SECONDS), partitions, out)


def test_spark_runs_one_targets_task_per_device(shards, here, store, tmp_path):
    counted = here.run(Stats(StatsConfig()), plan_shards(shards), str(tmp_path / "stats"))
    normaliser = merge_stats((ref for r in counted for ref in r.outputs), store)
    config = TargetsConfig(make_teacher(store, normaliser, str(tmp_path / "teacher"), FRONTEND), 3)
    features = ShardSet(str(tmp_path / "in"), shards, ())
    expected = prepare_targets(features, config, here, store, str(tmp_path / "calm"))

    script, ledger = tmp_path / "devices.sh", tmp_path / "ledger"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0"]}\'\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    ledger.mkdir()
    cluster = SparkConfig(
        master="local-cluster[2,2,1024]",  # two nodes, each of two cores and one device
        executor_memory="512m",
        gpus_per_executor=1,
        gpu_discovery=str(script),
        packages=tuple(str(HERE / name) for name in ("sample_steps.py", "killed_steps.py")),
    )
    with SparkExecutor(spark=cluster) as executor:
        watched = Watched(executor, ledger)
        actual = prepare_targets(features, config, watched, store, str(tmp_path / "out"))
    local_targets, spark_targets = TargetStore(expected.url), TargetStore(actual.url)
    assert local_targets.ids == spark_targets.ids
    for name in local_targets.ids:
        assert (local_targets.load(name).pack() == spark_targets.load(name).pack()).all()
    tasks = {}
    for path in ledger.iterdir():
        _, device, start, end = path.name.split()
        tasks.setdefault(device, []).append((int(start), int(end)))
    assert len(tasks) == 2  # the device of each node
    assert sum(map(len, tasks.values())) == len(shards)
    for times in tasks.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(times)))
