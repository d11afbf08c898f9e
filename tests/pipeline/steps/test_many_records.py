"""A hundred million records, really sampled and grouped, in the memory of few.

By hand: `PIPELINE_PROOFS=1 RECORDS=100000000 pytest -s tests/pipeline/steps/test_many_records.py`.
"""

import json
import math
import os
import time

import pytest

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_metadata
from toolkit.pipeline.config import SelectConfig
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.steps.select import select_records

RECORDS = int(os.environ.get("RECORDS", "100_000_000"))
PER_SPEAKER = 1000
LIMIT = 512e6  # bytes per worker
BILLION = 1_000_000_000


class Timed:
    """An executor that records the seconds and peak memory of each step."""

    def __init__(self, executor, store):
        self.executor, self.store = executor, store
        self.seconds, self.peaks = {}, {}

    def run(self, step, partitions, out):
        start = time.monotonic()
        results = self.executor.run(step, partitions, out)
        summary = json.loads(self.store.get(f"{out}/_summary.json"))
        self.seconds[step.name] = summary["worker_seconds"]
        self.peaks[step.name] = summary["peak_bytes"]
        pieces = sum(len(result.outputs) for result in results)
        print(
            f"{step.name}: {len(partitions)} partitions, {pieces} objects, "
            f"wall {time.monotonic() - start:.0f} s, worker {summary['worker_seconds']:.0f} s, "
            f"peak {summary['peak_bytes'] / 1e6:.0f} MB"
        )
        return results


def selected(records, store, base):
    """Select half of a lake's hours; return the executor with seconds and peaks by step."""
    config = SyntheticLakeConfig(days=360, buckets=max(1, records // 500_000))
    start = time.monotonic()
    lake = make_metadata(store, f"{base}/lake", records, records // PER_SPEAKER, config)
    hours = sum(ref.about["hours"] for ref in lake.objects)
    size = sum(ref.size for ref in lake.objects)
    print(
        f"\n{records:,} records, {hours:,.0f} h, {size / 1e9:.2f} GB in {len(lake.objects)}"
        f" objects, made in {time.monotonic() - start:.0f} s"
    )
    with LocalExecutor(slots=cpu_slots(2)) as executor:
        timed = Timed(executor, store)
        files = select_records(
            lake, SelectConfig(hours=hours / 2), timed, store, f"{base}/out"
        ).files
    selected_hours = math.fsum(ref.about["hours"] for ref in files)
    print(f"{len(files)} files, {selected_hours:,.1f} h of {hours / 2:,.1f} h requested")
    assert selected_hours == pytest.approx(hours / 2, rel=1e-3)
    return timed


@pytest.mark.timeout(0)
@pytest.mark.skipif("PIPELINE_PROOFS" not in os.environ, reason="takes half an hour")
def test_memory_does_not_grow_with_the_number_of_records(store, tmp_path):
    few = selected(RECORDS // 10, store, str(tmp_path / "few"))
    many = selected(RECORDS, store, str(tmp_path / "many"))
    for name, seconds in many.seconds.items():
        exponent = math.log10(seconds / few.seconds[name])
        hours = seconds / 3600 * (BILLION / RECORDS)
        print(f"{name}: exponent {exponent:.2f}; a billion records: {hours:.1f} core-hours")
    assert max(*few.peaks.values(), *many.peaks.values()) < LIMIT
