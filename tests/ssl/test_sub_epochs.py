import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ssl.target_store import TargetStore
from toolkit.features.low_frame_rate import stack
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.ssl.config import SelectionConfig
from toolkit.ssl.unlabelled import Source, SubEpochs, TeacherBatches, TeacherShards, select
from toolkit.train.batches import ChunkSampler, UtteranceSampler, equal_parts
from toolkit.train.config import ChunkConfig, WholeUtteranceConfig
from toolkit.train.errors import TrainingDataError

CHUNKS = ChunkConfig(frames=8, chunks_per_batch=6, shuffle_frames=1500)
WHOLE = WholeUtteranceConfig(batch_frames=100, max_frames=26)


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return LstmModel(LstmConfig(15, 6, hidden=8, layers=1, lookahead=1))


@pytest.fixture(scope="module")
def folder(make_synthetic, normaliser, teacher):
    return make_synthetic(60, shards=10).label(teacher, normaliser, k=3, offset=1)


@pytest.fixture(scope="module")
def source(folder):
    shards = TeacherShards(folder)
    return Source(shards, select(shards, SelectionConfig()))


def sub_epochs(source, normaliser, count=3, hours=None, max_frames=1500, seed=0):
    return SubEpochs([source], normaliser, hours, count, max_frames, seed)


def test_one_pass_reads_all_shards(source, normaliser):
    for seed in (0, 1):
        data = sub_epochs(source, normaliser, seed=seed)
        order = [shard for number in range(3) for _, shard in data.shards(number)]
        assert sorted(order) == list(range(10))
        lengths = [
            sum(source.shards.frames[shard] for _, shard in data.shards(number))
            for number in range(3)
        ]
        assert sum(lengths) == 3 * data.length
        assert max(abs(length - data.length) for length in lengths) <= source.shards.frames.max()
        assert data.hours == pytest.approx(source.shards.frames.sum() / 360_000, rel=0.01)
    assert order != [s for n in range(3) for _, s in sub_epochs(source, normaliser).shards(n)]


def test_passes_follow_each_other_in_new_orders(source, normaliser):
    total = source.shards.frames.sum() / 360_000
    data = sub_epochs(source, normaliser, count=5, hours=0.7 * total)
    shard_passes = [row for number in range(5) for row in data.shards(number)]
    passes = [[shard for p, shard in shard_passes if p == number] for number in range(4)]
    assert all(sorted(numbers) == list(range(10)) for numbers in passes[:3])
    assert passes[0] != passes[1]
    assert 3 <= len(passes[3]) <= 7  # half of it
    assert [p for p, _ in shard_passes] == sorted(p for p, _ in shard_passes)


def test_windows_hold_as_many_shards_as_fit(source, normaliser):
    data = sub_epochs(source, normaliser)
    for number in range(3):
        windows = data.shard_sets(number)
        assert [s for w in windows for s in w.shards] == [s for _, s in data.shards(number)]
        frames = source.shards.frames
        assert all(sum(frames[list(w.shards)]) <= 1500 or len(w.shards) == 1 for w in windows)
        assert sum(w.utterances for w in windows) == sum(
            source.shards.utterances[s] for _, s in data.shards(number)
        )


def test_sub_epochs_without_a_shard_are_refused(source, normaliser):
    with pytest.raises(TrainingDataError, match="too few for sub-epochs"):
        sub_epochs(source, normaliser, count=30)


@pytest.mark.parametrize("hours", [None, 1.0])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_shards_without_frames_are_refused(make_synthetic, normaliser, teacher, hours, share):
    shards = TeacherShards(make_synthetic(0).label(teacher, normaliser))
    chosen = select(shards, SelectionConfig(share=share))
    with pytest.raises(TrainingDataError, match="has no frames"):
        sub_epochs(Source(shards, chosen), normaliser, hours=hours)


def test_sources_take_turns(make_synthetic, normaliser, teacher):
    stores = [make_synthetic(12, shards=4) for _ in range(2)]
    sources = []
    for offset, synthetic in enumerate(stores):
        shards = TeacherShards(synthetic.label(teacher, normaliser, offset=offset))
        sources.append(Source(shards, select(shards, SelectionConfig())))
    hours = sources[0].shards.frames.sum() / 360_000
    data = SubEpochs(sources, normaliser, hours, 3, 10**6, seed=0)
    offsets = [[w.source.shards.offset for w in data.shard_sets(number)] for number in range(3)]
    assert offsets == [[0], [1], [0]]
    mismatched = TeacherShards(make_synthetic(11, shards=4).label(teacher, normaliser))
    with pytest.raises(TrainingDataError, match="same utterances"):
        SubEpochs(
            [sources[0], Source(mismatched, sources[0].selection)], normaliser, None, 1, 10, 0
        )


def batches_of(data, sampler, **options):
    source = TeacherBatches(data, sampler, seed=0)
    for epoch in range(data.count):
        batches = list(source.batches(epoch, **options))
        assert len(batches) == source.num_steps(epoch, options.get("world_size", 1))
        yield from batches


def expected_frames(folder, normaliser, planted_store):
    """Stacked inputs and targets of every utterance by id, at offset 1."""
    targets = TargetStore(folder)
    return {
        name: (
            stack(
                normaliser.apply(planted_store.load(name), planted_store.cmn_state(name)).half(), 1
            ),
            targets.load(name),
        )
        for name in targets.ids
    }


