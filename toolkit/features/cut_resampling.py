"""A bound on the resampling that the transforms of a cut ask for."""

import math
from collections.abc import Iterator

from lhotse.cut import Cut, MixedCut

from toolkit.corpus.cuts import UnsafeCutError

NARROW = 8000
"""Hz: the rate of telephones, to and from which `Narrowband` resamples."""
MOST = 1 << 24
"""Values in a filter; lhotse takes some 32 bytes for each. 0.9 of any usual rate needs a hundred,
44.1 to 16 kHz 71,000, 1.00001 of 384 kHz nine billion."""


def check_resampling(cut: Cut) -> None:
    """Check that no transform of the cut resamples between rates with next to no common divisor.

    lhotse's filter has a row for every sample of the new rate and a column for every one of the
    old, divided by the greatest common divisor.

    Raises:
      UnsafeCutError: one does.
    """
    for rate, new in _resamplings(cut):
        if is_costly(rate, new):
            raise UnsafeCutError(
                f"{cut.id}: a transform resamples from {rate} to {new} Hz, whose greatest common"
                f" divisor is {math.gcd(rate, new)}: the filter would take gigabytes; choose"
                " another factor or write its output to a file and name that"
            )


def is_costly(rate: int, new: int) -> bool:
    """Whether a filter between two rates has more than `MOST` values."""
    return rate * new > MOST * math.gcd(rate, new) ** 2


def _resamplings(cut: Cut) -> Iterator[tuple[int, int]]:
    cuts = [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    for recording in (one.recording for one in cuts if one.has_recording):
        for transform in recording.transforms or ():
            if isinstance(transform, dict):
                name, settings = transform["name"], transform["kwargs"]
            else:
                name, settings = type(transform).__name__, vars(transform)
            if name == "Resample":
                yield settings["source_sampling_rate"], settings["target_sampling_rate"]
            elif name == "Narrowband":
                yield settings["source_sampling_rate"], NARROW
            elif name == "Speed":  # at the rate of the recording, wherever it stands
                yield round(recording.sampling_rate * settings["factor"]), recording.sampling_rate
