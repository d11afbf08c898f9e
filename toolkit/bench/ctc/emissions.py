"""Made-up posteriors of a CTC model that mishears: what decoders are measured on."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Emissions:
    """How a made-up model speaks."""

    height: float = 7.0
    """What a frame's own symbol has above the others before noise, in log units."""
    noise: float = 2.0
    """Standard deviation of every value, in log units."""
    confusion: float = 0.12
    """Share of labels for which another one is as high."""
    missed: float = 0.02
    """Share of labels for which the blank is as high."""
    longest: int = 3
    """Frames that a label lasts at most."""

    def draw(
        self, labels: Sequence[int], columns: int, blank: int, rng: np.random.Generator,
        frames: int | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Posteriors of an utterance.

        Args:
          labels: what was said.
          columns: of the model.
          blank: the blank's column.
          rng: where everything random comes from.
          frames: of the utterance; without it about 3.6 for every label.

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
            mine = slice(frame, frame + int(lengths[i]))
            logits[mine, label] += self.height
            if rng.random() < self.confusion:
                logits[mine, rng.integers(0, columns)] += self.height
            if rng.random() < self.missed:
                logits[mine, blank] += self.height
            frame = mine.stop
        logits[frame:, blank] += self.height
        logits += self.noise * rng.standard_normal(logits.shape)
        logits -= logits.max(axis=1, keepdims=True)
        return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
