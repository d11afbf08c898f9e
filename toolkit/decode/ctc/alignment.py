"""CTC forced alignment: the best path through the log-probabilities for a given text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from toolkit.decode.ctc.decoder import CtcDecodeError


@dataclass(frozen=True)
class LabelTimes:
    """When the labels of a text stand in the best path."""

    starts: np.ndarray
    """[L] first frame of each label."""
    ends: np.ndarray
    """[L] one beyond its last frame."""
    log_posteriors: np.ndarray
    """[L] sum of the label's log-probabilities over these frames."""
    score: float
    """Log-probability of the path."""


def align_labels(log_probs: np.ndarray, labels: Sequence[int], blank: int) -> LabelTimes:
    """Find the best path of a label sequence.

    Exact, without pruning. Memory grows with the square root of the number of frames: the scores
    are kept every so many frames, and the path is found block by block from the end.

    Args:
      log_probs: [T, C] float32 without NaN.
      labels: [L] without blanks, at least one.
      blank: the blank's column.

    Raises:
      CtcDecodeError: there is no path: too few frames, or one with impossible labels.
    """
    frames, states = len(log_probs), 2 * len(labels) + 1
    marks = np.asarray(labels, dtype=np.int64)
    needed = len(labels) + int((marks[1:] == marks[:-1]).sum())
    if frames < needed:
        raise CtcDecodeError(
            f"{frames} frames are too few for a text of {needed} symbols: do audio and text belong"
            " together?"
        )
    size = max(1, math.isqrt(frames))
    blocks = [log_probs[begin : begin + size] for begin in range(0, frames, size)]
    scores = np.full(states, -math.inf)
    scores[0] = 0.0  # as after a blank
    nothing = np.zeros((0, states), np.int8)
    kept = []
    for block in blocks:
        kept.append(scores.copy())
        _advance(block, marks, blank, scores, nothing)
    state = states - 1 if scores[-1] >= scores[-2] else states - 2
    score = float(scores[state])
    if score == -math.inf:
        raise CtcDecodeError("the text has no path through the posteriors")
    path = np.zeros(frames, np.int64)
    for number in range(len(blocks) - 1, -1, -1):
        block, begin = blocks[number], number * size
        steps = np.zeros((len(block), states), np.int8)
        _advance(block, marks, blank, kept[number], steps)
        for t in range(len(block) - 1, -1, -1):
            path[begin + t] = state
            state -= int(steps[t, state])
    rows = np.flatnonzero(path % 2)
    label = path[rows] // 2
    starts = rows[np.searchsorted(label, np.arange(len(marks)))]
    ends = rows[np.searchsorted(label, np.arange(len(marks)), side="right") - 1] + 1
    found = log_probs[rows, marks[label]].astype(np.float64)
    return LabelTimes(starts, ends, np.bincount(label, found, len(marks)), score)


@njit(cache=True, nogil=True)
def _advance(
    rows: np.ndarray, labels: np.ndarray, blank: int, scores: np.ndarray, steps: np.ndarray
) -> None:
    """Go on by some frames.

    Args:
      rows: [t, C] float32.
      labels: [L].
      blank: the blank's column.
      scores: [2 L + 1] of blanks and labels in turn, changed in place.
      steps: [t, 2 L + 1] gets by how many states the best path into each state has moved on; [0, ]
        if that is not needed.
    """
    for t in range(len(rows)):
        for s in range(len(scores) - 1, -1, -1):
            best, moved = scores[s], 0
            if s > 0 and scores[s - 1] > best:
                best, moved = scores[s - 1], 1
            skips = s > 1 and s % 2 == 1 and labels[s // 2] != labels[s // 2 - 1]
            if skips and scores[s - 2] > best:
                best, moved = scores[s - 2], 2
            scores[s] = best + rows[t, labels[s // 2] if s % 2 == 1 else blank]
            if len(steps) > 0:
                steps[t, s] = moved