@pytest.mark.parametrize("kind", ["chunks", "utterances"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_frame_is_seen_once_with_its_targets(folder, source, normaliser, kind, world_size):
    from toolkit.features.shards import FeatureStore

    data = sub_epochs(source, normaliser)
    sampler = ChunkSampler(CHUNKS, 2) if kind == "chunks" else UtteranceSampler(WHOLE, 2)
    expected = expected_frames(folder, normaliser, FeatureStore(folder))
    rows = {  # the first value of a frame's inputs, its senones and logits: who it is
        name: Counter(
            (float(x[0]), *best.ids[t].tolist(), *best.logits[t].tolist())
            for t, x in enumerate(inputs)
        )
        for name, (inputs, best) in expected.items()
    }
    counts = {name: Counter() for name in expected}
    sizes = []
    for rank in range(world_size):
        for batch in batches_of(data, sampler, rank=rank, world_size=world_size):
            assert batch.frames == int(batch.weights.sum()) > 0
            assert torch.equal(batch.targets, batch.senones[..., 0])
            sizes.append(batch.frames)
            for row, name in enumerate(batch.ids):
                for t in batch.weights[row].nonzero()[:, 0].tolist():
                    senones, logits = batch.senones[row, t], batch.logits[row, t]
                    key = float(batch.inputs[row, t, 0]), *senones.tolist(), *logits.tolist()
                    counts[name][key] += 1
    assert counts == rows
    nominal = 48 if kind == "chunks" else 100
    assert 0.6 * nominal < np.median(sizes) < 1.4 * nominal


def test_lookahead_frames_are_the_ones_that_follow(folder, source, normaliser):
    from toolkit.features.shards import FeatureStore

    expected = expected_frames(folder, normaliser, FeatureStore(folder))
    batch = next(batches_of(sub_epochs(source, normaliser), UtteranceSampler(WHOLE, 2)))
    checked = 0
    for row, name in enumerate(batch.ids):
        inputs = expected[name][0].float()
        length = int(batch.lengths[row])
        if length == len(inputs):  # a whole utterance
            assert torch.equal(batch.inputs[row, :length], inputs)
            assert torch.equal(batch.inputs[row, length], inputs[-1])
            checked += 1
    assert checked


@pytest.mark.parametrize("kind", ["chunks", "utterances"])
def test_the_order_follows_from_the_seed_and_can_begin_anywhere(source, normaliser, kind):
    sampler = ChunkSampler(CHUNKS, 0) if kind == "chunks" else UtteranceSampler(WHOLE, 0)
    make = TeacherBatches(sub_epochs(source, normaliser), sampler, seed=0)
    for epoch in range(3):
        whole = list(make.batches(epoch))
        for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
            resumed = list(make.batches(epoch, start=start))
            assert [b.ids for b in resumed] == [b.ids for b in whole[start:]]
            for batch, expected in zip(resumed, whole[start:], strict=True):
                assert torch.equal(batch.inputs, expected.inputs)
    reseeded = TeacherBatches(sub_epochs(source, normaliser), sampler, seed=1)
    assert [b.ids for b in reseeded.batches(0)] != [b.ids for b in make.batches(0)]


def test_only_needed_windows_are_read(source, normaliser):
    data = sub_epochs(source, normaliser, max_frames=700)
    read, load = [], data.load
    data.load = lambda window, rank, world_size: (
        read.append(window),
        load(window, rank, world_size),
    )[1]
    sampler = ChunkSampler(CHUNKS, 0)
    source = TeacherBatches(data, sampler, seed=0)
    windows = data.shard_sets(0)
    assert len(windows) > 1
    last = sampler.estimate(windows[-1].frames, windows[-1].utterances, 1)
    list(source.batches(0, start=source.num_steps(0) - last))
    assert read == [windows[-1]]


def test_the_raw_features_of_a_window_are_freed(source, normaliser, monkeypatch):
    data, alive, most = sub_epochs(source, normaliser), weakref.WeakSet(), []
    read = TeacherShards.read

    def watched(self, *where):
        for example in read(self, *where):
            alive.add(example.features)
            most.append(len(alive))
            yield example

    monkeypatch.setattr(TeacherShards, "read", watched)
    window = data.load(data.shard_sets(0)[0], 0, 1)
    assert len(window.names) == len(most) > 5
    assert max(most) <= 2


def test_training_uses_only_selected_utterances(folder, normaliser):
    shards = TeacherShards(folder)
    chosen = select(shards, SelectionConfig("confidence", share=0.5))
    data = sub_epochs(Source(shards, chosen), normaliser)
    selected = {e.name for n in range(10) for e in shards.read(n) if chosen.takes(e)}
    batch_ids = {name for batch in batches_of(data, ChunkSampler(CHUNKS, 0)) for name in batch.ids}
    assert batch_ids == selected
    assert 0.4 < len(selected) / 60 < 0.6


def test_a_share_without_utterances_is_an_error(source, normaliser):
    data = sub_epochs(source, normaliser, max_frames=1)
    with pytest.raises(TrainingDataError, match="write longer shards"):
        list(TeacherBatches(data, ChunkSampler(CHUNKS, 0), 0).batches(0, rank=9, world_size=10))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.data())
@settings(deadline=None)
def test_parts_are_near_equal_and_none_is_empty(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))
    sizes = np.array(sizes)
    part = equal_parts(sizes, count)
    assert sorted(set(part.tolist())) == list(range(count))
    assert (np.diff(part) >= 0).all()
    totals = np.bincount(part, sizes)
    if len(sizes) * sizes.min() > 3 * count * sizes.max():
        assert np.abs(totals - sizes.sum() / count).max() <= 2 * sizes.max()


def test_windows_of_fewer_chunks_than_batches_repeat_some():
    chance = np.random.default_rng(0)
    groups = ChunkSampler(CHUNKS, 0).split(np.array([3, 9]), 5, chance)
    assert [len(group) for group in groups] == [1] * 5
    groups = UtteranceSampler(WHOLE, 0).split(np.array([3]), 2, chance)
    assert [group.tolist() for group in groups] == [[[0, 0, 3]], [[0, 0, 3]]]
