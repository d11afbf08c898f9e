"""A lake of many hours through the whole pipeline: the same bytes, in the memory of one hour.

By hand: `PIPELINE_PROOFS=1 LAKE_HOURS=20 pytest -s tests/pipeline/steps/test_large.py`.
"""

import json
import os
import shutil
import time

import pytest
from all_steps import make_teacher, outputs_digest

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.features.config import FrontendConfig
from toolkit.pipeline.config import PrepareConfig, RepartitionConfig, SelectConfig
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.prepare import prepare_features, prepare_targets, repartition
from toolkit.pipeline.steps.targets import TargetsConfig

HOURS = float(os.environ.get("LAKE_HOURS", "20"))
LIMIT = 1e9  # bytes per worker
FRONTEND = FrontendConfig()


class SummarisingExecutor:
    """An executor that prints a summary of each step; it may run partitions in reverse order."""

    def __init__(self, executor, store, backwards):
        self.executor, self.store, self.step = executor, store, -1 if backwards else 1
        self.digests, self.peaks = {}, {}

    def run(self, step, partitions, out):
        start = time.monotonic()
        results = self.executor.run(step, partitions[:: self.step], out)[:: self.step]
        summary = json.loads(self.store.get(f"{out}/_summary.json"))
        self.digests[step.name] = outputs_digest(out, results)
        self.peaks[step.name] = summary["peak_bytes"]
        print(
            f"{step.name}: {len(partitions)} partitions, {summary['about'].get('hours', 0):.2f} h, "
            f"wall {time.monotonic() - start:.0f} s, worker {summary['worker_seconds']:.0f} s, "
            f"peak {summary['peak_bytes'] / 1e6:.0f} MB"
        )
        return results


def run_steps(lake, hours, store, base, workers, backwards=False):
    """Run every step; return digests and peak memory by step."""
    print(f"\n{hours:g} h, {workers} workers{', backwards' if backwards else ''}")
    per_file = 2.5
    with LocalExecutor(slots=cpu_slots(workers)) as executor:
        summarising = SummarisingExecutor(executor, store, backwards)
        config = PrepareConfig(SelectConfig(0.98 * hours, per_file), FRONTEND)
        features, normaliser = prepare_features(lake, config, summarising, store, base)
        teacher = make_teacher(store, normaliser, f"{base}/teacher", FRONTEND)
        targets = prepare_targets(features, TargetsConfig(teacher), summarising, store, base)
        parts = RepartitionConfig(per_file / 2)
        repartition(targets.shards, parts, FRONTEND, summarising, store, base, targets.url)
    shutil.rmtree(base)
    return summarising.digests, summarising.peaks


@pytest.mark.timeout(0)
@pytest.mark.skipif("PIPELINE_PROOFS" not in os.environ, reason="takes minutes")
def test_many_hours_need_the_memory_of_one(noises, store, tmp_path):
    lakes = {}
    for hours in (1.0, HOURS):
        config = SyntheticLakeConfig(hours=hours, layout="in-place", buckets=2)
        lakes[hours] = make_lake(noises, store, str(tmp_path / f"lake-{hours:g}"), config)
    base = str(tmp_path / "out")
    _, peaks_of_one_hour = run_steps(lakes[1.0], 1.0, store, base, workers=1)
    digests, peaks = run_steps(lakes[HOURS], HOURS, store, base, workers=1)
    digests_of_two_workers, peaks_of_two_workers = run_steps(
        lakes[HOURS], HOURS, store, base, workers=2, backwards=True
    )
    assert digests == digests_of_two_workers
    assert max(*peaks_of_one_hour.values(), *peaks.values(), *peaks_of_two_workers.values()) < LIMIT
