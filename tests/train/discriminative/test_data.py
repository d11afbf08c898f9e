import numpy as np
import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.fsa.discriminative import lattice_frames
from toolkit.train.config import LatticeBatchConfig
from toolkit.train.corpus import Corpus
from toolkit.train.errors import TrainingDataError
from toolkit.train.sequence import (
    BUCKET_BATCHES,
    SHARDS_TOGETHER,
    LatticeBatches,
    UpsampledReferences,
    unusable_lattices,
)

LENGTHS = [30, 9, 61, 45, 1, 17, 90, 33, 52, 70, 24]
CONFIG = LatticeBatchConfig(utterances_per_batch=3, max_frames=25)


def open_data(sources, normaliser, config, seed, names=None):
    """Return the corpus and the batches of stores (features, references, lattices)."""
    excluded = {}
    for features, _, lattices in sources:
        excluded |= unusable_lattices(features, lattices, config.max_frames)
    pairs = [(features, UpsampledReferences(features, y)) for features, y, _ in sources]
    corpus = Corpus(pairs, normaliser, 5, names, excluded, count_targets=False)
    return corpus, LatticeBatches(corpus, [x for _, _, x in sources], config, 2, seed)


@pytest.fixture
def make_data(make_stores, make_trellises):
    def make(config=CONFIG, seed=0, low_rate=False, change=lambda stores, lattices: None, **more):
        stores = make_stores(LENGTHS)
        lattices = make_trellises(stores.features)
        references = stores.alignments
        if low_rate:
            for name, raw in references.targets.items():
                references.targets[name] = raw[centre(len(raw))]
        change(stores, lattices)
        sources = [(stores.features, references, lattices)]
        stores.corpus, data = open_data(sources, stores.normaliser, config, seed, **more)
        return stores, data

    return make


@pytest.mark.parametrize("low_rate", [False, True])
def test_batches_hold_whole_utterances_with_their_lattices(make_data, low_rate):
    raw, _ = make_data()
    stores, data = make_data(low_rate=low_rate)
    utterances = []
    for batch in data.batches(0):
        for n, (name, length) in enumerate(zip(batch.ids, batch.lengths.tolist(), strict=True)):
            features = raw.features.features[name]
            expected = stack(features.half()).float()
            assert length == len(expected) == lattice_frames(batch.lattices[n])
            assert torch.equal(batch.inputs[n, :length], expected)
            last = expected[-1:].expand(2, -1)
            assert torch.equal(batch.inputs[n, length : length + 2], last)
            targets = raw.alignments.load(name)[centre(len(features))]
            assert torch.equal(batch.targets[n, :length], targets.long())
            assert batch.weights[n].tolist() == [1.0] * length + [0.0] * (
                batch.weights.shape[1] - length
            )
        assert batch.frames == int(batch.weights.sum())
        utterances += batch.ids
    assert sorted(utterances) == sorted(n for n in raw.features.features if n != "utt006")
    assert stores.corpus.excluded == {"utt006": "30 frames of 30 ms, more than 25"}


