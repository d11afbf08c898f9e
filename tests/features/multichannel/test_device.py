"""The front end of a device: fixed beams, the choice of a beam, processing in blocks."""

from itertools import pairwise

import numpy as np
import pytest

from local.farfield.rooms import circle
from toolkit.features.config import BeamsConfig, DeviceConfig, EchoConfig, SelectionConfig
from toolkit.features.multichannel.beamforming import ratio_db
from toolkit.features.multichannel.device import (
    SPEED_OF_SOUND,
    BeamSelector,
    DeviceFrontend,
    beam_filters,
    directions,
    fixed_beams,
    isotropic_coherence,
    process_utterance,
    superdirective_weights,
)

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
    """Bursts of low-frequency sound in the second half, at the centre of the array: [S]."""
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


def process_whole(mixture, played, positions=POSITIONS):
    return process_utterance(mixture, played, positions, RATE, CONFIG)


def test_pieces_of_any_number_of_blocks_give_the_output_of_the_whole():
    _, _, mixture, played = scene()
    mixture, played = mixture[:, : 60 * 256], played[: 60 * 256]
    whole = DeviceFrontend(POSITIONS, 4, RATE, CONFIG).process(mixture, played)
    frontend = DeviceFrontend(POSITIONS, 4, RATE, CONFIG)
    cuts = [0, 1, 2, 10, 33, 60]
    pieces = [
        frontend.process(mixture[:, 256 * a : 256 * b], played[256 * a : 256 * b])
        for a, b in pairwise(cuts)
    ]
    for name in ("samples", "echo", "shares"):
        joined = np.concatenate([getattr(piece, name) for piece in pieces], axis=-1)
        np.testing.assert_allclose(joined, getattr(whole, name), atol=1e-6)


def test_later_samples_change_no_earlier_output():
    _, _, mixture, played = scene()
    later = mixture.copy()
    later[:, 30000:] = 0.3
    output = process_whole(mixture, played)
    output_without_playback = process_whole(later, 2 * played * (np.arange(LENGTH) > 30000))
    output_changed_later = process_whole(later, played)
    # A block and the filters' half length: 24 ms.
    np.testing.assert_array_equal(
        output.samples[: 30000 - 384], output_changed_later.samples[: 30000 - 384]
    )
    assert not np.array_equal(output.samples[:30000], output_without_playback.samples[:30000])


def test_the_talker_passes_without_delay_or_distortion():
    speech, _, _, _ = scene(plays=False)
    quiet = speech + 1e-4 * np.random.default_rng(3).standard_normal(speech.shape)
    output = process_whole(quiet.astype(np.float32), np.zeros(LENGTH, np.float32))
    assert set(output.shares[:, 26000:].argmax(axis=0)) == {2}
    expected = burst(np.random.default_rng(1))
    part = slice(26000, LENGTH - 500)
    lags = np.correlate(output.samples[part], expected[part], "full")
    assert np.abs(lags).argmax() == part.stop - part.start - 1
    assert ratio_db(expected[part], output.samples[part] - expected[part]) > 15


