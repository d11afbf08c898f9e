"""Synthetic sounds without speech: noise, tones, notes, knocks, and mixtures of them."""

from collections.abc import Callable

import numpy as np
from scipy.fft import next_fast_len
from scipy.signal import butter, sosfilt

Rng = np.random.Generator


def synthetic_sound(rng: Rng, size: int, rate: int) -> np.ndarray:
    """Return a random sound in which nobody speaks: a mixture of one to three `SOURCES`.

    Args:
      rng: source of randomness.
      size: number of samples S.
      rate: sampling rate in Hz.

    Returns:
      [S] float32. The peak is 3 to 70 dB below full scale. A third of the sounds are rounded to 16
      bits, so that quiet ones become noise of a few steps.
    """
    total = np.zeros(size)
    number = rng.choice([1, 2, 3], p=[0.6, 0.3, 0.1])
    for name in rng.choice(list(SOURCES), number, replace=False):
        source = SOURCES[name](rng, size, rate)
        total += rng.lognormal() * source / max(np.abs(source).max(), 1e-9)
    # A noise floor; without one, pauses between sounds are digital silence.
    if rng.random() < 0.8:
        total += 10 ** (rng.uniform(-90, -20) / 20) * rng.standard_normal(size)
    peak = 10 ** (rng.uniform(-70, -3) / 20)
    samples = peak * total / max(np.abs(total).max(), 1e-9)
    if rng.random() < 1 / 3:
        samples = np.round(samples * 2**15) / 2**15
    return samples.astype(np.float32)


def noise(rng: Rng, size: int, rate: int) -> np.ndarray:
    """Return noise of a random colour; half of the noises have a band, half a varying level."""
    # Power 1 / f^a for a from -0.3 (bluish) over 1 (pink) to 2 (brown).
    length = next_fast_len(size, real=True)
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum /= np.arange(1, len(spectrum) + 1) ** (rng.uniform(-0.3, 2.0) / 2)
    samples = np.fft.irfft(spectrum, length)[:size]
    if rng.random() < 0.5:
        low = rng.uniform(30, rate / 5)
        high = rng.uniform(1.2 * low, 0.45 * rate)
        samples = sosfilt(butter(2, (low, high), "bandpass", fs=rate, output="sos"), samples)
    return samples * envelope(rng, size, rate) if rng.random() < 0.5 else samples


def tones(rng: Rng, size: int, rate: int) -> np.ndarray:
    """Return one to three harmonic tones, steady or gliding, with or without vibrato."""
    total = np.zeros(size)
    time = np.arange(size) / rate
    for _ in range(rng.integers(1, 4)):
        octaves = rng.choice([0.0, rng.uniform(-1, 1)]) * np.linspace(0, 1, size)
        vibrato = rng.choice([0.0, 0.02]) * np.sin(2 * np.pi * rng.uniform(3, 8) * time)
        start = np.exp2(rng.uniform(np.log2(30), np.log2(rate / 5)))
        total += harmonics(rng, start * np.exp2(octaves) * (1 + vibrato), rate)
    return total * envelope(rng, size, rate) if rng.random() < 0.6 else total


def notes(rng: Rng, size: int, rate: int) -> np.ndarray:
    """Return single notes or chords that fade, in a regular or an irregular rhythm."""
    total = np.zeros(size)
    key, beat = rng.uniform(60, 500), rng.uniform(0.1, 1.0) * rate
    start = 0.0
    while start < size:
        begin = int(start)
        length = min(int(rng.uniform(0.5, 3) * beat), size - begin)
        fading = np.exp(-np.arange(length) / (rng.uniform(0.1, 1.0) * beat))
        for semitones in rng.choice(25, rng.integers(1, 5), replace=False):
            pitch = np.full(length, key * 2 ** (semitones / 12))
            total[begin : begin + length] += harmonics(rng, pitch, rate) * fading
        start += beat * rng.choice([1, 1, 1, 0.5, 2])
    return total


def knocks(rng: Rng, size: int, rate: int) -> np.ndarray:
    """Return clicks and knocks at random times, 0.3 to 30 per second, that ring briefly."""
    total = np.zeros(size)
    per_second = 10 ** rng.uniform(-0.5, 1.5)
    for begin in rng.integers(0, size, 1 + rng.poisson(per_second * size / rate)):
        length = min(int(rng.uniform(0.001, 0.3) * rate), size - begin)
        time = np.arange(length) / rate
        ring = rng.choice([0, 1]) * rng.standard_normal(length)
        for _ in range(rng.integers(1, 5)):
            ring += np.sin(2 * np.pi * rng.uniform(50, 0.4 * rate) * time + rng.random())
        fading = np.exp(-time / rng.uniform(0.001, 0.1))
        total[begin : begin + length] += rng.lognormal() * ring * fading
    return total


def envelope(rng: Rng, size: int, rate: int) -> np.ndarray:
    """Return a varying level [S] between 0 and 1: pulses, a slow wave, or random slopes."""
    time = np.arange(size) / rate
    kind = rng.choice(["pulses", "wave", "slopes"])
    if kind == "pulses":
        period = 10 ** rng.uniform(-1.3, 0.3)
        return (time % period < rng.uniform(0.1, 0.9) * period).astype(float)
    if kind == "wave":
        wave = np.sin(2 * np.pi * 10 ** rng.uniform(-0.5, 1) * time)
        return 1 - rng.uniform(0.2, 1) * (1 + wave) / 2
    points = max(2, round(size / rate * rng.uniform(0.5, 6)))
    levels = 10 ** (rng.uniform(-40, 0, points) / 20)
    return np.interp(np.arange(size), np.linspace(0, size, points), levels)


def harmonics(rng: Rng, pitch: np.ndarray, rate: int) -> np.ndarray:
    """Return a tone of the pitch [S] in Hz, with 1 to 20 harmonics below 0.45 of the rate."""
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    decay = rng.uniform(0.3, 2)
    highest = 0.45 * rate / pitch.max(initial=1.0)
    amplitudes = []
    for number in range(1, min(rng.choice([1, 2, 4, 8, 20]), int(highest)) + 1):
        level = rng.uniform(0.3, 1) / number**decay
        amplitudes.append(level * np.exp(2j * np.pi * rng.random()))
    # Harmonic k is the imaginary part of a_k z^k with z = exp(i phase). This polynomial is computed
    # by Horner's scheme, which is faster than a sine of each harmonic.
    oscillation, total = np.zeros((2, len(pitch)), dtype=np.complex64)
    angle = (phase % (2 * np.pi)).astype(np.float32)
    oscillation.real, oscillation.imag = np.cos(angle), np.sin(angle)
    for amplitude in reversed(amplitudes):
        total += np.complex64(amplitude)
        total *= oscillation
    return total.imag


SOURCES: dict[str, Callable[[Rng, int, int], np.ndarray]] = {
    "noise": noise,
    "tones": tones,
    "notes": notes,
    "knocks": knocks,
}
"""Sounds by name, as functions of (rng, number of samples, rate in Hz)."""
