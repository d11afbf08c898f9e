"""Fixed beams: what they let through, against integration over all directions."""

import numpy as np
import pytest

from local.farfield.rooms import circle
from toolkit.features.multichannel.superdirective import (
    SPEED_OF_SOUND,
    BeamsConfig,
    beam_filters,
    directions,
    isotropic_coherence,
    superdirective_weights,
)

FREQUENCIES = np.array([200.0, 500.0, 1000.0, 2500.0, 5000.0, 7500.0])
RATE = 16000


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
    waves = np.stack([steering(positions, one, FREQUENCIES) for one in sphere()])  # [D, F, M]
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
    for own, one in zip(weights, towards, strict=True):
        wave = steering(positions, one, FREQUENCIES)
        np.testing.assert_allclose(np.sum(own.T.conj() * wave, axis=1), 1.0, atol=1e-6)
        delayed = power_from_all_sides(wave.T / len(positions), positions)
        power = power_from_all_sides(own, positions)
        assert np.all(power <= delayed * 1.001)
        assert np.all(-10 * np.log10(power[1:4]) > 4.0)  # delay and sum: 0.2 to 3 dB


def own_noise_gain(weights):
    return -10 * np.log10(np.sum(np.abs(weights) ** 2, axis=1))


@pytest.mark.parametrize("gain_db", [-10.0, -3.0, 3.0])
def test_the_microphones_own_noise_is_limited(gain_db):
    positions, towards = circle("circle-4", 0.035), directions(BeamsConfig())
    free = superdirective_weights(positions, towards, FREQUENCIES, -100.0)
    assert own_noise_gain(free).min() < -20
    limited = superdirective_weights(positions, towards, FREQUENCIES, gain_db)
    assert own_noise_gain(limited).min() >= gain_db - 1e-6


def test_where_the_limit_cannot_be_kept_the_beam_is_delay_and_sum():
    positions, towards = circle("circle-4", 0.035), directions(BeamsConfig(beams=1))
    weights = superdirective_weights(positions, towards, FREQUENCIES, 60.0)[0]
    expected = steering(positions, towards[0], FREQUENCIES).T / 4
    np.testing.assert_allclose(weights, expected, atol=2e-3)


def test_filters_are_the_weights_late_by_half_their_length():
    positions, config = circle("circle-7", 0.04) + 1.5, BeamsConfig()
    filters = beam_filters(positions, config, RATE)
    assert filters.shape == (6, 7, 257)
    frequencies = np.arange(200, 7500, 50.0)
    spectra = np.exp(-2j * np.pi * frequencies[:, None] / RATE * np.arange(257))
    responses = np.einsum("bmt,ft->bmf", filters, spectra)
    for own, one in zip(responses, directions(config), strict=True):
        through = np.sum(own.T * steering(positions - 1.5, one, frequencies), axis=1)
        late = np.exp(-2j * np.pi * frequencies / RATE * config.delay)
        assert np.abs(20 * np.log10(np.abs(through))).max() < 0.5
        assert np.abs(np.angle(through / late)).max() < 0.1


@pytest.mark.parametrize("wrong", [{"beams": 0}, {"taps": 256}, {"elevation_degrees": 91.0}])
def test_refuses_impossible_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BeamsConfig(**wrong)
