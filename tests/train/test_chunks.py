from collections import Counter

import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel, with_lookahead
from toolkit.train.batches import ChunkSampler, CorpusBatches, ShardGroups
from toolkit.train.config import ChunkConfig
from toolkit.train.corpus import Corpus

LENGTHS = [31, 2, 48, 1, 100, 17, 9, 64, 33]


@pytest.fixture
def make_chunks(make_stores):
    def make(lengths=LENGTHS, lookahead=2, seed=3, shard_size=4, **config):
        stores = make_stores(lengths, shard_size=shard_size)
        corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
        settings = ChunkConfig(**config)
        groups = ShardGroups(corpus, settings.shuffle_frames, seed)
        return stores, CorpusBatches(groups, ChunkSampler(settings, lookahead), seed)

    return make


def expected_chunks(stores, offset, frames, lookahead, left=0):
    """Cut every utterance by slicing: (id, inputs, targets) of the scored part."""
    chunks = []
    for name, raw in stores.features.features.items():
        low = stack(raw.half(), offset).float()
        targets = stores.alignments.load(name)[centre(len(raw), offset)]
        if not len(low):
            continue
        padded = torch.cat([low[:1].expand(left, -1), low, low[-1:].expand(frames + lookahead, -1)])
        for start in range(0, len(low), frames):
            inputs = padded[start : start + left + frames + lookahead]
            chunks.append((name, inputs, targets[start : start + frames]))
    return chunks


@pytest.mark.parametrize("epoch", [0, 1, 2, 4])
@pytest.mark.parametrize(("window", "left"), [(10_000, 0), (100, 0), (100, 3)])
def test_every_chunk_comes_once_with_its_context_and_targets(make_chunks, epoch, window, left):
    stores, chunks = make_chunks(
        frames=8, chunks_per_batch=3, shuffle_frames=window, left_context=left
    )
    expected = expected_chunks(stores, epoch % 3, 8, lookahead=2, left=left)
    count = 0
    for batch in chunks.batches(epoch):
        assert batch.inputs.shape[1] == left + 8 + 2
        assert batch.frames == int(batch.weights.sum())
        for row, name in enumerate(batch.ids):
            scored = batch.weights[row] > 0
            assert not scored[:left].any()
            real = int(scored.sum())
            assert scored[left : left + real].all()
            assert int(batch.lengths[row]) == left + real
            matching = [
                i
                for i, (utterance, inputs, targets) in enumerate(expected)
                if utterance == name
                and torch.equal(inputs, batch.inputs[row])
                and torch.equal(targets.long(), batch.targets[row][scored])
            ]
            assert matching, name
            del expected[matching[0]]
        count += 1
    assert not expected
    assert count == chunks.num_steps(epoch)


def signature(batches):
    return [(batch.ids, batch.inputs.sum().item(), batch.targets.tolist()) for batch in batches]


@pytest.mark.parametrize("window", [10_000, 100])
def test_order_is_a_function_of_seed_and_epoch(make_chunks, window):
    _, first = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=window)
    _, second = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=window)
    signature(first.batches(1))  # what was asked before does not matter
    assert signature(first.batches(3)) == signature(second.batches(3))
    assert signature(first.batches(0)) != signature(first.batches(3))  # same offset, other order
    _, seeded = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=window, seed=4)
    assert signature(seeded.batches(3)) != signature(first.batches(3))


@pytest.mark.parametrize("window", [60, 150, 10_000])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_starting_late_and_sharing_out_follow_the_same_order(make_chunks, window, ranks):
    _, chunks = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=window)
    for epoch in (0, 5):
        whole = signature(chunks.batches(epoch))
        steps = chunks.num_steps(epoch, ranks)
        assert steps == len(whole) // ranks
        for rank in range(ranks):
            for start in (0, 1, steps // 2, steps):
                part = signature(chunks.batches(epoch, start, rank, ranks))
                assert part == whole[start * ranks + rank : steps * ranks : ranks]


def test_a_resident_corpus_is_read_once_and_a_larger_one_per_epoch(make_chunks):
    stores, chunks = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=10_000)
    for epoch in range(3):
        list(chunks.batches(epoch))
    assert set(stores.features.loads.values()) == {1}
    stores, chunks = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=100)
    for epoch in range(3):
        list(chunks.batches(epoch))
    assert set(stores.features.loads.values()) == {3}


def test_resuming_loads_only_the_windows_that_remain(make_chunks):
    stores, chunks = make_chunks(frames=8, chunks_per_batch=3, shuffle_frames=50, shard_size=1)
    last = list(chunks.batches(0, start=chunks.num_steps(0) - 1))
    assert len(last) == 1
    assert set(last[0].ids) <= {name for name, loads in stores.features.loads.items() if loads}
    assert sum(stores.features.loads.values()) <= 2


def test_windows_mix_shards_differently_in_each_epoch(make_chunks):
    _, chunks = make_chunks(
        lengths=[30] * 12, frames=8, chunks_per_batch=2, shuffle_frames=60, shard_size=1
    )

    def windows(epoch):  # two utterances of two chunks each fit into a window
        ids = [name for batch in chunks.batches(epoch) for name in batch.ids]
        assert Counter(ids) == dict.fromkeys(ids, 2)
        pairs = [frozenset(ids[i : i + 4]) for i in range(0, len(ids), 4)]
        assert [len(pair) for pair in pairs] == [2] * 6
        return set(pairs)

    assert windows(0) != windows(3)


@pytest.mark.parametrize("left", [0, 40])
def test_chunked_forward_is_the_full_forward_when_chunks_are_long_enough(make_chunks, left):
    stores, chunks = make_chunks(lookahead=3, frames=40, chunks_per_batch=4, left_context=left)
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(12, 5, hidden=8, layers=2, lookahead=3)).eval()
    num_utterances = 0
    for batch in chunks.batches(1):
        logits, _ = model(batch.inputs)
        for row, name in enumerate(batch.ids):
            low = stack(stores.features.features[name].half(), 1).float()
            if left:  # repeats of the first frame come before, as at the start of an utterance
                low = torch.cat([low[:1].expand(left, -1), low])
            full, _ = model(with_lookahead(low, 3)[None])
            scored = batch.weights[row] > 0
            torch.testing.assert_close(logits[row][scored], full[0][left:])
            num_utterances += 1
    assert num_utterances == sum(length > 1 for length in LENGTHS)


@pytest.mark.parametrize(
    "wrong", [{"frames": 0}, {"chunks_per_batch": 0}, {"shuffle_frames": 0}, {"left_context": -1}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ChunkConfig(**wrong)