def test_the_echo_is_cancelled_and_the_outputs_sum_up():
    _, echo, mixture, played = scene()
    output = process_whole(mixture, played)
    beams = fixed_beams(mixture, POSITIONS, RATE, CONFIG)
    np.testing.assert_allclose(
        output.samples, np.sum(output.shares * (beams - output.echo), axis=0), atol=1e-5
    )
    np.testing.assert_allclose(output.shares.sum(axis=0), 1.0, atol=1e-6)
    echoes = fixed_beams(echo, POSITIONS, RATE, CONFIG)
    later = slice(LENGTH // 2, None)
    assert ratio_db(echoes[:, later], (echoes - output.echo)[:, later]) > 12
    assert not np.any(output.echo[:, : round(CONFIG.first_seconds * RATE) - 512])


def test_without_playback_nothing_is_subtracted():
    _, _, mixture, played = scene(plays=False)
    assert not process_whole(mixture, played).echo.any()


def test_without_positions_each_microphone_is_a_beam():
    _, _, mixture, played = scene()
    output = process_whole(mixture, played, None)
    assert output.echo.shape == mixture.shape
    np.testing.assert_allclose(fixed_beams(mixture, None, RATE, CONFIG), mixture, atol=1e-6)


def test_refuses_impossible_settings():
    with pytest.raises(ValueError, match="once"):
        DeviceConfig(echo=EchoConfig(passes=2))
    with pytest.raises(ValueError, match="at most"):
        DeviceConfig(echo=EchoConfig(block=128, passes=1))
    with pytest.raises(ValueError, match="first_seconds"):
        DeviceConfig(first_seconds=0.0)


BLOCK, SELECTION_RATE = 256, 16000


def choose_beams(loudness, seed=1):
    """Feed blocks of noise with the given loudness [blocks][beams]; return the choices."""
    rng = np.random.default_rng(seed)
    selector = BeamSelector(len(loudness[0]), BLOCK, SELECTION_RATE, SelectionConfig())
    shared = rng.standard_normal((len(loudness), 1, BLOCK))
    blocks = np.array(loudness)[:, :, None] * shared
    return [selector.choose(block) for block in blocks]


QUIET = [0.01, 0.01, 0.01]


def test_the_beam_with_the_talker_is_chosen_and_kept_in_pauses():
    speech = [0.1, 0.1, 0.3]
    chosen_beams = choose_beams([QUIET] * 60 + [speech] * 30 + [QUIET] * 60)
    assert chosen_beams[:60] == [0] * 60
    assert set(chosen_beams[65:]) == {2}


def test_the_choice_follows_a_moving_talker():
    chosen_beams = choose_beams(
        [QUIET] * 60 + [[0.1, 0.3, 0.1]] * 40 + [QUIET] * 40 + [[0.3, 0.1, 0.1]] * 40
    )
    assert chosen_beams[90] == 1
    assert chosen_beams[-1] == 0


def test_a_beam_that_is_always_loud_is_not_a_talker():
    noisy = [[0.01, 0.5, 0.01]] * 200 + [[0.2, 0.52, 0.1]] * 40
    assert choose_beams(noisy)[-1] == 0


def test_beams_that_are_hardly_better_do_not_take_over():
    chosen_beams = choose_beams(
        [QUIET] * 60 + [[0.30, 0.10, 0.10]] * 20 + [[0.30, 0.31, 0.10]] * 40
    )
    assert set(chosen_beams) == {0}


def test_silence_changes_nothing():
    assert set(choose_beams([[0.0, 0.0]] * 50)) == {0}


@pytest.mark.parametrize("options", [{"smoothing": 0.0}, {"band_hertz": (500.0, 500.0)}])
def test_refuses_invalid_settings_of_the_choice(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SelectionConfig(**options)


FREQUENCIES = np.array([200.0, 500.0, 1000.0, 2500.0, 5000.0, 7500.0])
BEAMS_RATE = 16000


def steering(positions, towards, frequencies):
    """Spectrum of a plane wave at each microphone: [F, M]."""
    early = positions @ towards / SPEED_OF_SOUND
    return np.exp(2j * np.pi * frequencies[:, None] * early)


def sphere(count=4000):
    """Directions that are spread evenly over a sphere (a Fibonacci lattice)."""
    n = np.arange(count) + 0.5
    z, turn = 1 - 2 * n / count, np.pi * (1 + 5**0.5) * n
    level = np.sqrt(1 - z**2)
    return np.stack([level * np.cos(turn), level * np.sin(turn), z], axis=1)


def test_the_coherence_is_that_of_waves_from_all_sides():
    positions = circle("circle-7", 0.04)
    # [D, F, M]
    waves = np.stack([steering(positions, direction, FREQUENCIES) for direction in sphere()])
    expected = np.einsum("dfm,dfn->fmn", waves, waves.conj()) / len(waves)
    np.testing.assert_allclose(isotropic_coherence(positions, FREQUENCIES), expected, atol=2e-3)


def power_from_all_sides(weights, positions):
    """Integrate the power of a beam [M, F] over all directions: [F]."""
    through = [np.sum(weights.T.conj() * steering(positions, d, FREQUENCIES), 1) for d in sphere()]
    return np.mean(np.abs(through) ** 2, axis=0)


@pytest.mark.parametrize("geometry", ["circle-4", "circle-6", "circle-7"])
def test_a_beam_keeps_its_direction_and_hears_less_from_elsewhere(geometry):
    positions, towards = circle(geometry, 0.035), directions(BeamsConfig())
    weights = superdirective_weights(positions, towards, FREQUENCIES, -100.0)  # [B, M, F]
    for beam_weights, direction in zip(weights, towards, strict=True):
        wave = steering(positions, direction, FREQUENCIES)
        np.testing.assert_allclose(np.sum(beam_weights.T.conj() * wave, axis=1), 1.0, atol=1e-6)
        delayed = power_from_all_sides(wave.T / len(positions), positions)
        power = power_from_all_sides(beam_weights, positions)
        assert np.all(power <= delayed * 1.001)
        assert np.all(-10 * np.log10(power[1:4]) > 4.0)  # delay and sum: 0.2 to 3 dB


def white_noise_gain(weights):
    return -10 * np.log10(np.sum(np.abs(weights) ** 2, axis=1))


@pytest.mark.parametrize("gain_db", [-10.0, -3.0, 3.0])
def test_the_microphones_own_noise_is_limited(gain_db):
    positions, towards = circle("circle-4", 0.035), directions(BeamsConfig())
    free = superdirective_weights(positions, towards, FREQUENCIES, -100.0)
    assert white_noise_gain(free).min() < -20
    limited = superdirective_weights(positions, towards, FREQUENCIES, gain_db)
    assert white_noise_gain(limited).min() >= gain_db - 1e-6


def test_an_unreachable_noise_limit_gives_delay_and_sum():
    positions, towards = circle("circle-4", 0.035), directions(BeamsConfig(beams=1))
    weights = superdirective_weights(positions, towards, FREQUENCIES, 60.0)[0]
    expected = steering(positions, towards[0], FREQUENCIES).T / 4
    np.testing.assert_allclose(weights, expected, atol=2e-3)


def test_filters_are_the_weights_delayed_by_half_their_length():
    positions, config = circle("circle-7", 0.04) + 1.5, BeamsConfig()
    filters = beam_filters(positions, config, BEAMS_RATE)
    assert filters.shape == (6, 7, 257)
    frequencies = np.arange(200, 7500, 50.0)
    spectra = np.exp(-2j * np.pi * frequencies[:, None] / BEAMS_RATE * np.arange(257))
    responses = np.einsum("bmt,ft->bmf", filters, spectra)
    for beam_responses, direction in zip(responses, directions(config), strict=True):
        gain = np.sum(beam_responses.T * steering(positions - 1.5, direction, frequencies), axis=1)
        delay_response = np.exp(-2j * np.pi * frequencies / BEAMS_RATE * config.delay)
        assert np.abs(20 * np.log10(np.abs(gain))).max() < 0.5
        assert np.abs(np.angle(gain / delay_response)).max() < 0.1


@pytest.mark.parametrize("options", [{"beams": 0}, {"taps": 256}, {"elevation_degrees": 91.0}])
def test_refuses_impossible_beams(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        BeamsConfig(**options)
