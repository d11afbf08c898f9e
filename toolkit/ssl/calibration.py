"""Calibration of a teacher's posteriors, which serve as confidences of its targets (C10).

The student learns from posteriors instead of transcripts with confidences, which is sound if the
posteriors are calibrated: of the frames whose best senone has probability p, a share p must be
correct.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.features.low_frame_rate import centre
from toolkit.features.store import FeatureStore
from toolkit.processes.bars import Bar
from toolkit.ssl.figures import reliability_figure
from toolkit.ssl.logits import TrainedModel, compute_logits, sample_utterances
from toolkit.ssl.targets import TargetError
from toolkit.storage.files import write_atomically
from toolkit.train.corpus import Alignments

BINS = 15
"""Number of bins of equal width (Guo et al. 2017: 15)."""
TEMPERATURES = tuple(2 ** (step / 12) for step in range(-24, 25))
"""Temperatures tried: 1/4 to 4, 6 % apart, including 1."""


@dataclass(frozen=True)
class CalibrationConfig:
    """Amount of data on which calibration is measured."""

    utterances: int = 500
    """Largest number of utterances, sampled by a checksum of their ids."""

    def __post_init__(self) -> None:
        if self.utterances < 1:
            raise ValueError("utterances must be 1 or more")


class Reliability:
    """Reliability diagram: frames binned by the probability of their best senone."""

    def __init__(self) -> None:
        self.frames = np.zeros(BINS, dtype=np.int64)
        """[BINS]: number of frames."""
        self.confidence = np.zeros(BINS)
        """[BINS]: sum of the probabilities."""
        self.correct = np.zeros(BINS)
        """[BINS]: number of frames whose best senone is correct."""

    def add(self, confidence: np.ndarray, correct: np.ndarray) -> None:
        """Add frames: [T] probability of the best senone, [T] whether it is correct."""
        index = np.minimum((confidence * BINS).astype(int), BINS - 1)
        self.frames += np.bincount(index, minlength=BINS)
        self.confidence += np.bincount(index, confidence, minlength=BINS)
        self.correct += np.bincount(index, correct, minlength=BINS)

    @property
    def error(self) -> float:
        """The expected calibration error (ECE), 0 to 1."""
        return float(np.abs(self.confidence - self.correct).sum() / self.frames.sum())

    def rows(self) -> list[tuple[int, float, float]]:
        """Return (frames, mean confidence, accuracy) of every bin."""
        number = np.maximum(self.frames, 1)
        columns = self.frames, self.confidence / number, self.correct / number
        return [(int(n), float(c), float(r)) for n, c, r in zip(*columns, strict=True)]


class TemperatureSweep:
    """Negative log-likelihood and reliability of logits at each of the temperatures."""

    def __init__(self) -> None:
        self.frames = 0
        self.correct = 0
        self.loss = np.zeros(len(TEMPERATURES))
        """[TEMPERATURES]: negative log-likelihood, summed over the frames."""
        self.reliability = [Reliability() for _ in TEMPERATURES]

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Add frames: logits [T, C] and the reference senones [T]."""
        logits = logits.double()
        highest, best = logits.max(dim=-1)
        correct = (best == targets).cpu().numpy()
        reference = logits.gather(1, targets[:, None])[:, 0]
        self.frames += len(targets)
        self.correct += int(correct.sum())
        for number, temperature in enumerate(TEMPERATURES):
            log_sum = (logits / temperature).logsumexp(dim=-1)
            self.loss[number] += float((log_sum - reference / temperature).sum())
            confidence = (highest / temperature - log_sum).exp().cpu().numpy()
            self.reliability[number].add(confidence, correct)

    def summary(self) -> dict[str, float]:
        """Return the results at temperature 1 and at the one with the highest likelihood."""
        one, best = TEMPERATURES.index(1.0), int(self.loss.argmin())
        return {
            "frames": self.frames,
            "frame_accuracy": self.correct / self.frames,
            "ece": self.reliability[one].error,
            "nll": float(self.loss[one]) / self.frames,
            "temperature": TEMPERATURES[best],
            "ece_at_temperature": self.reliability[best].error,
            "nll_at_temperature": float(self.loss[best]) / self.frames,
        }


def measure_calibration(
    teacher: TrainedModel,
    features: Path,
    alignments: Alignments,
    config: CalibrationConfig,
    out: Path,
) -> dict[str, float]:
    """Measure the calibration of a teacher on aligned data that it was not trained on.

    Args:
      teacher: the model.
      features: a feature store of held-out data.
      alignments: reference senones of the raw frames; utterances without any are left out.
      config: amount of data.
      out: gets `calibration.json` (the summary, and the bins at temperature 1) and
        `reliability.png`.

    Returns:
      `frames`, `frame_accuracy`, `ece` (expected calibration error) and `nll` (per frame, natural
      logarithm); `temperature`, the divisor of the logits with the lowest `nll`, to 6 %; `ece` and
      `nll` at that temperature.

    Raises:
      TargetError: no utterance is aligned, or the alignment does not fit the teacher.
    """
    store, aligned = FeatureStore(features), set(alignments.ids)
    usable = [name for name in store.ids if name in aligned and store.num_frames(name)]
    names = sample_utterances(usable, config.utterances)
    sums = TemperatureSweep()
    computed = compute_logits([teacher.load()], store, names)
    for name, (logits,) in Bar(computed, "posteriors", len(names)):
        sums.add(logits, _targets(name, alignments, store.num_frames(name), logits.shape[1]))
    if not sums.frames:
        raise TargetError(
            f"no utterance of {features} is aligned: there is nothing to compare with"
        )
    summary = sums.summary()
    one = sums.reliability[TEMPERATURES.index(1.0)]
    best = sums.reliability[TEMPERATURES.index(summary["temperature"])]
    shown = {"As it is": one, f"Temperature {summary['temperature']:.2f}": best}
    plain = {**summary, "bins": one.rows()}
    write_atomically(out / "calibration.json", json.dumps(plain, indent=1) + "\n")
    figure = reliability_figure(
        {title: found.rows() for title, found in shown.items()},
        {title: found.error for title, found in shown.items()},
    )
    write_atomically(out / "reliability.png", figure)
    return summary


def _targets(name: str, alignments: Alignments, frames: int, senones: int) -> Tensor:
    """Return the reference senones of the low-rate frames at offset 0."""
    targets = torch.as_tensor(alignments.load(name)).long()
    if len(targets) != frames:
        raise TargetError(f"{name}: alignment of {len(targets)} frames, features of {frames}")
    if int(targets.max()) >= senones:
        raise TargetError(
            f"{name}: its alignment has senone {int(targets.max())} of a teacher with {senones}"
        )
    return targets[centre(frames)]
