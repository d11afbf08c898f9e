from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from weakref import WeakSet

import numpy as np
import pytest
import torch

from toolkit.features.normalise import estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.lang.units import Characters
from toolkit.processes.workers import WorkerError
from toolkit.train.config import ReaderConfig, RecordConfig
from toolkit.train.ctc import readers as module
from toolkit.train.ctc.readers import BatchReader, RecordSource
from toolkit.train.ctc.records import RecordError, write_records
from toolkit.train.errors import TrainingDataError

LENGTHS = [40, 95, 52, 63, 88, 45, 71, 59, 40, 66, 90]


@pytest.fixture
def records(write_store, tmp_path):
    return write_texts(write_store(LENGTHS), len(LENGTHS), tmp_path / "records")


def write_texts(features, number, out):
    texts = {f"u{i}": "AB" * (i % 4 + 1) for i in range(number)}
    write_records(features, texts, Characters(), RecordConfig(per_file=4), out)
    return out


def source(records, seed=1, normaliser=None, **settings):
    config = ReaderConfig(**{"utterances_per_batch": 4, "readers": 0, **settings})
    return RecordSource(records, config, seed, normaliser)


def is_same_batch(a, b):
    return a.ids == b.ids and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("inputs", "input_lengths", "labels", "label_lengths")
    )


@pytest.mark.parametrize("order", ["shuffled", "buckets"])
def test_every_utterance_comes_once_an_epoch_in_a_new_order(records, order):
    data = source(records, order=order)
    epochs = [[u for batch in data.batches(e) for u in batch.ids] for e in range(2)]
    for ids in epochs:
        assert sorted(ids) == sorted(data.records.names)
    assert epochs[0] != epochs[1] != data.records.names
    reseeded = source(records, seed=2, order=order)
    assert [u for batch in reseeded.batches(0) for u in batch.ids] != epochs[0]


def test_rows_are_the_stored_features_and_labels_padded_with_zeros(records, tmp_path):
    store = FeatureStore(tmp_path / "features")
    for batch in source(records).batches(3):
        assert batch.inputs.dtype == torch.float32
        assert batch.labels.dtype == batch.input_lengths.dtype == torch.int64
        assert batch.inputs.shape[1] == batch.input_lengths.max()
        assert batch.labels.shape[1] == batch.label_lengths.max()
        assert batch.frames == batch.input_lengths.sum()
        for n, name in enumerate(batch.ids):
            frames, labels = int(batch.input_lengths[n]), int(batch.label_lengths[n])
            assert torch.equal(batch.inputs[n, :frames], store.load(name))
            assert not batch.inputs[n, frames:].any()
            assert batch.labels[n, :labels].tolist() == [1, 2] * (int(name[1:]) % 4 + 1)
            assert not batch.labels[n, labels:].any()


def test_features_are_normalised_with_the_speakers_past(records, tmp_path):
    store = FeatureStore(tmp_path / "features")
    normaliser = estimate_normaliser(store)
    for batch in source(records, normaliser=normaliser).batches(0):
        for row, length, name in zip(batch.inputs, batch.input_lengths, batch.ids, strict=True):
            expected = normaliser.apply(store.load(name), store.cmn_state(name))
            assert torch.equal(row[:length], expected.half().float())


@pytest.mark.parametrize("order", ["shuffled", "buckets"])
def test_resumed_and_divided_epochs_are_parts_of_the_whole(records, order):
    data = source(records, utterances_per_batch=2, order=order)
    whole = list(data.batches(5))
    assert data.num_steps(5) == len(whole) == 6
    assert all(
        is_same_batch(a, b) for a, b in zip(data.batches(5, start=4), whole[4:], strict=True)
    )
    assert data.num_steps(5, world_size=4) == 1
    for rank in range(4):
        [batch] = data.batches(5, rank=rank, world_size=4)
        assert is_same_batch(batch, whole[rank])
    [batch] = data.batches(5, start=1, rank=1, world_size=3)
    assert is_same_batch(batch, whole[4])


def test_the_number_of_readers_does_not_matter(records, tmp_path):
    normaliser = estimate_normaliser(FeatureStore(tmp_path / "features"))
    alone = list(source(records, normaliser=normaliser).batches(0))
    with source(records, normaliser=normaliser, readers=2, buffer=2) as data:
        for _ in range(2):
            assert all(is_same_batch(a, b) for a, b in zip(data.batches(0), alone, strict=True))
        batches = data.batches(0)
        assert is_same_batch(next(batches), alone[0])
        batches.close()  # the readers stay, the next batches are not mixed up with these
        assert is_same_batch(next(data.batches(0, start=1)), alone[1])


