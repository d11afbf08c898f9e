"""Mixes an utterance as the microphones of a device in a room record it."""

from dataclasses import dataclass

import numpy as np
from scipy import fft

from local.farfield.rooms import LEAD, SAMPLING_RATE

DISTORTION = 0.1
"""Distortion by a loudspeaker at its limit: x - 0.1 x^3, a third harmonic of -31 dB."""
PLAYED_PEAK = 0.5
"""Highest sample of the playback channel, whatever the loudness."""
HIGHEST = 0.95
"""Highest sample of a mixture; a louder one is attenuated as a whole."""
CHANGE_SECONDS = 0.05
"""Time that one path of the echo takes to become another."""


@dataclass(frozen=True)
class Levels:
    """Levels of the components, in dB, at the first microphone while the utterance lasts."""

    snr_db: float
    """Reverberant speech over noise."""
    echo_db: float
    """Reverberant speech over echo."""
    self_noise_db: float
    """Reverberant speech over the microphones' own noise."""
    level_db: float
    """The mixture, relative to full scale."""


@dataclass(frozen=True)
class Playback:
    """What the device plays, and how it comes back; M microphones, S samples."""

    samples: np.ndarray
    """float32[S], any level."""
    response: np.ndarray
    """float32[M, R], see `Room.echo`."""
    later: tuple[int, np.ndarray] | None = None
    """A sample, and the response from there on; None: it stays."""


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

    def after(self, lead: int) -> "Mixture":
        """Leave out the samples before `lead`."""
        echo = None if self.echo is None else self.echo[:, lead:]
        return Mixture(
            self.microphones[:, lead:], self.speech[:, lead:], echo, self.playback[lead:]
        )


def mix_in_room(
    dry: np.ndarray,
    talker: np.ndarray,
    noise: np.ndarray,
    playback: Playback | None,
    levels: Levels,
    rng: np.random.Generator,
    lead: int = 0,
) -> Mixture:
    """Mix clean speech, noise and playback as recorded in a room.

    Args:
      dry: float32[S - lead], clean speech.
      talker: float32[M, R], see `Room`.
      noise: float32[M, S], at the microphones, any level.
      playback: what is played, of S samples; None: nothing.
      levels: of the components.
      rng: generator of the microphones' own noise.
      lead: samples before the utterance begins.
    """
    samples = noise.shape[1]
    speech = np.zeros_like(noise)
    speech[:, lead:] = convolve(dry, talker)[:, LEAD : LEAD + samples - lead]
    power = _power(speech[0, lead:])
    total = speech + _gain(power, noise[0, lead:], levels.snr_db) * noise
    echo = None
    reference = np.zeros(samples, dtype=np.float32)
    if playback is not None and np.any(playback.samples):
        reference = playback.samples / np.abs(playback.samples).max()
        echo = _echo(reference - DISTORTION * reference**3, playback)
        echo *= _gain(power, echo[0, lead:], levels.echo_db)
        total += echo
        reference = PLAYED_PEAK * reference
    own = rng.standard_normal(noise.shape, dtype=np.float32)
    total += np.float32(np.sqrt(power) * 10 ** (-levels.self_noise_db / 20)) * own
    peak = max(float(np.abs(total).max()), 1e-9)
    loudness = np.sqrt(max(_power(total[0, lead:]), 1e-18))
    scale = np.float32(min(10 ** (levels.level_db / 20) / loudness, HIGHEST / peak))
    return Mixture(total * scale, speech * scale, None if echo is None else echo * scale, reference)


def reflection(response: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an echo path [M, R] with somebody in the room who reflects the loudspeaker's sound.

    A person who stands half a metre to 1.5 m away sends it back 3 to 9 ms later, 8 to 16 dB lower.
    """
    late = int(rng.uniform(0.003, 0.009) * SAMPLING_RATE)
    changed = response.copy()
    changed[:, late:] += np.float32(10 ** (-rng.uniform(8, 16) / 20)) * response[:, :-late]
    return changed


def convolve(samples: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Convolve [S] with every row of [M, R]: float32[M, S + R - 1]."""
    length = len(samples) + responses.shape[1] - 1
    padded = fft.next_fast_len(length, real=True)
    spectrum = fft.rfft(samples, padded) * fft.rfft(responses, padded)
    return fft.irfft(spectrum, padded)[:, :length]


def _echo(sound: np.ndarray, playback: Playback) -> np.ndarray:
    """The loudspeaker's sound at the microphones [M, S], by one path or first one, then another."""
    part = slice(LEAD, LEAD + len(sound))
    echo = convolve(sound, playback.response)[:, part]
    if playback.later is None:
        return echo
    start, response = playback.later
    since = (np.arange(len(sound)) - start) / (CHANGE_SECONDS * SAMPLING_RATE)
    share = np.clip(since, 0.0, 1.0).astype(np.float32)
    return echo + share * (convolve(sound, response)[:, part] - echo)


def _power(samples: np.ndarray) -> float:
    return float(np.mean(np.square(samples, dtype=np.float64)))


def _gain(power: float, other: np.ndarray, ratio_db: float) -> np.float32:
    """Return the factor that puts `other` at `ratio_db` below `power`."""
    own = _power(other)
    return np.float32(np.sqrt(power / own) * 10 ** (-ratio_db / 20) if own > 0 else 0.0)
