import math

import numpy as np
import pytest
import torch

from tests.optional import load_torchaudio
from toolkit.features.multichannel.beamforming import (
    BeamformingConfig,
    apply_weights,
    beamform_weights,
    masks,
    mvdr_weights,
    stft,
)

RATE, LENGTH, MICROPHONES = 16000, 32000, 4


def delayed(samples, delays):
    """Fractional delays by a linear phase: [M, S]."""
    spectrum = torch.fft.rfft(torch.from_numpy(samples))
    frequency = torch.arange(len(spectrum)) / len(samples)
    phases = [torch.exp(-2j * math.pi * frequency * delay) for delay in delays]
    return torch.stack([torch.fft.irfft(spectrum * p, len(samples)) for p in phases]).float()


def plane_wave(samples, angle, radius=0.035):
    """What a circle of microphones hears from far away, relative to the first one."""
    around = np.arange(MICROPHONES) * 2 * np.pi / MICROPHONES
    arrival = -radius * np.cos(around - angle) / 343 * RATE
    return delayed(samples, arrival - arrival[0])


@pytest.fixture(scope="module")
def scene():
    """Speech-like bursts from the front, steady noise from the side, hiss in the microphones."""
    rng = np.random.default_rng(1)
    bursts = np.repeat(rng.random(40) < 0.6, LENGTH // 40)
    bursts[:6400] = False
    speech = plane_wave(bursts * rng.standard_normal(LENGTH), 0.3)
    noise = plane_wave(0.5 * rng.standard_normal(LENGTH), 2.0)
    hiss = torch.from_numpy(0.03 * rng.standard_normal((MICROPHONES, LENGTH))).float()
    return speech, noise + hiss


def gain(scene, config):
    speech, noise = scene
    weights = beamform_weights(speech + noise, config)

    def ratio(s, n):
        return 10 * math.log10(float(s.square().sum() / n.square().sum()))

    after = ratio(apply_weights(speech, weights, config), apply_weights(noise, weights, config))
    return after - ratio(speech[0], noise[0])


def test_delay_and_sum_undoes_the_delays_of_the_speech(scene):
    speech, _ = scene
    config = BeamformingConfig("delay-and-sum")
    weights = beamform_weights(speech + 1e-3 * torch.randn(speech.shape), config)
    beam = apply_weights(speech, weights, config)
    error = (beam - speech[0])[512:-512]
    assert error.square().mean() < 1e-2 * speech[0].square().mean()
    torch.testing.assert_close(weights.abs(), torch.full_like(weights.abs(), 1 / MICROPHONES))


def test_mvdr_takes_noise_away_and_leaves_the_speech(scene):
    config = BeamformingConfig()
    assert gain(scene, config) > gain(scene, BeamformingConfig("delay-and-sum")) + 3
    weights = beamform_weights(scene[0] + scene[1], config)
    beam = apply_weights(scene[0], weights, config)
    error = (beam - scene[0][0])[512:-512]
    assert error.square().mean() < 0.1 * scene[0][0].square().mean()


def test_the_beam_does_not_depend_on_the_loudness(scene):
    mixture = scene[0] + scene[1]
    loud = beamform_weights(mixture, BeamformingConfig())
    faint = beamform_weights(mixture * 1e-4, BeamformingConfig())
    torch.testing.assert_close(faint, loud, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", ["none", "one microphone"])
def test_without_a_beam_the_first_microphone_comes_out(scene, case):
    config = BeamformingConfig("none" if case == "none" else "mvdr")
    microphones = scene[0] if case == "none" else scene[0][:1]
    beam = apply_weights(microphones, beamform_weights(microphones, config), config)
    torch.testing.assert_close(beam, microphones[0], atol=1e-5, rtol=0)


def test_masks_find_the_pauses(scene):
    speech, noise = scene
    config = BeamformingConfig(oversubtraction=2.0)
    share, quiet = masks(stft(speech + noise, config), config)
    frames = quiet[0].nonzero()[:, 0] * config.shift
    heard = speech[0].unfold(0, 512, 1).square().mean(dim=1)
    assert len(frames) == int(config.quiet_share * quiet.shape[1])
    assert all(heard[max(0, int(at) - 256)] < 0.3 for at in frames if at < LENGTH - 512)
    assert share[:, 10:40].mean() < 0.1 < share.mean()


def test_mvdr_equals_torchaudio(scene):
    functional = load_torchaudio("functional")
    config = BeamformingConfig()
    spectra = stft(scene[0] + scene[1], config)
    speech, noise = masks(spectra, config)
    transfer = functional.rtf_evd(functional.psd(spectra, speech))
    covariance = functional.psd(spectra, noise)
    expected = functional.mvdr_weights_rtf(transfer, covariance, 0, diag_eps=config.loading)
    got = mvdr_weights(spectra, speech, noise, config.loading)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


def test_mvdr_of_one_direction_has_the_weights_of_the_formula():
    # Covariance of the noise I + n n^H, whose inverse is known (Sherman and Morrison).
    generator = torch.Generator().manual_seed(2)
    speech, noise = torch.randn(2, 3, dtype=torch.complex128, generator=generator)
    frames = torch.eye(3, dtype=torch.complex128) * math.sqrt(4)
    spectra = torch.stack([*frames, noise * 2, speech], dim=1)[:, None]  # [M, 1, T]
    is_noise = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    got = mvdr_weights(spectra, 1 - is_noise, is_noise, 0.0)[0]
    inverse = torch.eye(3) - torch.outer(noise, noise.conj()) / (1 + noise.abs().square().sum())
    whitened = inverse @ speech
    expected = whitened / (speech.conj() @ whitened) * speech[0].conj()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_silence_has_finite_weights():
    assert beamform_weights(torch.zeros(3, 4096), BeamformingConfig()).isfinite().all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "gev"},
        {"shift": 300},
        {"quiet_share": 1.0},
        {"oversubtraction": 0.0},
        {"loading": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r" be | is "):
        BeamformingConfig(**wrong)
