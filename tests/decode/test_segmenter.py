"""Cuts of long recordings, against where their pauses were put."""

import numpy as np
import pytest
import torch

from toolkit.decode.config import SegmentConfig
from toolkit.decode.transcribe import Segmenter

SHIFT = 0.01
CONFIG = SegmentConfig(longest=6.0, shortest=1.0)


def recording(rng, seconds, noise=0.0):
    """Log energies of stretches of speech (loud) and pauses: features [T, 4], speech [T]."""
    speech = []
    while len(speech) < seconds * 100:
        speech += [1] * int(rng.integers(50, 300)) + [0] * int(rng.choice([8, 20, 45, 90, 300]))
    speech = np.array(speech[: round(seconds * 100)])
    syllables = 1.5 * np.sin(np.arange(len(speech)) / 4)
    energy = np.where(speech, 12 + syllables, 4 + noise) + rng.normal(0, 0.3, len(speech))
    features = torch.tensor(energy[:, None] + rng.normal(0, 0.2, (len(speech), 4)))
    return features.float(), speech


def segments(features, silence, piece, config=CONFIG):
    segmenter, found, most = Segmenter(config, SHIFT), [], 0
    for begin in range(0, len(features), piece):
        part = slice(begin, begin + piece)
        found += segmenter.push(features[part], None if silence is None else silence[part])
        most = max(most, segmenter.num_buffered_frames)
    return [*found, *segmenter.finish()], most


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("piece", [100, 1000])
def test_speech_is_kept_and_cut_in_pauses(seed, known, piece):
    features, speech = recording(np.random.default_rng(seed), 60)
    silence = torch.tensor(1 - speech).float() if known else None
    found, most = segments(features, silence, piece)
    assert most <= piece + 600 + 2 * 30
    kept, at, cuts_in_speech = np.zeros(len(speech), bool), 0, 0
    for one in found:
        end = one.start + len(one.features)
        assert one.start >= at
        assert len(one.features) <= 600 + 2 * 30
        assert torch.equal(one.features, features[one.start : end])
        cuts_in_speech += bool(end < len(speech) and speech[end - 1] and speech[end])
        kept[one.start : end], at = True, end
    assert kept[speech == 1].mean() > 0.999
    assert len(found) >= 5
    # Pauses of 0.2 s and less are not looked for: a run of stretches may have no others.
    assert cuts_in_speech <= (1 if known else 2)
    if known:
        assert kept.mean() < 0.98 or (speech == 0).mean() < 0.15
    else:  # energy alone leaves nothing out
        assert kept.all()


def test_without_a_pause_the_cut_is_where_least_is_said():
    energy = 10 + 1.5 * (torch.arange(2000.0) / 4).sin()[:, None]
    energy[445:465] = 8.5
    config = SegmentConfig(longest=6.0, shortest=1.0, pause=0.5)
    found, _ = segments(energy, None, 500, config)
    assert 440 < len(found[0].features) < 470
    assert all(len(one.features) <= 600 for one in found)
    assert sum(len(one.features) for one in found) == 2000


@pytest.mark.parametrize("known", [False, True])
def test_a_pause_that_begins_early_is_cut_in_where_there_is_no_other(known):
    """Speech with a pause from 0.8 to 2.0 s, where segments may end from 1 s on."""
    speech = torch.ones(2000)
    speech[80:200] = 0
    energy = 4 + speech[:, None] * (8 + 1.5 * (torch.arange(2000.0) / 4).sin()[:, None])
    found, _ = segments(energy, 1 - speech if known else None, 500)
    assert len(found[0].features) == pytest.approx(130 if known else 150, abs=5)
    assert 120 < found[1].start < 200


def test_noise_alone_is_no_speech():
    noise = torch.randn(3000, 1, generator=torch.Generator().manual_seed(0)) / 5
    silence = torch.full((3000,), 0.95)
    assert segments(noise + 7, silence, 700)[0] == []
    assert segments(noise * 0 - 15.9, silence, 700)[0] == []  # digital silence
    # Where nothing but energy is known it is kept: better that than to lose speech in noise.
    found, _ = segments(noise + 7, None, 700)
    assert sum(len(one.features) for one in found) == 3000


def test_settings_that_contradict_each_other_are_refused():
    for wrong in ({"longest": 4.0}, {"pause": 0.0}, {"threshold": 1.0}, {"margin": -1.0}):
        with pytest.raises(ValueError, match="must be"):
            SegmentConfig(**wrong)
