"""Training shards in a store: reading, the cache and prefetching."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tests.ssl.synthetic import write_synthetic
from toolkit.features.config import FrontendConfig
from toolkit.features.normalise import estimate_normaliser
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.pipeline.config import CacheConfig, StoreConfig
from toolkit.pipeline.markers import FOLDER, OBJECTS, Marker
from toolkit.pipeline.objects import DamagedObjectError, ObjectError, ObjectStore
from toolkit.pipeline.shard_cache import FORCE, CachedShards
from toolkit.pipeline.shards import put_shard, read_shards, write_manifests
from toolkit.pipeline.step import StepError, StepResult
from toolkit.ssl.config import SelectionConfig
from toolkit.ssl.unlabelled import Source, SubEpochs, TeacherBatches, TeacherShards, select
from toolkit.train.batches import ChunkSampler
from toolkit.train.config import ChunkConfig

FIELDS = {"cuts": "jsonl", "features": "tar", "targets": "tar"}
SHARDS = 6


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """30 utterances in 6 shards with an untrained teacher's targets, and a normaliser."""
    shard_set = write_synthetic(tmp_path_factory.mktemp("local"), 30, shards=SHARDS)
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(15, 6, hidden=8, layers=1, lookahead=1))
    normaliser = estimate_normaliser(shard_set.store)
    shard_set.label(model, normaliser, k=3, offset=1)
    return shard_set, normaliser


class SlowStore(ObjectStore):
    """Delays every object; counts how many are fetched at the same time."""

    def __init__(self, latency=0.0):
        super().__init__(StoreConfig(tries=1))
        self.latency, self.under_way, self.most = latency, 0, 0
        self._mine = threading.Lock()

    def local(self, source, folder):
        with self._mine:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(self.latency)
        with self._mine:
            self.under_way -= 1
        return super().local(source, folder)


def put(folder, url, store):
    """Write a local set of shards to a store, as the pipeline's repartition does."""
    results = []
    for index in range(SHARDS):
        names = {f: folder / f"shards/{f}.{index:06d}.{end}" for f, end in FIELDS.items()}
        about = {"hours": 0.1, "utterances": 5, "frames": 9}
        results.append(StepResult(put_shard(names, index, about, store, url)))
    write_manifests(store, url, results, FrontendConfig(num_mel_bins=5))
    for name in ("features.json", "targets.json"):
        store.put(f"{url}/{name}", (folder / name).read_bytes())


@pytest.fixture
def url(local, tmp_path):
    put(local[0].folder, f"memory://{tmp_path.name}", ObjectStore())
    return f"memory://{tmp_path.name}"


def plain(example):
    state = example.state.frames, example.state.sum.tolist()
    return example.name, example.features.numpy().tobytes(), state, example.targets.pack().tobytes()


def test_shards_in_a_store_equal_those_in_a_folder(local, url, tmp_path):
    here = TeacherShards(local[0].folder)
    stored = CachedShards(url, ObjectStore(), tmp_path / "cache", CacheConfig())
    there = TeacherShards(stored)
    assert (there.num_senones, there.offset, there.dimension) == (6, 1, 5)
    assert np.array_equal(there.frames, here.frames)
    for shard in range(SHARDS):
        for rank in range(2):
            parts = [list(map(plain, shards.read(shard, rank, 2))) for shards in (here, there)]
            assert parts[0] == parts[1] != []


def test_training_reads_the_same_batches_from_store_and_folder(local, url, tmp_path):
    shard_set, normaliser = local
    stored = CachedShards(url, ObjectStore(), tmp_path / "cache", CacheConfig())
    batches_by_source = []
    for files in (shard_set.folder, stored):
        shards = TeacherShards(files)
        source = Source(shards, select(shards, SelectionConfig("confidence", share=0.5)))
        data = SubEpochs([source], normaliser, None, 2, max_frames=200, seed=1)
        batches = TeacherBatches(data, ChunkSampler(ChunkConfig(chunks_per_batch=4), 1), seed=2)
        batches_by_source.append([b for epoch in range(2) for b in batches.batches(epoch)])
    assert len(batches_by_source[0]) == len(batches_by_source[1]) > 2
    for folder_batch, store_batch in zip(*batches_by_source, strict=True):
        assert torch.equal(folder_batch.inputs, store_batch.inputs)
        assert torch.equal(folder_batch.logits, store_batch.logits)


def test_cached_shards_are_not_fetched_again(url, tmp_path):
    store, folder = ObjectStore(), tmp_path / "cache"
    for _ in range(2):
        shards = TeacherShards(CachedShards(url, store, folder, CacheConfig()))
        num_gets = store.counts.get
        for _ in range(2):
            assert len(list(shards.read(0))) == 5
    assert store.counts.get == num_gets
    assert len(list(folder.iterdir())) == 3


