"""A device's front end: what it hears does not depend on what comes later."""

from itertools import pairwise

import numpy as np
import pytest

from local.farfield.rooms import circle
from toolkit.features.multichannel.device import (
    DeviceConfig,
    DeviceFrontend,
    fixed_beams,
    hear_utterance,
)
from toolkit.features.multichannel.echo import EchoConfig
from toolkit.features.multichannel.measures import ratio_db
from toolkit.features.multichannel.superdirective import SPEED_OF_SOUND, directions

RATE, LENGTH = 16000, 48000
CONFIG = DeviceConfig()
POSITIONS = circle("circle-4", 0.035)


def wave(sound, towards):
    """A plane wave at the microphones: [M, S], delayed in the frequency domain."""
    early = POSITIONS @ towards / SPEED_OF_SOUND
    frequencies = np.fft.rfftfreq(len(sound), 1 / RATE)
    turns = np.exp(2j * np.pi * frequencies * early[:, None])
    return np.fft.irfft(np.fft.rfft(sound) * turns, len(sound))


def burst(rng):
    """Bursts of low sound in the second half, as the middle of the array hears them: [S]."""
    bursts = np.repeat(rng.random(30) < 0.6, LENGTH // 30) * (np.arange(LENGTH) > LENGTH // 2)
    return 0.05 * bursts * np.convolve(rng.standard_normal(LENGTH), np.hanning(6), "same")


def scene(seed=1, plays=True):
    """Bursts of speech from the third beam's direction, noise, and an echo: [M, S] each."""
    rng = np.random.default_rng(seed)
    speech = wave(burst(rng), directions(CONFIG.beams)[2])
    played = 0.1 * rng.standard_normal(LENGTH) if plays else np.zeros(LENGTH)
    paths = rng.standard_normal((4, 300)) * np.exp(-np.arange(300) / 60) * 0.3
    echo = np.stack([np.convolve(played, path)[:LENGTH] for path in paths])
    noise = 0.002 * rng.standard_normal((4, LENGTH))
    parts = (speech, echo, speech + echo + noise, played)
    return tuple(part.astype(np.float32) for part in parts)


def heard(mixture, played, positions=POSITIONS):
    return hear_utterance(mixture, played, positions, RATE, CONFIG)


def test_pieces_of_any_number_of_blocks_give_what_the_whole_gives():
    _, _, mixture, played = scene()
    mixture, played = mixture[:, : 60 * 256], played[: 60 * 256]
    whole = DeviceFrontend(POSITIONS, 4, RATE, CONFIG).hear(mixture, played)
    frontend = DeviceFrontend(POSITIONS, 4, RATE, CONFIG)
    cuts = [0, 1, 2, 10, 33, 60]
    pieces = [
        frontend.hear(mixture[:, 256 * a : 256 * b], played[256 * a : 256 * b])
        for a, b in pairwise(cuts)
    ]
    for name in ("samples", "echo", "shares"):
        found = np.concatenate([getattr(piece, name) for piece in pieces], axis=-1)
        np.testing.assert_allclose(found, getattr(whole, name), atol=1e-6)


def test_the_future_changes_nothing():
    _, _, mixture, played = scene()
    later = mixture.copy()
    later[:, 30000:] = 0.3
    one, other = heard(mixture, played), heard(later, 2 * played * (np.arange(LENGTH) > 30000))
    still = heard(later, played)
    # A block and the filters' half length: 24 ms.
    np.testing.assert_array_equal(one.samples[: 30000 - 384], still.samples[: 30000 - 384])
    assert not np.array_equal(one.samples[:30000], other.samples[:30000])


def test_the_talker_is_heard_in_time_and_as_it_is():
    speech, _, _, _ = scene(plays=False)
    quiet = speech + 1e-4 * np.random.default_rng(3).standard_normal(speech.shape)
    found = heard(quiet.astype(np.float32), np.zeros(LENGTH, np.float32))
    assert set(found.shares[:, 26000:].argmax(axis=0)) == {2}
    expected = burst(np.random.default_rng(1))
    part = slice(26000, LENGTH - 500)
    lags = np.correlate(found.samples[part], expected[part], "full")
    assert np.abs(lags).argmax() == part.stop - part.start - 1
    assert ratio_db(expected[part], found.samples[part] - expected[part]) > 15


def test_the_echo_is_cancelled_and_parts_add_up():
    _, echo, mixture, played = scene()
    found = heard(mixture, played)
    beams = fixed_beams(mixture, POSITIONS, RATE, CONFIG)
    np.testing.assert_allclose(
        found.samples, np.sum(found.shares * (beams - found.echo), axis=0), atol=1e-5
    )
    np.testing.assert_allclose(found.shares.sum(axis=0), 1.0, atol=1e-6)
    echoes = fixed_beams(echo, POSITIONS, RATE, CONFIG)
    later = slice(LENGTH // 2, None)
    assert ratio_db(echoes[:, later], (echoes - found.echo)[:, later]) > 12
    assert not np.any(found.echo[:, : round(CONFIG.first_seconds * RATE) - 512])


def test_nothing_played_is_nothing_subtracted():
    _, _, mixture, played = scene(plays=False)
    assert not heard(mixture, played).echo.any()


def test_microphones_of_unknown_positions_are_beams_themselves():
    _, _, mixture, played = scene()
    found = heard(mixture, played, None)
    assert found.echo.shape == mixture.shape
    np.testing.assert_allclose(fixed_beams(mixture, None, RATE, CONFIG), mixture, atol=1e-6)


def test_refuses_impossible_settings():
    with pytest.raises(ValueError, match="once"):
        DeviceConfig(echo=EchoConfig(passes=2))
    with pytest.raises(ValueError, match="at most"):
        DeviceConfig(echo=EchoConfig(block=128, passes=1))
    with pytest.raises(ValueError, match="first_seconds"):
        DeviceConfig(first_seconds=0.0)