def test_the_order_follows_from_seed_and_epoch(make_data):
    def order(seed, epoch, **options):
        return [batch.ids for batch in make_data(seed=seed)[1].batches(epoch, **options)]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    whole = order(0, 1)
    assert order(0, 1, start=2) == whole[2:]
    ranks = [order(0, 1, rank=r, world_size=2) for r in range(2)]
    assert [len(rank) for rank in ranks] == [len(whole) // 2] * 2
    assert [ids for pair in zip(*ranks, strict=True) for ids in pair] == whole[:4]
    assert make_data()[1].num_steps(1, 2) == 2


def test_only_some_shards_are_in_use_at_a_time(make_stores, make_trellises):
    number = 3 * BUCKET_BATCHES
    stores = make_stores([30 + i for i in range(number)], shard_size=2)
    sources = [(stores.features, stores.alignments, make_trellises(stores.features))]
    config = LatticeBatchConfig(utterances_per_batch=1, max_frames=100)
    _, data = open_data(sources, stores.normaliser, config, 0)
    order = [batch.ids[0] for batch in data.batches(3)]
    assert sorted(order) == sorted(stores.features.features)
    apart = [order.index(second) - order.index(first) for first, second in stores.features.shards]
    assert max(map(abs, apart)) > 1  # shuffled, but within 2 x 16 utterances sorted by fifties
    permuted = np.random.default_rng([0, 3]).permutation(number // 2)
    for first in range(0, number // 2, SHARDS_TOGETHER):
        names = [n for i in permuted[first : first + SHARDS_TOGETHER] for n in (2 * i, 2 * i + 1)]
        places = sorted(order.index(f"utt{n:03d}") for n in names)
        assert places[-1] - places[0] < 2 * BUCKET_BATCHES


def test_batches_are_of_similar_length_and_resuming_reads_no_earlier_ones(make_data):
    stores, data = make_data()
    lengths = [batch.lengths.tolist() for batch in data]
    flat = [n for row in lengths for n in row]
    assert flat == sorted(flat, reverse=True)
    assert list(map(len, lengths)) == [3, 3, 3, 1]
    ordered = sorted(map(tuple, lengths))  # one bucket here: every epoch has the same batches
    assert sorted(tuple(b.lengths.tolist()) for b in data.batches(4)) == ordered
    loads = dict(stores.features.loads)
    assert len(list(data.batches(0, start=3))) == 1
    read = [n for n, times in stores.features.loads.items() if times > loads[n]]
    assert len(read) <= 3


def test_unusable_utterances_are_listed(make_data):
    def change(stores, lattices):
        lattices.lengths["utt000"] = 9
        del lattices.lengths["utt001"]
        lattices.lengths["utt002"] = 0
        del stores.alignments.targets["utt003"]
        stores.alignments.targets["utt004"] = torch.zeros(5, dtype=torch.int32)
        stores.features.features["utt005"] = torch.zeros(0, 4)

    corpus = make_data(change=change)[0].corpus
    assert corpus.excluded == {
        "utt000": "lattice of 9 frames, features of 10",
        "utt001": "no lattice",
        "utt002": "lattice of 0 frames, features of 21",
        "utt003": "no alignment",
        "utt004": "alignment of 5 frames, features of 1",
        "utt005": "no frames",
        "utt006": "30 frames of 30 ms, more than 25",
    }
    assert [u.name for u in corpus.utterances] == ["utt007", "utt008", "utt009", "utt010"]
    with pytest.raises(TrainingDataError, match="7 of 11"):
        corpus.require(0.5)


def test_nothing_is_read_before_the_first_batch(make_data):
    def refuse(name):
        raise AssertionError(f"{name} was read")

    def change(stores, lattices):
        lattices.load = stores.alignments.load = stores.features.load = refuse

    stores, data = make_data(change=change)
    assert len(stores.corpus.utterances) == 10
    assert data.num_steps(0) == 4


def test_targets_outside_the_network_are_an_error_when_read(make_data):
    def change(stores, lattices):
        stores.alignments.targets["utt004"][:] = 5

    _, data = make_data(change=change)
    with pytest.raises(TrainingDataError, match="utt004: its alignment has target 5"):
        list(data.batches(0))


def test_names_and_several_sources(make_stores, make_trellises, make_data):
    corpus = make_data(names=["utt001", "utt006", "utt002"])[0].corpus
    assert [u.name for u in corpus.utterances] == ["utt001", "utt002"]
    assert list(corpus.excluded) == ["utt006"]
    sources = []
    for seed in range(2):
        stores = make_stores([20, 30], seed=seed)
        for by_name in (stores.features.features, stores.alignments.targets):
            for name in list(by_name):
                by_name[f"{seed}-{name}"] = by_name.pop(name)
        stores.features.shards = [list(stores.features.features)]
        stores.features.loads = dict.fromkeys(stores.features.features, 0)
        sources.append((stores.features, stores.alignments, make_trellises(stores.features)))
    _, data = open_data(sources, stores.normaliser, CONFIG, 0)
    (first, second) = list(data)
    assert first.ids == ["0-utt001", "1-utt001", "0-utt000"]
    assert second.ids == ["1-utt000"]
    expected = stack(sources[1][0].features["1-utt001"].half()).float()
    assert torch.equal(first.inputs[1, :10], expected)


def test_moving_a_batch_keeps_its_lattices(make_data):
    batch = next(iter(make_data()[1]))
    moved = batch.to(torch.device("meta"))
    assert moved.lattices is batch.lattices
    assert moved.ids == batch.ids
    assert moved.inputs.device.type == "meta"
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.parametrize("wrong", [{"utterances_per_batch": 0}, {"max_frames": 0}])
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LatticeBatchConfig(**wrong)
