"""Room responses, noise and mixing for the demo corpus."""

import numpy as np

SAMPLING_RATE = 16000
"""Rate of the demo corpus in Hz."""


def to_corpus_rate(samples: np.ndarray, tract: float = 1.0) -> np.ndarray:
    """Resample espeak-ng's int16[S] to float64[S'] at `SAMPLING_RATE`.

    `tract` > 1 plays the speech slower, which lowers the formants like a longer vocal tract does.
    """
    from scipy.signal import resample_poly

    up, down = resampling(tract)
    return resample_poly(samples / 32768.0, up, down)


def resampling(tract: float) -> tuple[int, int]:
    """Return the ratio (up, down) of corpus samples to espeak-ng's samples."""
    # 16000 / 22050 = 320 / 441.
    return round(320 * tract), 441


def room_response(
    rng: np.random.Generator, t60: float, direct_to_reverberant_db: float
) -> np.ndarray:
    """Draw a synthetic room impulse response: the direct sound, then exponentially decaying noise.

    Args:
      t60: seconds in which the reverberation falls by 60 dB.
      direct_to_reverberant_db: ratio of the direct sound's energy to that of the rest, in dB.

    Returns:
      float64[R], R = t60 at `SAMPLING_RATE`, direct sound of 1 at sample 0.
    """
    time = np.arange(int(t60 * SAMPLING_RATE)) / SAMPLING_RATE
    # Polack's model: white noise whose amplitude decays by 60 dB, a factor of 10^-3, in t60.
    tail = rng.standard_normal(len(time)) * 10.0 ** (-3.0 * time / t60)
    # 2 ms without reflections after the direct sound.
    tail[: int(0.002 * SAMPLING_RATE)] = 0.0
    tail *= 10.0 ** (-direct_to_reverberant_db / 20) / np.sqrt(np.sum(tail**2))
    tail[0] = 1.0
    return tail


def coloured_noise(rng: np.random.Generator, length: int, exponent: float) -> np.ndarray:
    """Draw noise of unit power with power density 1 / f^exponent: float64[length]."""
    # Amplitude 1 / f^(exponent / 2); flat below 50 Hz, where it would grow without bound.
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum /= np.maximum(np.arange(len(spectrum)) * SAMPLING_RATE / length, 50.0) ** (
        exponent / 2
    )
    noise = np.fft.irfft(spectrum, length)
    return noise / np.sqrt(np.mean(noise**2))


def mix(
    speech: np.ndarray,
    response: np.ndarray,
    noise: np.ndarray,
    snr_db: float,
    level_db: float,
    lead: int,
    trail: int,
) -> np.ndarray:
    """Put speech float64[S] into a room with noise.

    Args:
      response: impulse response float64[R]; the direct sound keeps its time.
      noise: float64[lead + S + trail], any power.
      snr_db: ratio of the reverberant speech's power to that of the noise, while there is speech.
      level_db: level of the mixture in dB relative to full scale; lower if it would clip.
      lead, trail: samples of noise alone before and after the speech.

    Returns:
      int16[lead + S + trail].
    """
    from scipy.signal import fftconvolve

    wet = fftconvolve(speech, response)[: len(speech) + trail]
    # SNR = 10 log10(power of the reverberant speech / power of the noise).
    power = np.mean(wet[: len(speech)] ** 2)
    noise = noise * np.sqrt(power / np.mean(noise**2)) * 10.0 ** (-snr_db / 20)
    mixture = noise
    mixture[lead : lead + len(wet)] += wet
    mixture *= 10.0 ** (level_db / 20) / np.sqrt(np.mean(mixture**2))
    # Never clip: 0.99 of full scale at most.
    mixture *= min(1.0, 0.99 / np.max(np.abs(mixture)))
    return np.round(mixture * 32767).astype(np.int16)
