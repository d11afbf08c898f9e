import numpy as np
import pytest

from local.synthetic import espeak, sound
from local.synthetic.sound import SAMPLING_RATE


def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("tract", [0.95, 1.0, 1.06])
def test_resampling_moves_a_tone_by_the_tract_length(tract):
    time = np.arange(espeak.SAMPLING_RATE) / espeak.SAMPLING_RATE
    tone = (10000 * np.sin(2 * np.pi * 1000 * time)).astype(np.int16)
    samples = sound.to_corpus_rate(tone, tract)
    assert len(samples) == pytest.approx(SAMPLING_RATE * tract, rel=0.01)
    spectrum = np.abs(np.fft.rfft(samples[:16000] * np.hanning(len(samples[:16000])), 64000))
    assert np.argmax(spectrum) / 4 == pytest.approx(1000 / tract, rel=0.01)


def test_room_response_has_the_requested_decay_and_direct_sound():
    t60, ratio = 0.3, 6.0
    energies = [sound.room_response(np.random.default_rng(s), t60, ratio) ** 2
                for s in range(50)]  # fmt: skip
    assert all(energy[0] == 1.0 for energy in energies)
    for energy in energies:
        assert -10 * np.log10(np.sum(energy[1:])) == pytest.approx(ratio)
    mean = np.mean(energies, axis=0)
    early, late = (np.mean(mean[s : s + 160]) for s in (320, 320 + 2400))
    assert 10 * np.log10(early / late) == pytest.approx(60 * 0.15 / t60, abs=1.5)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_noise_has_the_requested_slope(exponent):
    noise = sound.coloured_noise(rng(), 1 << 17, exponent)
    assert np.mean(noise**2) == pytest.approx(1.0)
    power = np.abs(np.fft.rfft(noise)) ** 2
    hertz = np.arange(len(power)) * SAMPLING_RATE / (1 << 17)
    power_at_1_khz, power_at_4_khz = (
        np.mean(power[(hertz > f) & (hertz < 1.2 * f)]) for f in (1000, 4000)
    )
    assert power_at_1_khz / power_at_4_khz == pytest.approx(4.0**exponent, rel=0.2)


def mixed(snr_db, level_db=-26.0):
    speech = rng().standard_normal(16000)
    noise = np.random.default_rng(6).standard_normal(20000)
    samples = sound.mix(speech, np.array([1.0]), noise, snr_db, level_db, 3000, 1000)
    return samples / 32767


@pytest.mark.parametrize("snr_db", [0.0, 10.0])
def test_mixture_has_the_requested_ratio_and_level(snr_db):
    samples = mixed(snr_db)
    assert len(samples) == 20000
    assert 10 * np.log10(np.mean(samples**2)) == pytest.approx(-26.0, abs=0.1)
    noise = np.mean(samples[:3000] ** 2)
    speech = np.mean(samples[3000:19000] ** 2) - noise
    assert 10 * np.log10(speech / noise) == pytest.approx(snr_db, abs=0.5)


def test_a_loud_mixture_does_not_clip():
    assert np.max(np.abs(mixed(10.0, level_db=0.0))) == pytest.approx(0.99, abs=0.001)


def test_reverberation_keeps_the_direct_sound_in_place():
    speech = np.zeros(8000)
    speech[100] = 1.0
    response = sound.room_response(rng(), 0.2, 6.0)
    noise = rng().standard_normal(9000) * 1e-9
    samples = sound.mix(speech, response, noise, 80.0, -40.0, 500, 500)
    assert np.argmax(np.abs(samples)) == 600
