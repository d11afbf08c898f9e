"""Word confidences: posteriors from lattices, calibrated on development data."""

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from toolkit.config.convert import read_plain
from toolkit.errors import ToolkitError
from toolkit.score.alignment import align
from toolkit.storage.files import write_atomically


class CalibrationError(ToolkitError):
    """A calibration that cannot be read."""


BINS = 10
"""Number of bins, of equal width, for the calibration error."""
PRIOR = np.array([0.0, 1.0])
"""Offset and slope of the calibration that leaves confidences as they are."""


def word_confidences(
    words: Sequence[Hashable], samples: Sequence[tuple[Hashable, ...]]
) -> list[float]:
    """Return, for each word, the share of sampled word sequences that contain it there.

    Sequences are aligned with `words` by edit distance, as in minimum Bayes risk decoding, so that
    the times at which a lattice outputs its words do not matter, and the two occurrences of a
    repeated word are kept apart. Half a count is added for agreement and half a count against it,
    so that no share is 0 or 1.

    Args:
      words: the recognised words, by their ids or names.
      samples: such as those from `toolkit.fsa.nbest.sampled_words`.
    """
    agreeing = np.full(len(words), 0.5)
    counts: dict[tuple[Hashable, ...], int] = {}
    for sample in samples:
        counts[sample] = counts.get(sample, 0) + 1
    for sample, count in counts.items():
        pairs = align(list(words), list(sample))
        agreeing += [count * (ours == theirs) for ours, theirs in pairs if ours is not None]
    return (agreeing / (len(samples) + 1)).tolist()


@dataclass(frozen=True)
class Calibration:
    """A straight line from the log-odds of posteriors to those of probabilities."""

    offset: float = 0.0
    slope: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.offset) and math.isfinite(self.slope)):
            raise ValueError(f"offset is {self.offset}, slope {self.slope}: need to be finite")

    @classmethod
    def fit(cls, confidences: Sequence[float], correct: Sequence[bool]) -> "Calibration":
        """Fit by logistic regression with a standard normal prior on offset and slope - 1.

        The prior keeps the calibration near the identity when there is little data, and gives a
        fit even where all words are right.

        Args:
          confidences: posteriors between 0 and 1, both excluded.
          correct: whether each of the words was right.
        """
        odds = _log_odds(np.asarray(confidences, dtype=float))
        right = np.asarray(correct, dtype=float)
        inputs = np.stack([np.ones_like(odds), odds])

        def log_posterior(line: np.ndarray) -> float:
            logits = line @ inputs
            prior = 0.5 * float(((line - PRIOR) ** 2).sum())
            return float((right * logits - np.logaddexp(0, logits)).sum()) - prior

        line = PRIOR
        for _ in range(100):  # Newton steps, halved until they improve the fit
            probability = _sigmoid(line @ inputs)
            slope = inputs @ (right - probability) - (line - PRIOR)
            curvature = (inputs * (probability * (1 - probability))) @ inputs.T + np.eye(2)
            step = np.linalg.solve(curvature, slope)
            while log_posterior(line + step) < log_posterior(line) and np.abs(step).max() > 1e-9:
                step = step / 2
            if np.abs(step).max() <= 1e-9:
                break
            line = line + step
        return cls(float(line[0]), float(line[1]))

    def __call__(self, confidences: Sequence[float]) -> list[float]:
        """Return the calibrated probability that each word is right."""
        odds = _log_odds(np.asarray(confidences, dtype=float))
        return _sigmoid(self.offset + self.slope * odds).tolist()

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read what `save` wrote.

        Raises:
          CalibrationError: the file cannot be read; the message names it.
        """
        return read_plain(path, cls, CalibrationError, "decode again")


def calibration_error(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Return the expected calibration error (ECE), 0 to 1.

    This is the mean over words of |mean confidence - share of right words| in the word's bin, with
    `BINS` bins of equal width.
    """
    if not len(confidences):
        return float("nan")
    values, right = np.asarray(confidences), np.asarray(correct, dtype=float)
    bins = np.minimum((values * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, values - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(values))


def cross_entropy_gain(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Return the normalised cross entropy (NCE) of NIST.

    It is 1 for confidences that are certain and right, 0 for those that tell no more than the
    error rate, negative for misleading ones, and NaN when all words are right or all are wrong.
    """
    values, right = np.asarray(confidences), np.asarray(correct, dtype=float)
    share = right.mean() if len(right) else 0.0
    if share in (0.0, 1.0):
        return float("nan")
    prior = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    entropy = -np.log(np.where(right > 0, values, 1 - values)).mean()
    return float((prior - entropy) / prior)


def _log_odds(values: np.ndarray) -> np.ndarray:
    return np.log(values) - np.log1p(-values)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))
