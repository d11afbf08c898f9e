"""Reading training shards from an object store at several latencies, relative to a folder."""

import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.run import Case, Table, compare
from toolkit.features.audio import Decoded
from toolkit.features.config import FrontendConfig
from toolkit.features.low_frame_rate import low_rate_length
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.features.shards import TarWriter, field_file, write_manifest, write_shard
from toolkit.pipeline.config import CacheConfig
from toolkit.pipeline.lake import Record
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.shard_cache import CachedShards
from toolkit.pipeline.shards import put_shard, write_manifests
from toolkit.pipeline.step import StepResult
from toolkit.pipeline.steps.extract import make_cut
from toolkit.ssl.config import SelectionConfig
from toolkit.ssl.targets import KBest
from toolkit.ssl.unlabelled import (
    ShardFiles,
    Source,
    SubEpochs,
    TeacherBatches,
    TeacherShards,
    select,
)
from toolkit.train.batches import ChunkSampler
from toolkit.train.config import ChunkConfig

SENONES, KEPT, DIMENSION = 3183, 20, 64
"""Outputs and stored logits of a teacher as in the paper (C3, C11); size of its features (C5)."""
UTTERANCE_FRAMES, SPEAKER_UTTERANCES = 500, 20
BANDWIDTH = 50e6
"""Bytes per second of a call, as from S3 (C24)."""
FOLDER = "folder"


def benchmark(
    hours: float = 6.0,
    shard_hours: float = 0.25,
    latencies: Sequence[float] = (0.05, 0.2),
    repeats: int = 3,
) -> Table:
    """Measure one pass over the batches, from a folder and from a store with an empty cache.

    Args:
      hours: hours of audio that the features stand for.
      shard_hours: hours of audio in a shard.
      latencies: seconds until the first byte of an object arrives, one case for each.
      repeats: timed rounds.
    """
    url = "memory://bench-shards"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frames = _write(folder, hours, shard_hours)
        store = ObjectStore()
        _put(folder, url, store)

        def from_store(latency: float) -> float:

            with tempfile.TemporaryDirectory(dir=name) as cache:
                files = CachedShards(url, SlowStore(latency), Path(cache), CacheConfig())
                return _read(files, frames)

        cases = [Case(FOLDER, lambda: _read(folder, frames))]
        for latency in latencies:
            label = f"store, {1000 * latency:.0f} ms per object"
            cases.append(Case(label, partial(from_store, latency)))
        table = compare(cases, "low-rate frames", FOLDER, repeats, "Training shards")
    return table.with_notes(
        f"{hours:g} h in shards of {shard_hours:g} h: {DIMENSION} features, {KEPT} of "
        f"{SENONES:,} logits; batches of shuffled chunks, nothing is trained",
        f"after the latency, an object is read at {BANDWIDTH / 1e6:.0f} MB/s; every round begins "
        "with an empty cache",
    )


def _read(files: Path | ShardFiles, frames: int) -> float:
    """Make all batches of one pass; return `frames`, the amount of work."""

    shards, chunks = TeacherShards(files), ChunkConfig()
    zeros = torch.zeros(DIMENSION, dtype=torch.float64)
    # Mean 0 and variance 1: normalisation takes its usual time but changes nothing.
    normaliser = Cmvn(zeros, GlobalStats(1, zeros, zeros + 1))
    source = Source(shards, select(shards, SelectionConfig()))
    data = SubEpochs([source], normaliser, None, 1, chunks.shuffle_frames, seed=0)
    for _ in TeacherBatches(data, ChunkSampler(chunks, 0), seed=0).batches(0):
        pass
    return float(frames)


def _write(folder: Path, hours: float, shard_hours: float) -> int:
    """Write shards of random features and targets; return the number of low-rate frames."""

    rng, config = np.random.default_rng(0), FrontendConfig(num_mel_bins=DIMENSION)
    # 360,000 frames of 10 ms are an hour.
    number = max(1, round(shard_hours * 360_000 / UTTERANCE_FRAMES))
    low = low_rate_length(UTTERANCE_FRAMES, 0)
    counts = []
    for index in range(max(2, round(hours / shard_hours))):
        rows, names = [], [f"{index:04d}-{row:05d}" for row in range(number)]
        for row, name in enumerate(names):
            speaker = f"{index:04d}-{row // SPEAKER_UTTERANCES:04d}"
            record = Record(name, speaker, UTTERANCE_FRAMES / 100, float(row), "", "a.wav")
            audio = Decoded(torch.zeros(0), 16000, 160 * UTTERANCE_FRAMES, 1)
            features = rng.standard_normal((UTTERANCE_FRAMES, DIMENSION), dtype=np.float32)
            rows.append((make_cut(record, audio), speaker, torch.from_numpy(features)))
        utterances, frames = write_shard(folder / "shards", index, rows, config)
        counts.append({"utterances": utterances, "frames": frames})
        with open(folder / "shards" / f"targets.{index:06d}.tar", "wb") as file:
            tar = TarWriter(file)
            for name in names:
                # [T', K] senones and logits, [T'] the log of the remaining probability mass.
                ids = rng.integers(0, SENONES, (low, KEPT)).astype(np.uint16)
                logits = rng.normal(-5, 2, (low, KEPT)).astype(np.float16)
                best = KBest(ids, logits, np.full(low, -3, dtype=np.float16))
                tar.add_array(name, best.pack(), {})
            tar.close()
    write_manifest(folder, config, counts)
    (folder / "targets.json").write_text(json.dumps({"senones": SENONES, "offset": 0}))
    return sum(count["utterances"] for count in counts) * low


def _put(folder: Path, url: str, store: ObjectStore) -> None:
    """Write a folder of shards to the store, as the pipeline's repartition does."""

    counts = json.loads((folder / "features.json").read_text())["shards"]
    results = []
    for index, count in enumerate(counts):
        fields = ("cuts", "features", "targets")
        files = {field: folder / "shards" / field_file(field, index) for field in fields}
        about = {**count, "hours": count["frames"] / 360_000}
        results.append(StepResult(put_shard(files, index, about, store, url)))
    write_manifests(store, url, results, FrontendConfig(num_mel_bins=DIMENSION))
    store.put(f"{url}/targets.json", (folder / "targets.json").read_bytes())


class SlowStore(ObjectStore):
    """An object store with simulated latency and bandwidth.

    Args:
      latency: seconds until the first byte of an object arrives.
    """

    def __init__(self, latency: float) -> None:
        super().__init__()
        self._latency = latency

    def local(self, source: ObjectRef | str, folder: Path) -> Path:
        """Implement `ObjectStore.local`."""
        path = super().local(source, folder)
        time.sleep(self._latency + path.stat().st_size / BANDWIDTH)
        return path
