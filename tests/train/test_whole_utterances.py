from collections import Counter
from dataclasses import replace

import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.models.lstm import with_lookahead
from toolkit.models.store import make_model
from toolkit.train.batches import BUCKET_BATCHES, CorpusBatches, ShardGroups, UtteranceSampler
from toolkit.train.config import WholeUtteranceConfig
from toolkit.train.corpus import Corpus
from toolkit.train.cross_entropy import cross_entropy

LENGTHS = [31, 2, 48, 1, 100, 17, 9, 64, 33, 50, 51, 52, 12, 70]


@pytest.fixture
def make_source(make_stores):
    def make(lengths=LENGTHS, window=10_000, lookahead=2, seed=3, first_epoch=0, **config):
        stores = make_stores(lengths)
        corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
        settings = WholeUtteranceConfig(**{"batch_frames": 40, **config})
        groups = ShardGroups(corpus, window, seed)
        sampler = UtteranceSampler(settings, lookahead)
        return stores, CorpusBatches(groups, sampler, seed, first_epoch)

    return make


@pytest.mark.parametrize("window", [100, 10_000])
@pytest.mark.parametrize(("first_epoch", "epoch"), [(0, 0), (0, 1), (10, 0), (10, 1)])
def test_every_utterance_comes_once_at_the_next_offset(make_source, window, first_epoch, epoch):
    stores, source = make_source(window=window, first_epoch=first_epoch)
    offset = (first_epoch + epoch) % 3
    utterances = []
    for batch in source.batches(epoch):
        assert batch.frames == int(batch.weights.sum()) == int(batch.lengths.sum())
        assert len(batch.ids) == 1 or len(batch.ids) * batch.targets.shape[1] <= 40
        for row, name in enumerate(batch.ids):
            low = stack(stores.features.features[name].half(), offset).float()
            targets = stores.alignments.load(name)[centre(len(stores.features.load(name)), offset)]
            length = int(batch.lengths[row])
            assert length == len(low)
            assert torch.equal(batch.inputs[row, : length + 2], with_lookahead(low, 2))
            assert torch.equal(batch.targets[row, :length], targets.long())
            assert torch.equal(
                batch.weights[row], (torch.arange(batch.targets.shape[1]) < length).float()
            )
            utterances.append(name)
    empty = {f"utt{i:03d}" for i, n in enumerate(LENGTHS) if n <= offset}
    assert Counter(utterances) == Counter(set(stores.features.features) - empty)


def test_too_long_utterances_come_in_pieces_without_overlap_or_gap(make_source):
    stores, source = make_source(lengths=[300, 30, 91, 90], max_frames=30)
    pieces = {}
    for batch in source.batches(0):
        for row, name in enumerate(batch.ids):
            length = int(batch.lengths[row])
            assert length <= 30
            pieces.setdefault(name, []).append(batch.inputs[row, : length + 2])
    assert sorted(map(len, pieces.values())) == [1, 1, 2, 4]
    assert sorted(len(x) - 2 for x in pieces["utt002"]) == [15, 16]  # 31 frames: about equal parts
    low = with_lookahead(stack(stores.features.features["utt000"].half()).float(), 2)
    starts = []
    for piece in pieces["utt000"]:
        starts += [s for s in range(98) if torch.equal(low[s : s + len(piece)], piece)]
    assert sorted(starts) == [0, 25, 50, 75]


def signature(batches):
    return [(batch.ids, batch.inputs.sum().item(), batch.targets.tolist()) for batch in batches]


@pytest.mark.parametrize("window", [100, 10_000])
def test_order_is_a_function_of_seed_and_epoch(make_source, window):
    _, first = make_source(window=window)
    _, second = make_source(window=window)
    signature(first.batches(1))
    assert signature(first.batches(3)) == signature(second.batches(3))
    assert signature(first.batches(0)) != signature(first.batches(3))  # same offset, other order
    _, seeded = make_source(window=window, seed=4)
    assert signature(seeded.batches(3)) != signature(first.batches(3))


@pytest.mark.parametrize("window", [60, 150, 10_000])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_starting_late_and_sharing_out_follow_the_same_order(make_source, window, ranks):
    _, source = make_source(window=window)
    for epoch in (0, 5):
        whole = signature(source.batches(epoch))
        steps = source.num_steps(epoch, ranks)
        assert steps == len(whole) // ranks
        for rank in range(ranks):
            for start in (0, 1, steps // 2, steps):
                part = signature(source.batches(epoch, start, rank, ranks))
                assert part == whole[start * ranks + rank : steps * ranks : ranks]


def test_windows_before_the_start_are_not_loaded(make_source):
    stores, source = make_source(window=50)
    list(source.batches(0, start=source.num_steps(0) - 1))
    assert sum(stores.features.loads.values()) <= 4


def test_batches_are_of_similar_length(make_source):
    lengths = [3 * (10 + 37 * i % 80) for i in range(400)]
    _, source = make_source(lengths=lengths, batch_frames=800)
    batches = list(source.batches(0))
    padded = sum(batch.targets.numel() for batch in batches)
    assert sum(batch.frames for batch in batches) > 0.85 * padded
    assert [b.targets.shape[1] for b in batches] != sorted(b.targets.shape[1] for b in batches)


def test_no_batch_exceeds_the_limit_where_two_buckets_meet(make_source):
    lengths = [3 * (1 + 37 * i % 80) for i in range(400)]
    _, source = make_source(lengths=lengths, batch_frames=100)
    assert sum(lengths) / 3 > 5 * BUCKET_BATCHES * 100
    for batch in source.batches(0):
        assert batch.targets.numel() <= 100


@pytest.mark.parametrize("config", [LstmConfig, BlstmConfig])
def test_padding_changes_neither_loss_nor_gradient(make_source, config):
    torch.manual_seed(0)
    model = make_model(config(12, 5, hidden=6, layers=2)).double()
    lookahead = model.config.lookahead
    _, source = make_source(lookahead=lookahead)
    _, single = make_source(lookahead=lookahead, batch_frames=1)

    def sums(source):
        total, weight = 0.0, 0.0
        for batch in source.batches(0):
            double = {"inputs": batch.inputs.double(), "weights": batch.weights.double()}
            loss, stats = cross_entropy(model, replace(batch, **double))
            total, weight = total + loss.double(), weight + stats["weight"]
        model.zero_grad()
        total.backward()
        return total.item(), float(weight), [p.grad.clone() for p in model.parameters()]

    batched, alone = sums(source), sums(single)
    assert single.num_steps(0) > 1.5 * source.num_steps(0)
    assert batched[1] == alone[1]
    assert batched[0] == pytest.approx(alone[0], rel=1e-6)  # the loss is computed in float32
    for a, b in zip(batched[2], alone[2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"epochs": -1}, {"batch_frames": 0}, {"max_frames": 0}, {"final_rate": 0}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WholeUtteranceConfig(**wrong)
