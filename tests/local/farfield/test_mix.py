import numpy as np
import pytest

from local.farfield.mix import (
    DISTORTION,
    HIGHEST,
    PLAYED_PEAK,
    Levels,
    Playback,
    mix_in_room,
    reflection,
)
from local.farfield.noise import KINDS, babble, music, running_speech
from local.farfield.rooms import LEAD

LENGTH, MICROPHONES, TAPS, BEFORE = 8000, 2, 200, 1600


@pytest.fixture
def scene():
    rng = np.random.default_rng(1)

    def response(delay):
        tail = rng.standard_normal((MICROPHONES, TAPS)) * np.exp(-np.arange(TAPS) / 30) * 0.2
        tail[:, : LEAD + delay] = 0.0
        tail[:, LEAD + delay] = 1.0
        return tail.astype(np.float32)

    whole = BEFORE + LENGTH
    return {
        "dry": rng.standard_normal(LENGTH).astype(np.float32),
        "talker": response(0),
        "noise": rng.standard_normal((MICROPHONES, whole)).astype(np.float32),
        "playback": Playback(rng.standard_normal(whole).astype(np.float32), response(4)),
        "lead": BEFORE,
    }


def mix_scene(scene, **levels):
    level_settings = {
        "snr_db": 7.0,
        "echo_db": 3.0,
        "self_noise_db": 20.0,
        "level_db": -30.0,
    } | levels
    return mix_in_room(**scene, levels=Levels(**level_settings), rng=np.random.default_rng(2))


def db(signal, reference=1.0):
    return 10 * np.log10(np.mean(np.square(signal, dtype=float)) / np.mean(np.square(reference)))


def test_mixture_has_the_requested_levels_during_the_utterance(scene):
    mixture = mix_scene(scene).after(BEFORE)
    assert mixture.microphones.shape == (MICROPHONES, LENGTH)
    assert db(mixture.microphones[0]) == pytest.approx(-30.0, abs=0.01)
    assert db(mixture.speech[0], mixture.echo[0]) == pytest.approx(3.0, abs=0.01)
    noise = mixture.microphones - mixture.speech - mixture.echo
    noise_power = 10 ** (-7.0 / 10) + 10 ** (-20.0 / 10)
    assert db(mixture.speech[0], noise[0]) == pytest.approx(-10 * np.log10(noise_power), abs=0.1)
    assert np.abs(mixture.playback).max() <= PLAYED_PEAK


def test_mixture_has_noise_and_echo_before_the_utterance(scene):
    mixture = mix_scene(scene)
    assert not mixture.speech[:, :BEFORE].any()
    assert db(mixture.echo[0, LEAD:BEFORE], mixture.echo[0, BEFORE:]) == pytest.approx(0, abs=1)


def test_speech_keeps_its_time(scene):
    mixture = mix_scene(scene, snr_db=60.0, echo_db=60.0, self_noise_db=60.0).after(BEFORE)
    lags = np.correlate(mixture.microphones[0], scene["dry"], "full")
    assert np.abs(lags).argmax() == LENGTH - 1
    expected = np.convolve(scene["dry"], scene["talker"][1])[LEAD : LEAD + LENGTH]
    ratio = mixture.speech[1] @ expected / (expected @ expected)
    np.testing.assert_allclose(mixture.speech[1], ratio * expected, atol=1e-5)


def expected_echo(scene, mixture, response):
    played = mixture.playback / PLAYED_PEAK
    expected = np.convolve(played - DISTORTION * played**3, response)
    return expected[LEAD : LEAD + len(played)]


def test_echo_is_the_distorted_playback_through_its_response(scene):
    mixture = mix_scene(scene)
    expected = expected_echo(scene, mixture, scene["playback"].response[0])
    ratio = mixture.echo[0] @ expected / (expected @ expected)
    np.testing.assert_allclose(mixture.echo[0], ratio * expected, atol=1e-4)


def test_the_path_of_the_echo_changes_once(scene):
    response = scene["playback"].response
    new_response = reflection(response, np.random.default_rng(3))
    late = np.flatnonzero(np.abs(new_response - response)[0] > 1e-6)[0] - (LEAD + 4)
    assert 48 <= late <= 144  # 3 to 9 ms
    scene["playback"] = Playback(scene["playback"].samples, response, (5000, new_response))
    mixture = mix_scene(scene)
    first_echo = expected_echo(scene, mixture, response[0])[:5000]
    second_echo = expected_echo(scene, mixture, new_response[0])[5800:]
    ratio = mixture.echo[0, :5000] @ first_echo / (first_echo @ first_echo)
    np.testing.assert_allclose(mixture.echo[0, :5000], ratio * first_echo, atol=1e-4)
    np.testing.assert_allclose(mixture.echo[0, 5800:], ratio * second_echo, atol=1e-4)


def test_mixture_without_playback_has_no_echo(scene):
    mixture = mix_scene(scene | {"playback": None})
    assert mixture.echo is None
    assert mixture.after(BEFORE).echo is None
    assert not mixture.playback.any()


def test_loud_mixtures_do_not_clip(scene):
    assert np.abs(mix_scene(scene, level_db=0.0).microphones).max() <= HIGHEST + 1e-6


@pytest.mark.parametrize("kind", [*KINDS, "babble", "running_speech", "music"])
def test_noises_are_steady_draws_of_unit_power(kind):
    speech = [np.random.default_rng(n).standard_normal(5000) for n in range(5)]
    make = {"music": music} | {
        name: lambda rng, length, make=make: make(rng, length, speech)
        for name, make in {"babble": babble, "running_speech": running_speech}.items()
    } | KINDS  # fmt: skip
    noise, repeated, other_seed = (make[kind](np.random.default_rng(n), 48000) for n in (1, 1, 2))
    assert noise.shape == (48000,)
    assert np.mean(noise**2) == pytest.approx(1.0)
    np.testing.assert_array_equal(noise, repeated)
    assert np.abs(np.corrcoef(noise, other_seed)[0, 1]) < 0.9
    assert np.mean(noise[24000:] ** 2) > 0.1
