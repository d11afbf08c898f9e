"""Tells float samples that are scaled to integers from audio in [-1, 1].

Programs that convert 16-bit samples to floats without dividing them by 32768 write such files.
"""

import numpy as np

FLOATS = ("FLOAT", "DOUBLE")
"""libsndfile's names of samples that can have any size."""
LIMIT = 1.5
"""Size of a sample that clipped audio reaches now and then; scaled samples are mostly beyond."""
SHARE = 0.01
"""Share of the samples beyond `LIMIT`, at least, so that no click decides."""
RMS = 1.2
"""Root mean square of the samples, at least. A square wave of full scale has 1, as has audio that
is normalised to unit variance."""
SECONDS = 1.0
"""Length of audio, at least, unless it ends before."""


class SampleScale:
    """Decides whether the samples of a file, given in blocks, are scaled to integers."""

    def __init__(self) -> None:
        self._count = self._beyond = 0
        self._energy = self._peak = 0.0

    def add(self, samples: np.ndarray) -> None:
        """Take the next samples [S] of one channel; those that are not numbers are left out."""
        sizes = np.abs(samples[np.isfinite(samples)], dtype=np.float64)
        if len(sizes):
            self._count += len(sizes)
            self._beyond += int(np.count_nonzero(sizes > LIMIT))
            self._energy += float(np.vdot(sizes, sizes))
            self._peak = max(self._peak, float(sizes.max()))

    @property
    def count(self) -> int:
        """Samples taken so far."""
        return self._count

    @property
    def fault(self) -> str:
        """What is wrong with the samples taken so far, for a message; empty: nothing."""
        if self._beyond <= SHARE * self._count or self._energy <= RMS**2 * self._count:
            return ""
        return (
            f"float samples up to {self._peak:,.5g}, which must lie in [-1, 1]: they look scaled"
            " to integers; divide them by 32768, for example by"
            " `ffmpeg -i y.wav -af volume=1/32768 z.wav`"
        )


def scale_fault(samples: np.ndarray) -> str:
    """Return what is wrong with samples [S] of one channel; empty: nothing.

    Most audio takes one pass: where the energy is low, nothing else is computed.
    """
    if float(np.vdot(samples, samples)) <= RMS**2 * len(samples):
        return ""
    scale = SampleScale()
    scale.add(samples)
    return scale.fault
