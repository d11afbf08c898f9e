"""Noise and playback signals: synthetic ones, and babble and speech from the corpus itself."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.signal import butter, lfilter

from local.synthetic.sound import SAMPLING_RATE, coloured_noise

Rng = np.random.Generator
BABBLE_TALKERS = 4
"""Number of talkers in babble."""


def white(rng: Rng, length: int) -> np.ndarray:
    """White noise: hiss."""
    return coloured_noise(rng, length, 0.0)


def pink(rng: Rng, length: int) -> np.ndarray:
    """Noise of power 1 / f to 1 / f^2: traffic, wind, ventilation."""
    return coloured_noise(rng, length, rng.uniform(1.0, 2.0))


def hum(rng: Rng, length: int) -> np.ndarray:
    """Mains hum: harmonics of 50 or 60 Hz, and some noise."""
    time = np.arange(length) / SAMPLING_RATE
    mains = rng.choice((50.0, 60.0))
    tones = sum(
        rng.uniform(0.3, 1.0) / k**0.7 * np.sin(2 * np.pi * (mains * k * time + rng.random()))
        for k in range(1, 25)
    )
    return unit_power(unit_power(tones) + 0.3 * pink(rng, length))


def appliance(rng: Rng, length: int) -> np.ndarray:
    """A motor of varying speed with a fan: harmonics over broadband, pulsating noise."""
    time = np.arange(length) / SAMPLING_RATE
    wander = np.cumsum(1 + 0.01 * np.sin(2 * np.pi * rng.uniform(0.1, 0.5) * time)) / SAMPLING_RATE
    pitch = rng.uniform(80.0, 240.0)
    tones = sum(
        rng.uniform(0.2, 1.0) / k * np.sin(2 * np.pi * (pitch * k * wander + rng.random()))
        for k in range(1, 16)
    )
    band = (rng.uniform(150.0, 400.0), rng.uniform(3000.0, 6500.0))
    air = lfilter(*butter(2, band, "bandpass", fs=SAMPLING_RATE), rng.standard_normal(length))
    pulse = 1 + 0.3 * np.sin(2 * np.pi * (rng.uniform(0.5, 6.0) * time + rng.random()))
    return unit_power(rng.uniform(0.3, 1.0) * unit_power(tones) + pulse * unit_power(air))


def clatter(rng: Rng, length: int) -> np.ndarray:
    """Dishes: knocks that ring for some hundredths of a second, over faint steady noise."""
    noise = np.zeros(length + SAMPLING_RATE)
    time = np.arange(SAMPLING_RATE // 4) / SAMPLING_RATE
    for start in rng.integers(0, length, rng.poisson(5.0 * length / SAMPLING_RATE)):
        knock = sum(
            np.sin(2 * np.pi * rng.uniform(800.0, 6000.0) * time)
            * np.exp(-time / rng.uniform(0.01, 0.05))
            for _ in range(4)
        )
        noise[start : start + len(time)] += rng.lognormal(0.0, 0.7) * knock
    return unit_power(unit_power(noise[:length]) + 0.25 * pink(rng, length))


def babble(rng: Rng, length: int, speech: Sequence[np.ndarray]) -> np.ndarray:
    """Several talkers at once, each of utterances drawn from `speech`."""
    return unit_power(sum(running_speech(rng, length, speech) for _ in range(BABBLE_TALKERS)))


def running_speech(rng: Rng, length: int, speech: Sequence[np.ndarray]) -> np.ndarray:
    """Utterances drawn from `speech`, one after the other, of equal power."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < length:
        parts.append(unit_power(speech[int(rng.integers(len(speech)))]))
    return unit_power(np.concatenate(parts)[:length])


def music(rng: Rng, length: int) -> np.ndarray:
    """Chords of plucked notes, a bass and a beat, in some key and tempo."""
    beat = int(SAMPLING_RATE * 60 / rng.uniform(85.0, 150.0))
    key, minor = 110.0 * 2 ** (rng.integers(0, 12) / 12), int(rng.random() < 0.5)
    track = np.zeros(length + 4 * beat)
    notes: dict[int, np.ndarray] = {}
    fading = np.exp(-np.arange(beat // 4) / (0.02 * SAMPLING_RATE))
    chords = [(0, 4 - minor, 7), (5, 9 - minor, 12), (7, 11, 14), (-3 - minor, 0, 4 - minor)]
    for number, start in enumerate(range(0, length, beat)):
        chord = chords[number // 4 % 4]
        tune = chord if number % 2 == 0 else (chord[int(rng.integers(3))] + 12,)
        for step, loud in [(step, 1.0) for step in tune] + [(chord[0] - 12, 1.5)]:
            if step not in notes:
                notes[step] = _pluck(rng, key * 2 ** (step / 12), 4 * beat)
            track[start : start + 4 * beat] += loud * notes[step]
        hit = (0.8 if number % 2 else 0.3) * rng.standard_normal(beat // 4) * fading
        track[start : start + len(hit)] += hit
    return unit_power(track[:length])


def _pluck(rng: Rng, pitch: float, length: int) -> np.ndarray:
    """A note of `pitch` Hz: harmonics that fade the sooner the higher they are."""
    time = np.arange(length) / SAMPLING_RATE
    decay = rng.uniform(0.2, 0.5)
    return sum(
        np.sin(2 * np.pi * (pitch * k * time + rng.random())) * np.exp(-time * k**0.5 / decay) / k
        for k in range(1, min(12, int(7000 / pitch)) + 1)
    )


def unit_power(samples: np.ndarray) -> np.ndarray:
    """Scale to a mean square of 1; silence stays silence."""
    power = float(np.mean(np.square(samples, dtype=np.float64)))
    return samples / np.sqrt(power) if power > 0 else samples


KINDS: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "white": white,
    "pink": pink,
    "hum": hum,
    "appliance": appliance,
    "clatter": clatter,
}
"""The kinds of noise that are synthesised without speech."""
