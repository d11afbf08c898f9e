"""Synthetic posteriors of an erring CTC model, to measure decoders with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Emissions:
    """Parameters of synthetic CTC posteriors."""

    height: float = 7.0
    """Log-probability of a frame's own symbol above the others, before noise is added."""
    noise: float = 2.0
    """Standard deviation of the noise on every log-probability."""
    confusion: float = 0.12
    """Share of labels that have another label with the same score."""
    missed: float = 0.02
    """Share of labels for which the blank has the same score."""
    longest: int = 3
    """Largest number of frames of a label."""

    def draw(
        self, labels: Sequence[int], columns: int, blank: int, rng: np.random.Generator,
        frames: int | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Draw the posteriors of an utterance.

        Args:
          labels: labels of the utterance.
          columns: number of output symbols of the model.
          blank: column of the blank.
          rng: random generator.
          frames: length of the utterance; by default about 3.6 frames per label.

        Returns:
          [T, C] float32 log-probabilities, normalised.

        Raises:
          ValueError: the frames are too few for the labels.
        """
        lengths = rng.integers(1, self.longest + 1, len(labels))
        repeated = sum(a == b for a, b in pairwise(labels))
        if frames is None:
            frames = int(lengths.sum()) + repeated + int(1.6 * len(labels)) + 4
        while lengths.sum() + repeated > frames and lengths.max(initial=1) > 1:
            lengths[lengths.argmax()] -= 1
        spare = frames - int(lengths.sum()) - repeated
        if spare < 0:
            raise ValueError(f"{len(labels)} labels need more than {frames} frames")
        # Blank frames before each label and after the last.
        blanks = np.bincount(rng.integers(0, len(labels) + 1, spare), minlength=len(labels) + 1)
        logits = np.zeros((frames, columns))
        frame = 0
        for i, label in enumerate(labels):
            gap = int(blanks[i]) + (i > 0 and label == labels[i - 1])
            logits[frame : frame + gap, blank] += self.height
            frame += gap
            span = slice(frame, frame + int(lengths[i]))
            logits[span, label] += self.height
            if rng.random() < self.confusion:
                logits[span, rng.integers(0, columns)] += self.height
            if rng.random() < self.missed:
                logits[span, blank] += self.height
            frame = span.stop
        logits[frame:, blank] += self.height
        logits += self.noise * rng.standard_normal(logits.shape)
        logits -= logits.max(axis=1, keepdims=True)
        return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
