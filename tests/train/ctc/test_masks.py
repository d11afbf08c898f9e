from dataclasses import replace

import pytest
import torch

from toolkit.train.config import UtteranceMaskConfig
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.specaugment import MaskedUtterances

LENGTHS = torch.tensor([200, 400, 90])


class Ones:
    """Batches of ones, so masked values are the zeros."""

    def num_steps(self, epoch, world_size=1):
        return 5 // world_size

    def batches(self, epoch, start=0, rank=0, world_size=1):
        for _ in range(start, self.num_steps(epoch, world_size)):
            labels = torch.zeros(3, 1, dtype=torch.int64)
            inputs = torch.ones(3, 400, 12)
            yield CtcBatch(["a", "b", "c"], inputs, LENGTHS, labels, torch.ones(3).long(), 690)


def masks(config, **place):
    return [b.inputs == 0 for b in MaskedUtterances(Ones(), config, 3).batches(0, **place)]


def test_frequency_masks_leave_the_cepstra():
    drawn_masks = masks(UtteranceMaskConfig(frequency_masks=2, frequency_width=4, mel_bins=8))
    for mask in drawn_masks:
        assert (mask == mask[:, :1]).all()
        assert not mask[:, :, 8:].any()
        assert mask[:, 0].sum(1).max() <= 8
    assert sum(int(mask[:, 0].sum()) for mask in drawn_masks) > 0


def test_time_masks_come_by_the_second_and_stay_inside():
    config = UtteranceMaskConfig(time_masks=2.0, time_width=10)
    hidden = [mask.all(dim=2) for mask in masks(config)]
    for mask in hidden:
        for row, length in zip(mask, LENGTHS, strict=True):
            assert not row[length:].any()
            assert row.sum() <= 10 * 2 * (length / 100 + 0.5)
    share = sum(mask.sum().item() for mask in hidden) / (5 * LENGTHS.sum().item())
    assert 0.04 < share < 0.13  # 2 masks of 5 frames on average in a hundred


def test_masks_follow_from_the_place():
    config = UtteranceMaskConfig(time_masks=2.0, frequency_masks=1)
    whole = masks(config)
    assert not torch.equal(whole[0], whole[1])
    for a, b in zip(whole[3:], masks(config, start=3), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(whole[1:4:2], masks(config, rank=1, world_size=2), strict=True):
        assert torch.equal(a, b)


def test_views_are_masked_differently():
    config = UtteranceMaskConfig(time_masks=2.0)
    two_views = list(MaskedUtterances(Ones(), config, 3, views=2).batches(0))
    for single, double in zip(
        MaskedUtterances(Ones(), config, 3).batches(0), two_views, strict=True
    ):
        assert (double.views, double.utterances, double.frames) == (2, 3, 1380)
        assert double.ids == ["a", "b", "c"] * 2
        assert torch.equal(double.inputs[:3], single.inputs)
        assert not torch.equal(double.inputs[3:], single.inputs)
        assert torch.equal(double.input_lengths, LENGTHS.repeat(2))
        assert len(double.labels) == len(double.label_lengths) == 6


def test_cepstra_are_masked_in_some_utterances():
    drawn_masks = masks(UtteranceMaskConfig(cepstra=0.5, mel_bins=8))
    for mask in drawn_masks:
        assert not mask[:, :, :8].any()
        assert (mask[:, :, 8:] == mask[:, :1, 8:9]).all()
    assert 0 < sum(int(mask[:, 0, 8].sum()) for mask in drawn_masks) < 15
    assert all(mask[:, :, 8:].all() for mask in masks(UtteranceMaskConfig(cepstra=1, mel_bins=8)))


class Slopes(Ones):
    """Batches whose bins are numbered, of 9 columns with the cepstrum."""

    def batches(self, epoch, start=0, rank=0, world_size=1):
        for batch in super().batches(epoch, start, rank, world_size):
            yield replace(batch, inputs=torch.arange(9.0).expand(3, 400, 9))


def test_an_utterance_is_warped_as_a_whole_and_differently_in_each_view():
    config = UtteranceMaskConfig(warp=0.2, mel_bins=8)
    [batch, *_] = MaskedUtterances(Slopes(), config, 3, views=2).batches(0)
    moved = batch.inputs[..., :8] - torch.arange(8.0)
    assert (batch.inputs[..., 8] == 8).all()
    assert (moved == moved[:, :1]).all()
    assert len({round(row[0, 4].item(), 4) for row in moved}) == 6
    assert (moved[:, 0].sign().diff(dim=1).abs() <= 1).all()  # all bins in one direction


def test_masks_are_the_same_with_and_without_a_warp():
    unwarped = UtteranceMaskConfig(time_masks=2.0, frequency_masks=1, mel_bins=8)
    warped = replace(unwarped, warp=0.1, cepstra=0.5)
    for a, b in zip(masks(unwarped), masks(warped), strict=True):
        assert torch.equal(a[:, :, :8], b[:, :, :8])


def test_impossible_configurations_are_refused():
    for name, value in [("mel_bins", 0), ("cepstra", 1.1), ("warp", 0.25), ("warp", -0.1)]:
        with pytest.raises(ValueError, match=f"`{name}` is"):
            UtteranceMaskConfig(**{name: value})
    with pytest.raises(ValueError, match="at least 2 `mel_bins`"):
        UtteranceMaskConfig(warp=0.1, mel_bins=1)


def test_any_nonzero_setting_makes_it_active():
    assert not UtteranceMaskConfig().active
    for change in ({"cepstra": 0.1}, {"warp": 0.1}, {"time_masks": 1.0}, {"frequency_masks": 1}):
        assert UtteranceMaskConfig(**change).active
