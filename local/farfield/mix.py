"""Mixes an utterance as the microphones of a device in a room record it."""

from dataclasses import dataclass

import numpy as np
from scipy import fft

from local.farfield.rooms import LEAD

SELF_NOISE_DB = -40.0
"""Level of the microphones' own noise, relative to the reverberant speech."""
DISTORTION = 0.1
"""Distortion by a loudspeaker at its limit: x - 0.1 x^3, a third harmonic of -31 dB."""
PLAYED_PEAK = 0.5
"""Highest sample of the playback channel, whatever the loudness."""
HIGHEST = 0.95
"""Highest sample of a mixture; a louder one is attenuated as a whole."""


@dataclass(frozen=True)
class Mixture:
    """An utterance in a room and its components: M microphones, S samples, full scale 1."""

    microphones: np.ndarray
    """float32[M, S]: the sum of all components."""
    speech: np.ndarray
    """float32[M, S]: the reverberant speech in it."""
    echo: np.ndarray | None
    """float32[M, S]: the echo in it; None: nothing is played."""
    playback: np.ndarray
    """float32[S]: what the device plays; zeros: nothing."""


def mix_in_room(
    dry: np.ndarray,
    talker: np.ndarray,
    noise: np.ndarray,
    noise_response: np.ndarray,
    playback: np.ndarray | None,
    echo_response: np.ndarray,
    snr_db: float,
    echo_db: float,
    level_db: float,
    rng: np.random.Generator,
) -> Mixture:
    """Mix clean speech, noise and playback as recorded in a room.

    Args:
      dry: float32[S], clean speech.
      talker, noise_response, echo_response: float32[M, R], see `Room`.
      noise: float32[S + R], any level.
      playback: float32[S], any level; None: nothing is played.
      snr_db, echo_db: reverberant speech over noise, and over echo, at the first microphone.
      level_db: level of the mixture at the first microphone, in dB relative to full scale.
      rng: generator of the microphones' own noise.
    """
    samples, microphones = len(dry), len(talker)
    speech = _convolve(dry, talker)[:, LEAD : LEAD + samples]
    power = _power(speech[0])
    before = noise_response.shape[1]  # so that the noise is reverberant from the first sample
    sound = _convolve(noise, noise_response)[:, before : before + samples]
    total = speech + _gain(power, sound[0], snr_db) * sound
    echo = None
    reference = np.zeros(samples, dtype=np.float32)
    if playback is not None and np.any(playback):
        reference = playback / np.abs(playback).max()
        echo = _convolve(reference - DISTORTION * reference**3, echo_response)
        echo = echo[:, LEAD : LEAD + samples]
        echo *= _gain(power, echo[0], echo_db)
        total += echo
        reference = PLAYED_PEAK * reference
    own = rng.standard_normal((microphones, samples), dtype=np.float32)
    total += np.float32(np.sqrt(power) * 10 ** (SELF_NOISE_DB / 20)) * own
    peak = max(float(np.abs(total).max()), 1e-9)
    loudness = np.sqrt(max(_power(total[0]), 1e-18))
    scale = np.float32(min(10 ** (level_db / 20) / loudness, HIGHEST / peak))
    return Mixture(total * scale, speech * scale, None if echo is None else echo * scale, reference)


def _convolve(samples: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Convolve [S] with every row of [M, R]: float32[M, S + R - 1]."""
    length = len(samples) + responses.shape[1] - 1
    padded = fft.next_fast_len(length, real=True)
    spectrum = fft.rfft(samples, padded) * fft.rfft(responses, padded)
    return fft.irfft(spectrum, padded)[:, :length]


def _power(samples: np.ndarray) -> float:
    return float(np.mean(np.square(samples, dtype=np.float64)))


def _gain(power: float, other: np.ndarray, ratio_db: float) -> np.float32:
    """Return the factor that puts `other` at `ratio_db` below `power`."""
    own = _power(other)
    return np.float32(np.sqrt(power / own) * 10 ** (-ratio_db / 20) if own > 0 else 0.0)
