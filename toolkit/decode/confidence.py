"""Confidence in recognised words: posteriors from lattices, calibrated on development data."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from toolkit.config.convert import read_plain
from toolkit.errors import ToolkitError
from toolkit.score.align import align
from toolkit.storage.files import write_atomically


class CalibrationError(ToolkitError):
    """A calibration that cannot be read."""


BINS = 10
"""Of equal width, for the calibration error."""
PRIOR = np.array([0.0, 1.0])
"""The line that changes nothing."""


def word_confidences(words: Sequence[int], samples: Sequence[tuple[int, ...]]) -> list[float]:
    """The share of sampled word sequences that agree with each word.

    Sequences are aligned with `words` by edit distance, as in minimum Bayes risk decoding: when a
    lattice writes its words does not matter, and a word said twice is not mixed up with itself.
    The shares are those of one more sample that agrees by half: none is 0 or 1.

    Args:
      words: the recognised words.
      samples: from `toolkit.fsa.nbest.sampled_words`.
    """
    agreeing = np.full(len(words), 0.5)
    counts: dict[tuple[int, ...], int] = {}
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

    @classmethod
    def fit(cls, confidences: Sequence[float], correct: Sequence[bool]) -> "Calibration":
        """Logistic regression; offset and slope - 1 are normal with variance 1 beforehand.

        So little data change little, and a fit exists where all words are right.

        Args:
          confidences: posteriors between 0 and 1, both excluded.
          correct: whether each of the words was right.
        """
        odds = _log_odds(np.asarray(confidences, dtype=float))
        right = np.asarray(correct, dtype=float)
        inputs = np.stack([np.ones_like(odds), odds])

        def likelihood(line: np.ndarray) -> float:
            found = line @ inputs
            prior = 0.5 * float(((line - PRIOR) ** 2).sum())
            return float((right * found - np.logaddexp(0, found)).sum()) - prior

        line = PRIOR
        for _ in range(100):  # Newton's steps, halved until they help
            probability = _sigmoid(line @ inputs)
            slope = inputs @ (right - probability) - (line - PRIOR)
            curvature = (inputs * (probability * (1 - probability))) @ inputs.T + np.eye(2)
            step = np.linalg.solve(curvature, slope)
            while likelihood(line + step) < likelihood(line) and np.abs(step).max() > 1e-9:
                step = step / 2
            if np.abs(step).max() <= 1e-9:
                break
            line = line + step
        return cls(float(line[0]), float(line[1]))

    def __call__(self, confidences: Sequence[float]) -> list[float]:
        """Probabilities of being right."""
        odds = _log_odds(np.asarray(confidences, dtype=float))
        return _sigmoid(self.offset + self.slope * odds).tolist()

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read what `save` wrote.

        Raises:
          CalibrationError: naming the file.
        """
        return read_plain(path, cls, CalibrationError, "decode again")


def calibration_error(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """The expected calibration error (ECE), 0 to 1.

    The mean over words of |mean confidence - share of right words| of the word's bin; `BINS` bins
    of equal width.
    """
    if not len(confidences):
        return float("nan")
    values, right = np.asarray(confidences), np.asarray(correct, dtype=float)
    place = np.minimum((values * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, values - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(values))


def cross_entropy_gain(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Normalised cross entropy (NCE, NIST): 1 is certainty, 0 what the error rate alone says.

    Negative when confidences mislead; not a number when all words are right or all are wrong.
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
