"""The steps on an S3 server that is slow and full of faults."""

import os
import time

import numpy as np
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto")

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.pipeline.config import StoreConfig
from toolkit.pipeline.lake import Record, resolve
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.steps.extract import fetch, plan_spans

LATENCY = 0.2  # seconds per call
FAULTS = {"error": 0.05, "reset": 0.03, "lost": 0.03, "truncate": 0.05}
UTTERANCES, SIZE = 160, 115_200  # of 3.6 s in 256 kbit/s


def test_every_step_on_a_faulty_s3_gives_the_bytes_of_a_local_disk(s3, cuts, here, tmp_path):
    from all_steps import STEPS, digests, run_all
    from killed_steps import KillingExecutor

    hours = 3 * sum(cut.duration for cut in cuts) / 3600 - 1e-6
    config = SyntheticLakeConfig(hours=hours, days=60, buckets=2)
    digests_by_place = {}
    (tmp_path / "ledger").mkdir()
    for place, store in ((str(tmp_path / "local"), ObjectStore()), (s3.base, s3.store)):
        lake = make_lake(cuts, store, f"{place}/lake", config)
        here.store = store
        recording = KillingExecutor(here, tmp_path / "ledger", "")
        if store is s3.store:
            for name, value in FAULTS.items():
                setattr(s3.faults, name, value)
        run_all(lake.url, recording, store, f"{place}/out")
        digests_by_place[place] = digests(recording.runs)
    local, remote = digests_by_place.values()
    assert tuple(local) == STEPS
    assert local == remote
    assert s3.store.counts.repeated > 0
    print(f"{s3.store.counts.calls} calls, {s3.store.counts.repeated} of them repeated")


@pytest.mark.skipif("PIPELINE_PROOFS" not in os.environ, reason="takes a minute")
def test_aggregated_objects_are_read_fifty_times_as_fast(s3, tmp_path):
    content = np.random.default_rng(0).bytes(UTTERANCES * SIZE)
    s3.store.put(f"{s3.base}/all.tar", content)
    aggregated, separate = [], []
    for number in range(UTTERANCES):
        start = number * SIZE
        s3.store.put(f"{s3.base}/{number:04d}", content[start : start + SIZE])
        about = (f"u{number:04d}", "s", 3.6, float(number), "")
        aggregated.append(Record(*about, "all.tar", start, SIZE))
        separate.append(Record(*about, f"{number:04d}"))
    s3.faults.latency = LATENCY

    def one_by_one(store):
        return [store.get(resolve(record.audio, s3.base)) for record in separate]

    def by_spans(store):
        spans = plan_spans(aggregated)
        return [store.get_range(resolve(s.path, s3.base), s.start, s.end - s.start) for s in spans]

    def fetched(records):
        return lambda store: [
            bytes(audio) for _, audio in fetch(records, store, s3.base, tmp_path / "scratch")
        ]

    def measured(name, way, rounds=1):
        """Return the seconds of the fastest round: a busy machine makes the others slower."""
        seconds = []
        for _ in range(rounds):
            store = ObjectStore(StoreConfig({"endpoint_url": s3.url}))
            began = time.monotonic()
            assert b"".join(way(store)) == content
            seconds.append(time.monotonic() - began)
        print(f"{name}: {store.counts.get} GET, {min(seconds):.2f} s")
        return min(seconds)

    fetch_aggregated, fetch_separate = fetched(aggregated), fetched(separate)
    alone = measured("an object per utterance, one connection", one_by_one)
    assert alone > 50 * measured("aggregated, one connection", by_spans, rounds=5)
    measured("an object per utterance, as extraction does", fetch_separate)
    measured("aggregated, as extraction does", fetch_aggregated)