def test_the_cache_keeps_its_size_by_removing_the_least_recently_opened(url, tmp_path):
    folder = tmp_path / "cache"
    whole = CachedShards(url, ObjectStore(), folder, CacheConfig())
    sizes = []
    for shard in range(2):
        for field in FIELDS:
            with whole.open(field, shard) as file:
                sizes.append(len(file.read()))
    for path in folder.iterdir():
        path.unlink()
    small = CachedShards(url, ObjectStore(), folder, CacheConfig(gigabytes=1.2 * sum(sizes) / 1e9))
    for shard in (0, 1, 0, 2):
        for field in FIELDS:
            small.open(field, shard).close()
            time.sleep(0.005)  # the clock of the file system is coarse
    cached = {path.name for path in folder.iterdir()}
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 1.2 * sum(sizes)
    listed = read_shards(ObjectStore(), url)
    names = [{str(ref.digest) for ref in shard.objects.values()} for shard in listed]
    assert names[2] <= cached
    assert len(names[0] & cached) > len(names[1] & cached)


def test_an_open_file_stays_readable_when_its_copy_is_removed(url, tmp_path):
    tiny = CachedShards(url, ObjectStore(), tmp_path / "cache", CacheConfig(gigabytes=1e-9))
    shards = TeacherShards(tiny)
    reading = shards.read(0)
    first = next(reading)
    assert len(list(shards.read(1))) == 5
    assert len([first, *reading]) == 5
    assert len(list((tmp_path / "cache").iterdir())) == 1  # the newest


def test_prefetched_shards_are_fetched_in_parallel(url, tmp_path):
    store = SlowStore(0.2)
    stored = CachedShards(url, store, tmp_path / "cache", CacheConfig(threads=9))
    stored.prefetch(range(3))
    stored.prefetch(range(3))
    end = time.monotonic() + 20
    while len([p for p in (tmp_path / "cache").iterdir() if len(p.name) == 32]) < 9:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert store.most > 4
    num_gets = store.counts.get
    assert len(list(TeacherShards(stored).read(2))) == 5
    assert store.counts.get == num_gets + 2  # the manifests


def test_concurrent_readers_fetch_an_object_once(url, tmp_path):
    stores = [SlowStore(0.1) for _ in range(6)]
    opened = [CachedShards(url, store, tmp_path / "cache", CacheConfig()) for store in stores]
    num_gets = sum(store.counts.get for store in stores)
    threads = [threading.Thread(target=lambda s=s: s.open("cuts", 0).close()) for s in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(store.counts.get for store in stores) == num_gets + 1


def test_a_cache_that_is_far_too_small_gives_the_right_contents(url, tmp_path):
    """Threads wait for copies and locks that are removed in the meantime."""
    store = ObjectStore()  # tries again: threads that read one object in memory share its position
    files = CachedShards(url, store, tmp_path, CacheConfig(gigabytes=1e-9))
    whole = {(f, i): len(files.open(f, i).read()) for f in FIELDS for i in range(SHARDS)}
    with ThreadPoolExecutor(12) as threads:
        sizes = threads.map(lambda key: len(files.open(*key).read()), list(whole) * 40)
        assert list(sizes) == list(whole.values()) * 40


def test_damaged_and_missing_objects_are_named(url, tmp_path):
    stored = CachedShards(url, ObjectStore(StoreConfig(tries=1)), tmp_path, CacheConfig())
    ref = read_shards(ObjectStore(), url)[1].objects["targets"]
    ObjectStore().put(ref.path, b"x" * ref.size)
    stored.prefetch([1])
    with pytest.raises(ObjectError, match=r"targets.000001.tar: .*digest"):
        list(TeacherShards(stored).read(1))
    with pytest.raises(ValueError, match="contains no lattices"):
        stored.open("lattices", 1)
    stored.close()  # other objects of the shard are still being fetched
    assert not [name for name in os.listdir(tmp_path) if name.startswith("tmp")]


def test_opening_a_damaged_shard_removes_its_marker(url, tmp_path):
    """The marker is removed, so that the stage that made the shard runs again."""
    store, out = ObjectStore(StoreConfig(tries=1)), f"{url}/made"
    ref = store.put(f"{out}/{OBJECTS}/p/a/x", b"abc")
    Marker("work", StepResult((ref,)), {}).commit(store, out, "p")
    assert list(store.list(f"{out}/{FOLDER}"))
    shards = [json.loads(line) for line in store.get(f"{url}/shards.jsonl").splitlines()]
    damaged = {"path": f"made/{OBJECTS}/p/a/x", "size": ref.size, "digest": ref.digest}
    shards[0]["objects"]["targets"] = damaged
    store.put(f"{url}/shards.jsonl", "".join(json.dumps(x) + "\n" for x in shards).encode())
    store.put(ref.path, b"xyz")
    stored = CachedShards(url, store, tmp_path, CacheConfig())
    with pytest.raises(DamagedObjectError, match=FORCE):
        stored.open("targets", 0)
    assert not list(store.list(f"{out}/{FOLDER}"))


def test_an_invalid_digest_is_no_path(url, tmp_path):
    store = ObjectStore()
    listed = store.get(f"{url}/shards.jsonl").decode()
    digest = read_shards(store, url)[0].objects["cuts"].digest
    store.put(f"{url}/shards.jsonl", listed.replace(str(digest), "../../x").encode())
    with pytest.raises(StepError, match=r"shard 0 has the invalid digest '\.\./\.\./x'"):
        CachedShards(url, store, tmp_path / "cache", CacheConfig())


@pytest.mark.parametrize("settings", [{"gigabytes": 0}, {"threads": 0}])
def test_invalid_settings_are_refused(settings):
    with pytest.raises(ValueError, match="must be"):
        CacheConfig(**settings)
