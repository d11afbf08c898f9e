"""Other sampling rates, piece by piece."""

import math

import numpy as np
from scipy.signal import firwin, resample_poly

REACH = 10
"""Half the filter's length, in samples of the lower rate; scipy's default, as in `load_audio`."""


class Resampler:
    """Converts a stream of samples: over all pieces the same as converting it as a whole.

    Args:
      rate: of the samples, in Hz.
      wanted: another rate in Hz.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        common = math.gcd(rate, wanted)
        self._up, self._down = wanted // common, rate // common
        larger = max(self._up, self._down)
        # As resample_poly makes it, once and not for every piece.
        self._filter = firwin(2 * REACH * larger + 1, 1 / larger, window=("kaiser", 5.0))
        self._filter = self._filter.astype(np.float32)
        self._reach = -(-REACH * larger // self._up) + 1
        self._kept = np.zeros(0, np.float32)
        self._begin = 0  # of `_kept`, among all samples: a multiple of _down
        self._given = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take more samples [S] float32; return what can be said already."""
        self._kept = np.concatenate([self._kept, samples])
        received = self._begin + len(self._kept)
        found = self._until(max(0, (received - self._reach) * self._up // self._down))
        needed = self._given * self._down // self._up - self._reach
        drop = max(0, needed // self._down * self._down - self._begin)
        self._kept, self._begin = self._kept[drop:], self._begin + drop
        return found

    def finish(self) -> np.ndarray:
        """Return the rest: S samples have become round(S * wanted / rate), half up."""
        received = self._begin + len(self._kept)
        return self._until((2 * received * self._up + self._down) // (2 * self._down))

    def _until(self, end: int) -> np.ndarray:
        if end <= self._given:
            return np.zeros(0, np.float32)
        converted = resample_poly(self._kept, self._up, self._down, window=self._filter)
        before = self._begin // self._down * self._up
        found = converted[self._given - before : end - before].astype(np.float32)
        self._given = end
        return found
