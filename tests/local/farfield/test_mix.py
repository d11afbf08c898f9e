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


def mixed(scene, **levels):
    asked = {"snr_db": 7.0, "echo_db": 3.0, "self_noise_db": 20.0, "level_db": -30.0} | levels
    return mix_in_room(**scene, levels=Levels(**asked), rng=np.random.default_rng(2))


def db(one, other=1.0):
    return 10 * np.log10(np.mean(np.square(one, dtype=float)) / np.mean(np.square(other)))


def test_levels_are_as_asked_while_the_utterance_lasts(scene):
    heard = mixed(scene).after(BEFORE)
    assert heard.microphones.shape == (MICROPHONES, LENGTH)
    assert db(heard.microphones[0]) == pytest.approx(-30.0, abs=0.01)
    assert db(heard.speech[0], heard.echo[0]) == pytest.approx(3.0, abs=0.01)
    rest = heard.microphones - heard.speech - heard.echo
    both = 10 ** (-7.0 / 10) + 10 ** (-20.0 / 10)
    assert db(heard.speech[0], rest[0]) == pytest.approx(-10 * np.log10(both), abs=0.1)
    assert np.abs(heard.playback).max() <= PLAYED_PEAK


def test_before_the_utterance_there_are_noise_and_echo(scene):
    heard = mixed(scene)
    assert not heard.speech[:, :BEFORE].any()
    assert db(heard.echo[0, LEAD:BEFORE], heard.echo[0, BEFORE:]) == pytest.approx(0, abs=1)


def test_speech_keeps_its_time(scene):
    heard = mixed(scene, snr_db=60.0, echo_db=60.0, self_noise_db=60.0).after(BEFORE)
    lags = np.correlate(heard.microphones[0], scene["dry"], "full")
    assert np.abs(lags).argmax() == LENGTH - 1
    expected = np.convolve(scene["dry"], scene["talker"][1])[LEAD : LEAD + LENGTH]
    ratio = heard.speech[1] @ expected / (expected @ expected)
    np.testing.assert_allclose(heard.speech[1], ratio * expected, atol=1e-5)


def echo_by(scene, heard, response):
    played = heard.playback / PLAYED_PEAK
    expected = np.convolve(played - DISTORTION * played**3, response)
    return expected[LEAD : LEAD + len(played)]


def test_echo_is_the_distorted_playback_through_its_response(scene):
    heard = mixed(scene)
    expected = echo_by(scene, heard, scene["playback"].response[0])
    ratio = heard.echo[0] @ expected / (expected @ expected)
    np.testing.assert_allclose(heard.echo[0], ratio * expected, atol=1e-4)


def test_the_path_of_the_echo_changes_once(scene):
    before = scene["playback"].response
    after = reflection(before, np.random.default_rng(3))
    late = np.flatnonzero(np.abs(after - before)[0] > 1e-6)[0] - (LEAD + 4)
    assert 48 <= late <= 144  # 3 to 9 ms
    scene["playback"] = Playback(scene["playback"].samples, before, (5000, after))
    heard = mixed(scene)
    one, other = (echo_by(scene, heard, response[0]) for response in (before, after))
    ratio = heard.echo[0, :5000] @ one[:5000] / (one[:5000] @ one[:5000])
    np.testing.assert_allclose(heard.echo[0, :5000], ratio * one[:5000], atol=1e-4)
    np.testing.assert_allclose(heard.echo[0, 5800:], ratio * other[5800:], atol=1e-4)


def test_nothing_played(scene):
    heard = mixed(scene | {"playback": None})
    assert heard.echo is None
    assert heard.after(BEFORE).echo is None
    assert not heard.playback.any()


def test_loud_mixtures_do_not_clip(scene):
    assert np.abs(mixed(scene, level_db=0.0).microphones).max() <= HIGHEST + 1e-6


@pytest.mark.parametrize("kind", [*KINDS, "babble", "running_speech", "music"])
def test_noises_are_steady_draws_of_unit_power(kind):
    speech = [np.random.default_rng(n).standard_normal(5000) for n in range(5)]
    make = {"music": music} | {
        name: lambda rng, length, make=make: make(rng, length, speech)
        for name, make in {"babble": babble, "running_speech": running_speech}.items()
    } | KINDS  # fmt: skip
    one, again, other = (make[kind](np.random.default_rng(n), 48000) for n in (1, 1, 2))
    assert one.shape == (48000,)
    assert np.mean(one**2) == pytest.approx(1.0)
    np.testing.assert_array_equal(one, again)
    assert np.abs(np.corrcoef(one, other)[0, 1]) < 0.9
    assert np.mean(one[24000:] ** 2) > 0.1
