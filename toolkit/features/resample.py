"""The filter that resamples audio, and streaming resampling."""

from fractions import Fraction
from functools import lru_cache

import numpy as np

LARGEST = 100_000
"""Of the numbers of steps down."""
REACH = 10
"""Half the filter's length, in samples of the lower rate; scipy's default, as in `load_audio`."""


def steps(rate: int, new_rate: int) -> tuple[int, int]:
    """Return (up, down), such that new_rate / rate is up / down.

    Where `down` would be above `LARGEST` the ratio is approximated, at 1 MHz to 3e-9, which is a
    sample in hours: the filter would take seconds to be designed.
    """
    ratio = Fraction(new_rate, rate).limit_denominator(LARGEST)
    return max(1, ratio.numerator), ratio.denominator


@lru_cache(maxsize=8)
def lowpass(up: int, down: int) -> np.ndarray:
    """Design the filter of `resample_poly`, which would do so in every call.

    For two rates without a common divisor the filter has millions of coefficients; to design it
    takes over ten times as long as to filter a second of audio.

    Returns:
      [20 * max(up, down) + 1] float32, to be left as it is.
    """
    larger = max(up, down)
    from scipy.signal import firwin

    coefficients = firwin(2 * REACH * larger + 1, 1 / larger, window=("kaiser", 5.0))
    coefficients = coefficients.astype(np.float32)
    coefficients.setflags(write=False)
    return coefficients


class Resampler:
    """Resamples a stream chunk by chunk; together the same as resampling it as a whole.

    Args:
      rate: of the samples, in Hz.
      new_rate: of the result, in Hz; another one.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        self._up, self._down = steps(rate, new_rate)
        larger = max(self._up, self._down)
        self._filter = lowpass(self._up, self._down)
        self._reach = -(-REACH * larger // self._up) + 1
        self._kept = np.zeros(0, np.float32)
        self._begin = 0  # index of the first sample of `_kept`: a multiple of _down
        self._returned = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take more samples [S] float32; return the resampled ones that are final."""
        self._kept = np.concatenate([self._kept, samples])
        received = self._begin + len(self._kept)
        found = self._until(max(0, (received - self._reach) * self._up // self._down))
        needed = self._returned * self._down // self._up - self._reach
        drop = max(0, needed // self._down * self._down - self._begin)
        self._kept, self._begin = self._kept[drop:], self._begin + drop
        return found

    def finish(self) -> np.ndarray:
        """Return the rest: S samples have become round(S * new_rate / rate), half up."""
        received = self._begin + len(self._kept)
        return self._until((2 * received * self._up + self._down) // (2 * self._down))

    def _until(self, end: int) -> np.ndarray:
        if end <= self._returned:
            return np.zeros(0, np.float32)
        from scipy.signal import resample_poly

        converted = resample_poly(self._kept, self._up, self._down, window=self._filter)
        before = self._begin // self._down * self._up
        found = converted[self._returned - before : end - before].astype(np.float32)
        self._returned = end
        return found
