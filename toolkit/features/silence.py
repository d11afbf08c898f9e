"""Digital silence: frames that statistics leave out, and time spans in which nobody speaks.

Muted microphones, noise gates and padding produce zeros, for which a front end returns its energy
floor (log 2^-23), up to six standard deviations below speech. A second of zeros would move a
running mean so far that nothing is recognised for seconds.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

KINDS = ("fbank", "fbank_mfcc", "mfcc", "plp")
"""Front ends whose features show digital silence."""

LOG_MEL_FLOOR = -5.0
"""Upper limit of the log-mel energies of digital silence, which are -15.9 for zeros and -14.7 for a
constant value. White noise of a hundredth of a 16-bit step has 0, a quiet pause in a recording 8.
"""
MFCC_FLOOR = -24.0
"""Upper limit of C0 in digital silence, with 23 filters or more. C0 is the sum of the log-mel
energies, divided by the square root of the number of filters."""
PLP_MARK = -(2.0**-10)
"""C0 that `toolkit.features.frontend.Frontend` gives frames of digital silence in PLP, where C0 is
otherwise at least 2^-23."""
QUIETEST_SHARE = 0.1
"""Share of an utterance's frames, the quietest, that replace its digital silence."""
EDGE = 2
"""Frames beside digital silence whose windows (25 ms, a frame every 10 ms) contain some of it."""
SILENT_AFTER = 20
"""Frames of digital silence after which no word can be spoken: 0.2 s. The closure of a stop, which
a noise gate may set to zero, is shorter."""


def counted_frames(features: Tensor, kind: str) -> Tensor:
    """Return which frames count in statistics, i.e. are not digital silence: [T] bool.

    Args:
      features: [T, F] raw features of a front end, or stored ones.
      kind: kind of the front end, see `FrontendConfig.kind`. Other features (such as those of GMMs)
        do not show digital silence, and all of their frames count.

    Returns:
      [T] bool, on the device of the features.
    """
    if kind == "fbank":
        return (features > LOG_MEL_FLOOR).any(dim=1)
    if kind == "fbank_mfcc":  # more than half of the values are log-mel energies
        return (features > LOG_MEL_FLOOR).sum(dim=1) * 2 > features.shape[1]
    if kind == "mfcc":
        return features[:, 0] > MFCC_FLOOR
    if kind == "plp":
        return features[:, 0] >= 0
    return torch.ones(len(features), dtype=torch.bool, device=features.device)


def fill_digital_silence(features: Tensor, counted: Tensor) -> Tensor:
    """Replace an utterance's frames of digital silence by its quietest other frames.

    Deltas and splicing spread digital silence over the frames of speech beside it, and models are
    not trained on such frames.

    Args:
      features: [T, F] raw features whose first value is an energy, such as C0.
      counted: [T] which frames are not digital silence, see `counted_frames`.

    Returns:
      [T, F]: the features themselves if there is nothing to fill, or nothing to fill it with.
    """
    if counted.all():  # almost always: GMM training loads every utterance through here
        return features
    silent = ~counted
    # Windows of the `EDGE` frames on either side of digital silence contain some of it.
    near = torch.nn.functional.max_pool1d(silent[None].float(), 2 * EDGE + 1, 1, EDGE)[0] > 0
    sound = features[counted if near.all() else ~near]
    num_quiet = math.ceil(QUIETEST_SHARE * len(sound))
    if not num_quiet:
        return features
    # [num_quiet, F] in order of time; of equally quiet frames, the first.
    quiet = sound[sound[:, 0].argsort(stable=True)[:num_quiet].sort().values]
    # Windows with so much digital silence that they are quieter than all others are filled, too.
    fill = silent | (near & (features[:, 0] < quiet[:, 0].min()))
    filled = features.clone()
    filled[fill] = quiet[torch.arange(int(fill.sum())) % num_quiet]
    return filled


def spans(frames: Tensor) -> list[list[int]]:
    """Return (first frame, end) of each run of True in [T]."""
    # +1 where a run begins, -1 after its last frame: starts and ends alternate.
    edges = torch.nn.functional.pad(frames.to(torch.int8), (1, 1)).diff()
    return edges.nonzero().view(-1, 2).tolist()


def outside(silent: Sequence[Sequence[int]], num_frames: int) -> Tensor:
    """Return which frames lie outside all (first frame, end) spans: [T] bool."""
    counted = torch.ones(num_frames, dtype=torch.bool)
    for begin, end in silent:
        counted[begin:end] = False
    return counted


class SilentSpans:
    """Finds the frames of an utterance or stream in which no word can be spoken.

    A frame of digital silence belongs to a span if the `SILENT_AFTER` frames before it, or all
    frames before it, are digital silence, too. Later frames do not matter, so that a stream and the
    whole utterance have the same spans.

    Args:
      kind: kind of the front end, see `counted_frames`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._run = SILENT_AFTER  # number of frames of digital silence up to here

    def push(self, features: Tensor) -> Tensor:
        """Take the next raw features [T, F]; return which frames are silent: [T] bool."""
        silent = []
        for counts in counted_frames(features, self._kind).tolist():
            silent.append(not counts and self._run >= SILENT_AFTER)
            self._run = 0 if counts else self._run + 1
        return torch.tensor(silent, dtype=torch.bool)
