"""How an utterance is drawn, mixed and recorded."""

from dataclasses import replace

import numpy as np
import pytest

from local.farfield.config import FarfieldConfig
from local.farfield.mix import simulate
from local.farfield.rooms import LEAD, Room, circle, isotropic
from local.farfield.selection import FarfieldUtterance
from toolkit.features.multichannel.device import isotropic_coherence

RATE, LENGTH, TAPS = 16000, 32000, 800
CONFIG = FarfieldConfig(dp3=replace(FarfieldConfig().dp3, playback_share=1.0))


def room(known_geometry=True):
    rng = np.random.default_rng(4)
    responses = rng.standard_normal((3, 4, TAPS)) * np.exp(-np.arange(TAPS) / 150) * 0.1
    responses[..., :LEAD] = 0.0
    responses[..., LEAD] = 1.0
    talker, noise, echo = responses.astype(np.float32)
    metres, positions = (np.array([2.0]), circle("circle-4", 0.035)) if known_geometry else ([], [])
    return Room(talker[None], noise, echo, 0.3, np.array(metres), np.array(positions))


class OnePool:
    """A pool of one room; noise and playback are white noise."""

    rooms = 1

    def __init__(self, known_geometry=True):
        self._room = room(known_geometry)
        sounds = np.random.default_rng(5).standard_normal((2, 50000))
        self.noise = self.playback = sounds.astype(np.float32)

    def room(self, placement, number):
        return self._room


def speech():
    rng = np.random.default_rng(6)
    bursts = np.repeat(rng.random(16) < 0.6, LENGTH // 16)
    low = np.convolve(rng.standard_normal(LENGTH), np.hanning(8), "same")
    return (0.1 * bursts * low).astype(np.float32)


def utterance(id, array=False):
    return FarfieldUtterance("DP3", "test", id, None, "DP3", array)


def test_isotropic_noise_has_the_theoretical_coherence():
    positions = circle("circle-4", 0.035)
    sounds = np.random.default_rng(1).standard_normal((4, 20 * RATE)).astype(np.float32)
    noise = isotropic(sounds, positions)
    assert noise.shape == sounds.shape
    window = np.hanning(256)
    frames = np.lib.stride_tricks.sliding_window_view(noise, 256, axis=1)[:, ::128] * window
    spectra = np.fft.rfft(frames)[..., 4:-4]  # [M, T, F]
    cross = np.einsum("mtf,ntf->fmn", spectra, spectra.conj())
    power = np.einsum("fmm->fm", cross).real
    coherence = cross / np.sqrt(power[:, :, None] * power[:, None])
    frequencies = np.fft.rfftfreq(256, 1 / RATE)[4:-4]
    expected = isotropic_coherence(positions, frequencies)
    assert np.abs(coherence - expected).max() < 0.12
    assert np.abs((coherence - expected).mean(axis=0)).max() < 0.03


def test_an_utterance_is_drawn_alike_with_and_without_its_array():
    pool = OnePool()
    device, _, conditions = simulate(utterance("a"), speech(), CONFIG, pool)
    device_of_array, mixture, measured = simulate(
        utterance("a", array=True), speech(), CONFIG, pool
    )
    np.testing.assert_array_equal(device, device_of_array)
    assert measured.items() >= conditions.items()
    assert mixture.microphones.shape == (4, LENGTH)
    other_utterance, _, _ = simulate(utterance("b"), speech(), CONFIG, pool)
    assert not np.array_equal(device, other_utterance)


def test_the_beam_has_a_better_snr_than_a_microphone():
    gains, erles = [], []
    for n in range(4):
        _, _, measured = simulate(utterance(f"u{n}", array=True), speech(), CONFIG, OnePool())
        gains.append(measured["device_snr_gain_db"])
        erles.append(measured["device_erle_db"])
    assert np.mean(gains) > 2
    assert np.mean(erles) > 8


def test_the_device_signal_is_the_beam_or_the_first_microphone():
    pool, without_beam = OnePool(), replace(CONFIG, frontend="microphone")
    device, mixture, _ = simulate(utterance("a", array=True), speech(), CONFIG, pool)
    first, again, _ = simulate(utterance("a", array=True), speech(), without_beam, pool)
    np.testing.assert_array_equal(mixture.microphones, again.microphones)
    np.testing.assert_array_equal(first, mixture.microphones[0])
    assert not np.array_equal(device, first)


def test_self_noise_weighs_more_for_a_distant_talker():
    def rest(metres):
        pool = OnePool()
        object.__setattr__(pool._room, "metres", np.array([metres]))
        quiet = replace(CONFIG.dp3, playback_share=0.0, snr_db=(90.0, 90.0))
        _, mixture, _ = simulate(
            utterance("a", array=True), speech(), replace(CONFIG, dp3=quiet), pool
        )
        noise = mixture.microphones[0] - mixture.speech[0]
        return 10 * np.log10(np.mean(noise**2) / np.mean(mixture.speech[0] ** 2))

    assert rest(4.0) - rest(1.0) == pytest.approx(20 * np.log10(4), abs=0.1)


def test_arrays_of_unknown_geometry_use_their_best_microphone():
    device, mixture, measured = simulate(
        utterance("a", array=True), speech(), CONFIG, OnePool(known_geometry=False)
    )
    assert device.shape == mixture.microphones[0].shape
    assert measured["device_erle_db"] > 5
