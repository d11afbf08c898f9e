import numpy as np
import pytest
import torch

from toolkit.train.batches import Batch, ChunkSampler, CorpusBatches, ShardGroups
from toolkit.train.config import ChunkConfig, SpecAugmentConfig
from toolkit.train.corpus import Corpus
from toolkit.train.specaugment import SpecAugmented, mask_batch

BINS, LOOKAHEAD = 10, 3
BOTH = SpecAugmentConfig(frequency_masks=2, frequency_width=4, time_masks=2.0, time_width=6)


def batch_of(lengths, frames):
    lengths = torch.tensor(lengths)
    return Batch(
        ids=[f"u{i}" for i in range(len(lengths))],
        inputs=torch.ones(len(lengths), frames + LOOKAHEAD, 3 * BINS),
        targets=torch.zeros(len(lengths), frames, dtype=torch.int64),
        weights=torch.ones(len(lengths), frames),
        lengths=lengths,
        frames=int(lengths.sum()),
    )


def runs(hidden):
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], hidden.astype(int), [0]])))
    return (edges[1::2] - edges[::2]).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_masks_are_whole_bands_of_bins_or_frames(seed):
    batch = batch_of([40, 25, 3], 40)
    masked = mask_batch(batch, BOTH, np.random.default_rng(seed)).inputs
    assert set(masked.unique().tolist()) <= {0.0, 1.0}
    for row, length in zip(masked.bool().numpy(), batch.lengths.tolist(), strict=True):
        bins = ~row.any(axis=0)
        assert (bins.reshape(3, BINS) == bins[:BINS]).all()  # the same in the stacked frames
        assert bins[:BINS].sum() <= 8
        assert all(run <= 8 for run in runs(bins[:BINS]))
        frames = ~row.any(axis=1)
        assert not frames[length + LOOKAHEAD :].any()
        assert (row == ~(bins[None, :] | frames[:, None])).all()


def test_the_masked_share_is_that_of_the_settings():
    config = SpecAugmentConfig(frequency_masks=1, frequency_width=4)
    batch = batch_of([30] * 3000, 30)
    hidden = mask_batch(batch, config, np.random.default_rng(0)).inputs[:, 0, :BINS] == 0
    widths = torch.bincount(hidden.sum(dim=1), minlength=5)
    assert (widths - 600).abs().max() < 90  # 0 to 4 bins, each as often
    # Bands of 4 of 10 bins begin at 0 to 6 alike: bin 0 is in one of them, bin 4 in four.
    widest = hidden[hidden.sum(dim=1) == 4].float().mean(dim=0)
    assert widest[0] == pytest.approx(1 / 7, abs=0.05)
    assert widest[4] == pytest.approx(4 / 7, abs=0.08)
    config = SpecAugmentConfig(time_masks=0.5, time_width=1)
    seconds = 33 * 0.03  # one frame or none per mask
    hidden = (mask_batch(batch, config, np.random.default_rng(0)).inputs[:, :, 0] == 0).sum(dim=1)
    assert hidden.float().mean() == pytest.approx(0.5 * seconds / 2, rel=0.1)
    assert hidden.max() == 1


def test_padding_does_not_change_the_masks():
    short, long = batch_of([20, 9], 20), batch_of([20, 9], 50)
    short_masks, long_masks = (
        mask_batch(b, BOTH, np.random.default_rng(5)).inputs for b in (short, long)
    )
    assert torch.equal(short_masks, long_masks[:, :23])


@pytest.fixture
def data(make_stores):
    stores = make_stores([60] * 12)
    corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    sampler = ChunkSampler(ChunkConfig(frames=8, chunks_per_batch=3), 2)
    return CorpusBatches(ShardGroups(corpus, 10_000, 1), sampler, seed=1)


def test_masks_follow_from_seed_epoch_and_step(data):
    def inputs(*args, seed=1):
        config = SpecAugmentConfig(1, 3, 3.0, 3)
        return [b.inputs for b in SpecAugmented(data, config, seed).batches(*args)]

    whole = inputs(2)
    steps = len(whole)
    assert all(map(torch.equal, whole, inputs(2)))
    assert all(map(torch.equal, whole[5:], inputs(2, 5)))
    for rank in range(2):
        parts = inputs(2, 1, rank, 2)
        assert all(map(torch.equal, whole[2 + rank : steps // 2 * 2 : 2], parts))
    unmasked = [batch.inputs for batch in data.batches(2)]
    hidden = [((x == 0) & (y != 0)) for x, y in zip(whole, unmasked, strict=True)]
    assert all(torch.equal(x[~h], y[~h]) for x, y, h in zip(whole, unmasked, hidden, strict=True))
    other_runs = [inputs(2, seed=9), inputs(5)]
    assert not any(
        torch.equal(h, o == 0)
        for other_run in other_runs
        for h, o in zip(hidden, other_run, strict=True)
    )
    assert len({tuple(h.flatten().tolist()) for h in hidden}) > steps // 2


def test_targets_and_weights_are_unchanged(data):
    source = SpecAugmented(data, BOTH, seed=0)
    assert source.num_steps(0, 2) == data.num_steps(0, 2)
    for masked, unmasked in zip(source.batches(1), data.batches(1), strict=True):
        assert torch.equal(masked.targets, unmasked.targets)
        assert torch.equal(masked.weights, unmasked.weights)
        assert masked.ids == unmasked.ids


def test_masks_are_off_by_default_and_refuse_negative_values():
    assert not SpecAugmentConfig().active
    assert SpecAugmentConfig(frequency_masks=1).active
    assert SpecAugmentConfig(time_masks=0.1).active
    with pytest.raises(ValueError, match="time_width"):
        SpecAugmentConfig(time_width=-1)
