"""Streaming resampling of audio."""

import math

import numpy as np
from scipy.signal import firwin, resample_poly

REACH = 10
"""Half the filter's length, in samples of the lower rate; scipy's default, as in `load_audio`."""


class Resampler:
    """Resamples a stream chunk by chunk; together the same as resampling it as a whole.

    Args:
      rate: of the samples, in Hz.
      new_rate: of the result, in Hz; another one.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        common = math.gcd(rate, new_rate)
        self._up, self._down = new_rate // common, rate // common
        larger = max(self._up, self._down)
        # The filter of resample_poly, made once and not for every chunk.
        self._filter = firwin(2 * REACH * larger + 1, 1 / larger, window=("kaiser", 5.0))
        self._filter = self._filter.astype(np.float32)
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
        converted = resample_poly(self._kept, self._up, self._down, window=self._filter)
        before = self._begin // self._down * self._up
        found = converted[self._returned - before : end - before].astype(np.float32)
        self._returned = end
        return found
