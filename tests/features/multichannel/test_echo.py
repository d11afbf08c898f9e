import numpy as np
import pytest

from toolkit.features.config import EchoConfig
from toolkit.features.multichannel.echo import estimate_echo

SMALL = EchoConfig(taps=128, block=32)


def path(rng, taps, decay):
    return rng.standard_normal(taps) * np.exp(-np.arange(taps) / decay)


def played_and_echo(seed, paths, length=16000):
    rng = np.random.default_rng(seed)
    played = rng.standard_normal(length).astype(np.float32)
    echo = [np.convolve(played, echo_path)[:length] for echo_path in paths]
    return played, np.stack(echo).astype(np.float32)


def erle(echo, estimate):
    return 10 * np.log10(np.sum(echo**2) / np.sum((echo - estimate) ** 2))


def test_the_filters_become_the_echo_paths():
    rng = np.random.default_rng(1)
    paths = np.stack([path(rng, 100, 20.0) for _ in range(3)])
    played, echo = played_and_echo(2, paths)
    estimate, filters = estimate_echo(echo, played, SMALL)
    assert estimate.shape == echo.shape
    assert filters.shape == (3, 128)
    assert erle(echo, estimate) > 25
    for echo_path, estimated_path in zip(paths, filters, strict=True):
        assert erle(np.pad(echo_path, (0, 28)), estimated_path) > 25


def test_the_filter_agrees_with_pyroomacoustics_nlms():
    adaptive = pytest.importorskip("pyroomacoustics").adaptive
    echo_path = path(np.random.default_rng(3), 30, 8.0)
    played, echo = played_and_echo(4, echo_path[None], length=6000)
    _, filters = estimate_echo(echo, played, EchoConfig(taps=32, block=16))
    library = adaptive.NLMS(32, mu=0.5)
    for x, d in zip(played, echo[0], strict=True):
        library.update(x, d)
    assert erle(library.w, filters[0]) > 25


def test_speech_over_the_echo_is_kept():
    rng = np.random.default_rng(5)
    played, echo = played_and_echo(6, path(rng, 100, 20.0)[None], length=48000)
    loud = np.sqrt(np.mean(echo**2))
    bursts = np.repeat(rng.random(24) < 0.5, 2000)  # 6 dB above the echo half of the time
    speech = (2 * loud * bursts * rng.standard_normal(48000)).astype(np.float32)[None]
    estimate, _ = estimate_echo(echo + speech, played, SMALL)
    assert erle(echo, estimate) > 12


def test_channels_are_independent():
    rng = np.random.default_rng(7)
    played, echo = played_and_echo(8, np.stack([path(rng, 60, 9.0) for _ in range(2)]), 4001)
    joint_estimate, _ = estimate_echo(echo, played, SMALL)
    for channel in (0, 1):
        single_estimate, _ = estimate_echo(echo[channel : channel + 1], played, SMALL)
        np.testing.assert_allclose(joint_estimate[channel], single_estimate[0], atol=1e-4)


def test_without_playback_the_estimate_is_zero():
    microphones = np.random.default_rng(9).standard_normal((2, 1000)).astype(np.float32)
    estimate, _ = estimate_echo(microphones, np.zeros(1000, np.float32), SMALL)
    assert not estimate.any()


def test_scale_does_not_matter():
    played, echo = played_and_echo(10, path(np.random.default_rng(1), 60, 9.0)[None], 4000)
    estimate, _ = estimate_echo(echo, played, SMALL)
    scaled_estimate, _ = estimate_echo(echo * 1e-3, played * 0.1, SMALL)
    np.testing.assert_allclose(scaled_estimate * 1e3, estimate, atol=1e-2 * np.abs(estimate).max())


@pytest.mark.parametrize(
    "options",
    [
        {"taps": 100, "block": 32},
        {"block": 8},
        {"stability": 1.1},
        {"smoothing": 1.0},
        {"passes": 0},
        {"first_power": 0.0},
    ],
)
def test_invalid_settings_are_refused(options):
    with pytest.raises(ValueError, match=r" be | is "):
        EchoConfig(**options)