def test_fixed_padding_gives_equal_shapes(records):
    data = source(records, pad_to=120)
    assert {batch.inputs.shape[1] for batch in data.batches(0)} == {120}
    with pytest.raises(TrainingDataError, match=r"u1 has 95 frames, more than `pad_to` = 94"):
        source(records, pad_to=94)


def test_buckets_need_less_padding(write_store, tmp_path):
    lengths = np.random.default_rng(0).integers(40, 400, 120).tolist()
    records = write_texts(write_store(lengths), 120, tmp_path / "r")

    def padding(order):
        batches = list(source(records, utterances_per_batch=6, order=order).batches(0))
        return 1 - sum(b.frames for b in batches) / sum(b.inputs[..., 0].numel() for b in batches)

    assert padding("buckets") < 0.1 < 0.25 < padding("shuffled")
    buckets = source(records, utterances_per_batch=6, order="buckets")
    longest = [int(batch.input_lengths.max()) for batch in buckets.batches(0)]
    assert longest != sorted(longest) != longest[::-1]


def test_the_shortest_are_read_first(records):
    data = source(records, shortest_first=1)
    lengths = [n for batch in data.batches(0) for n in batch.input_lengths.tolist()]
    assert lengths == sorted(LENGTHS)
    lengths = [n for batch in data.batches(1) for n in batch.input_lengths.tolist()]
    assert lengths != sorted(LENGTHS)


def test_the_longest_are_read_first_repeatedly(records):
    batches = source(records).longest_first()
    for _ in range(2):
        assert [n for b in batches for n in b.input_lengths.tolist()] == sorted(LENGTHS)[::-1]
    assert [name for batch in batches for name in batch.ids][-2:] == ["u0", "u8"]


def read(batches, lengths):
    """Read batches in another process."""
    assert [n for b in batches for n in b.input_lengths.tolist()] == lengths


def test_another_process_reads_the_longest_first_and_ends(records):
    with source(records, readers=1) as data:
        next(data.batches(0))
        arguments = (data.longest_first(), sorted(LENGTHS)[::-1])
        process = get_context("spawn").Process(target=read, args=arguments)
        process.start()
        process.join(60)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()


class Pool:
    """A pool that computes at once and counts tasks submitted and results held."""

    started = None
    """The pool that was started last."""

    def __init__(self, *args, initargs, **kwargs):
        _, records, pad_to, _ = initargs
        self.read = BatchReader(module.Records(records), pad_to, None)
        self.submitted, self.held = 0, WeakSet()
        Pool.started = self

    def submit(self, function, group):
        assert function is module.read_batch
        future = Future()
        future.set_result(self.read(group))
        self.submitted += 1
        self.held.add(future)
        return future

    def shutdown(self, cancel_futures):
        assert cancel_futures


def test_the_buffer_is_bounded(records, monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    data = source(records, utterances_per_batch=1, readers=3, buffer=4)
    for num_read, _ in enumerate(data.batches(0), start=1):
        pool = Pool.started
        assert pool.submitted == num_read + 3  # with those of the next epoch
    assert num_read == 11
    expected = source(records, utterances_per_batch=1).batches(1)
    assert all(is_same_batch(a, b) for a, b in zip(data.batches(1), expected, strict=True))
    assert pool.submitted == 22 + 3
    next(data.batches(0))  # the three of epoch 2 are of no use now
    assert pool.submitted == 25 + 4
    assert len(pool.held) == 3


def test_a_killed_reader_is_an_error_with_a_remedy(records, monkeypatch):
    class Broken(Pool):
        def submit(self, function, group):
            future = Future()
            future.set_exception(BrokenProcessPool())
            return future

    monkeypatch.setattr(module, "ProcessPoolExecutor", Broken)
    with pytest.raises(WorkerError, match="fewer readers"):
        next(source(records, readers=1).batches(0))


def test_a_damaged_record_is_named(records):
    path = records / "files" / "records.000000.safetensors"
    content = bytearray(path.read_bytes())
    content[-20:] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(RecordError, match="damaged in"):
        list(source(records).batches(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"utterances_per_batch": 0},
        {"buffer": 0},
        {"readers": -1},
        {"shortest_first": -1},
        {"pad_to": 0},
        {"order": "sorted"},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ReaderConfig(**wrong)
