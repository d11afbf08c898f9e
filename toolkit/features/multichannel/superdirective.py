"""Fixed superdirective beams of a microphone array, as FIR filters (C1).

The filters depend on the geometry alone, so that beams need no estimate of where anything is, and
no sound but that of the next 8 ms.
"""

from dataclasses import dataclass

import numpy as np

SPEED_OF_SOUND = 343.0
"""Metres per second."""
LOADINGS = np.concatenate([[0.0], np.logspace(-6, 3, 46)])
"""Diagonal loadings that are tried, ascending; the largest makes a delay-and-sum beam."""


@dataclass(frozen=True)
class BeamsConfig:
    """The fixed beams of a device."""

    beams: int = 6
    """Directions, equally spaced around the device."""
    # Gain in the ratio of speech to noise, mean of 20 utterances at five placements: 1.4 dB at 0
    # degrees, 1.7 at 20, 2.1 at 40; with limits of -10, -6, -3, 0 and 3 dB: 0.7, 1.2, 1.4, 1.7 and
    # 1.7 (at 20 degrees).
    elevation_degrees: float = 30.0
    """Height of the directions above the plane of the device: talkers stand or sit."""
    white_noise_gain_db: float = 0.0
    """Lowest gain of the talker over the microphones' own noise. A superdirective beam subtracts
    microphones that hear almost the same at low frequencies, which amplifies that noise."""
    taps: int = 257
    """Length of the filters, odd; they delay by half of it."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"beams is {self.beams}, needs to be at least 1")
        if self.taps < 3 or self.taps % 2 == 0:
            raise ValueError(f"taps is {self.taps}, needs to be odd and at least 3")
        if not -90 <= self.elevation_degrees <= 90:
            raise ValueError("elevation_degrees must be from -90 to 90")

    @property
    def delay(self) -> int:
        """Samples by which the beams are late."""
        return self.taps // 2


def directions(config: BeamsConfig) -> np.ndarray:
    """Return unit vectors from the device towards where each beam listens: float64[B, 3]."""
    azimuth = 2 * np.pi * np.arange(config.beams) / config.beams
    up = np.deg2rad(config.elevation_degrees)
    level = np.cos(up) * np.stack([np.cos(azimuth), np.sin(azimuth)], axis=1)
    return np.column_stack([level, np.full(config.beams, np.sin(up))])


def beam_filters(positions: np.ndarray, config: BeamsConfig, sampling_rate: int) -> np.ndarray:
    """Design the filters of all beams: float32[B, M, taps].

    Filter and sum over the microphones; the result is what a microphone in the middle of the array
    would hear from the beam's direction, `config.delay` samples late.

    Args:
      positions: [M, 3] in metres.
      config: directions and limits.
      sampling_rate: in Hz.
    """
    size = 2 * (config.taps - 1)
    frequencies = np.fft.rfftfreq(size, 1 / sampling_rate)
    around = positions - positions.mean(axis=0)
    weights = superdirective_weights(
        around, directions(config), frequencies, config.white_noise_gain_db
    )
    responses = np.fft.irfft(weights.conj(), size, axis=-1)  # of no delay: centred on sample 0
    late = np.roll(responses, config.delay, axis=-1)[..., : config.taps]
    fade = np.hanning(config.taps + 2)[1:-1] ** 0.25  # but for the ends, as it is
    return (late * fade).astype(np.float32)


def superdirective_weights(
    positions: np.ndarray, towards: np.ndarray, frequencies: np.ndarray, gain_db: float
) -> np.ndarray:
    """Compute the weights with the highest gain over noise from all sides: complex[B, M, F].

    w = (G + m I)^-1 d / (d^H (G + m I)^-1 d), the MVDR beam for spherically isotropic noise of the
    coherence G (Bitzer and Simmer, 2001), with the smallest loading m of `LOADINGS` that keeps the
    gain over the microphones' own noise, |w^H d|^2 / w^H w, at `gain_db` or more; or, where none
    does, the one with the most.

    Args:
      positions: [M, 3] in metres from the middle of the array.
      towards: [B, 3] unit vectors.
      frequencies: [F] in Hz.
      gain_db: lowest gain over the microphones' own noise.
    """
    arrivals = -(positions @ towards.T) / SPEED_OF_SOUND  # [M, B] seconds after the middle
    steering = np.exp(-2j * np.pi * frequencies * arrivals.T[..., None]).transpose(0, 2, 1)
    coherence = isotropic_coherence(positions, frequencies)
    best = np.zeros_like(steering)
    done = np.zeros(steering.shape[:2], dtype=bool)
    for loading in LOADINGS:
        loaded = coherence + (loading + 1e-9) * np.eye(len(positions))
        solved = np.linalg.solve(loaded[None], steering[..., None])[..., 0]  # [B, F, M]
        weights = solved / np.sum(steering.conj() * solved, axis=2, keepdims=True)
        gain = -10 * np.log10(np.sum(np.abs(weights) ** 2, axis=2))
        best = np.where(done[..., None], best, weights)
        done |= gain >= gain_db
        if done.all():
            break
    return best.transpose(0, 2, 1)


def isotropic_coherence(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Return the coherence of noise from all sides between microphones: float64[F, M, M].

    Args:
      positions: [M, 3] in metres.
      frequencies: [F] in Hz.
    """
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    return np.sinc(2 * frequencies[:, None, None] * apart / SPEED_OF_SOUND)
