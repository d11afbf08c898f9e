"""Changes of training features as they are loaded: volume, and unknown speakers."""

import math

import pytest
import torch

from toolkit.features.shards import CmnState
from toolkit.train.config import PerturbConfig
from toolkit.train.corpus import perturbed

STATE = CmnState(torch.zeros(3, dtype=torch.float64), 100)
RAW = torch.tensor([[8.0, 9.0, 10.0], [-15.9, -15.9, -15.9], [7.0, 6.0, 5.0]])
"""Log-mel energies; the second frame is digital silence."""


def test_by_default_nothing_changes():
    raw, state = perturbed("u", RAW, STATE, "fbank", PerturbConfig())
    assert torch.equal(raw, RAW)
    assert state is STATE


def test_volume_adds_a_constant_to_log_mel_energies_of_sound():
    config = PerturbConfig(volume=(0.125, 2.0))
    offsets = []
    for number in range(200):
        raw, state = perturbed(f"u{number}", RAW, STATE, "fbank", config)
        change = raw - RAW
        assert state is STATE
        assert not change[1].any()
        assert torch.allclose(change[0], change[2], atol=1e-5)
        offsets.append(float(change[0, 0]))
    # Samples times g are energies times g^2; g is uniform between 1/8 and 2.
    gains = torch.tensor(offsets).div(2).exp()
    assert 0.125 <= gains.min() < 0.2
    assert 1.9 < gains.max() <= 2.0
    assert float(gains.mean()) == pytest.approx(1.0625, abs=0.15)
    again, _ = perturbed("u7", RAW, STATE, "fbank", config)
    assert float((again - RAW)[0, 0]) == offsets[7]
    assert math.log(0.125) * 2 <= min(offsets)


def test_volume_is_for_log_mel_energies_only():
    raw, _ = perturbed("u", RAW, STATE, "plp", PerturbConfig(volume=(0.125, 2.0)))
    assert torch.equal(raw, RAW)


def test_a_share_of_the_utterances_forgets_the_speaker():
    config = PerturbConfig(unknown_speakers=0.5)
    states = [perturbed(f"u{n}", RAW, STATE, "fbank", config)[1] for n in range(400)]
    assert 0.42 < sum(state is None for state in states) / 400 < 0.58
    assert perturbed("u", RAW, STATE, "fbank", PerturbConfig(unknown_speakers=1.0))[1] is None
