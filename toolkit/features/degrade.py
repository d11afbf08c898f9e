"""Reverberation and noise as transforms of lhotse's recordings; timestamps stay valid."""

from dataclasses import dataclass

import numpy as np
from lhotse.augmentation import AudioTransform

from toolkit.features.audio import load_audio


class _InPlace(AudioTransform):
    """A transform that does not move samples in time."""

    def reverse_timestamps(
        self, offset: float, duration: float | None, sampling_rate: int
    ) -> tuple[float, float | None]:
        """Return the same span, see lhotse."""
        return offset, duration


@dataclass
class Reverberate(_InPlace):
    """Convolution with a room impulse response, the delay of its highest peak removed.

    The power stays the same, so that levels remain comparable.
    """

    path: str
    """Audio file of the impulse response."""
    channel: int
    """Index of the channel of the impulse response."""

    def __call__(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Convolve [channels, S] samples."""
        response = load_audio(self.path, sampling_rate, channel=self.channel).numpy()
        delay = int(np.abs(response).argmax())
        length = samples.shape[1]
        from scipy.signal import fftconvolve

        wet = fftconvolve(samples, response[None], axes=1)[:, delay : delay + length]
        power = _power(wet)
        return (wet * np.sqrt(_power(samples) / power) if power > 0 else wet).astype(np.float32)


@dataclass
class AddNoise(_InPlace):
    """Additive noise at a given signal-to-noise ratio over the whole utterance."""

    path: str
    """Audio file of the noise; repeated where it is too short."""
    start: float
    """Start of the excerpt of the noise, in seconds."""
    snr: float
    """Signal-to-noise ratio in dB."""

    def __call__(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Add the noise to [channels, S] samples."""
        noise = self._noise(samples.shape[1], sampling_rate)
        power = _power(noise)
        if power == 0:
            return samples
        gain = np.sqrt(_power(samples) / (power * 10 ** (self.snr / 10)))
        return (samples + gain * noise).astype(np.float32)

    def _noise(self, length: int, rate: int) -> np.ndarray:
        whole = load_audio(self.path, rate).numpy()
        first = min(round(self.start * rate), len(whole) - 1)
        return np.resize(np.roll(whole, -first), length)


def _power(samples: np.ndarray) -> float:
    return float(np.mean(np.square(samples, dtype=np.float64)))
