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

    The power of each channel stays the same, so that levels remain comparable.
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
        gain = np.sqrt(np.divide(_power(samples), power, out=np.ones_like(power), where=power > 0))
        return (wet * gain).astype(np.float32)


@dataclass
class AddNoise(_InPlace):
    """Additive noise at a given signal-to-noise ratio over the whole utterance, in each channel."""

    path: str
    """Audio file of the noise; repeated where it is too short."""
    start: float
    """Start of the excerpt of the noise, in seconds."""
    snr: float
    """Signal-to-noise ratio in dB."""

    def __call__(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Add the noise to [channels, S] samples."""
        noise = self._noise(samples.shape[1], sampling_rate)
        power = float(_power(noise[None])[0, 0])
        if power == 0:
            return samples
        gain = np.sqrt(_power(samples) / (power * 10 ** (self.snr / 10)))
        return (samples + gain * noise).astype(np.float32)

    def _noise(self, length: int, rate: int) -> np.ndarray:
        whole = load_audio(self.path, rate).numpy()
        first = min(round(self.start * rate), len(whole) - 1)
        return np.resize(np.roll(whole, -first), length)


def _power(samples: np.ndarray) -> np.ndarray:
    """Return the mean square [channels, 1] of samples [channels, S]."""
    return np.mean(np.square(samples, dtype=np.float64), axis=1, keepdims=True)
