"""Causal mean normalisation per speaker, then a global mean and variance (C5, C17, C19).

Systems that decode only whole files can use the mean and variance of the file instead. Features are
stored raw. When they are loaded, a `Cmvn` normalises them with the running sum over the speaker's
earlier utterances, which is stored with each utterance.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.features.config import Scope
from toolkit.features.shards import CmnState, FeatureStore
from toolkit.features.silence import counted_frames
from toolkit.processes.devices import one_thread
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import NATURAL, quoted, read_json, reading

_FORM = {
    "prior_frames": NATURAL,
    "prior_mean": [float],
    "residual": {"count": NATURAL, "sum": [float], "sumsq": [float]},
    "kind": str,
}
QUIETEST = -2.0
"""Lowest normalised value of digital silence, in standard deviations from the mean. Pauses in
recordings have about -1.3. Zeros would have -7 to -10, which no network has seen in training:
without this floor AN4's TDNN-F recognises a word at each edge of a span of zeros."""
MIN_STD = 1e-5  # a dimension that never varies stays at zero


class NormaliserError(ToolkitError):
    """Raised when a normaliser cannot be estimated, read or applied."""


@dataclass(frozen=True)
class GlobalStats:
    """Count, sum and sum of squares of frames, in float64; those of parts can be added (C19)."""

    count: int
    """Number of frames."""
    sum: Tensor
    """[F] sum over the frames."""
    sumsq: Tensor
    """[F] sum of the squares."""

    @classmethod
    def empty(cls, dimension: int) -> "GlobalStats":
        """Return the statistics of no frames."""
        zeros = torch.zeros(dimension, dtype=torch.float64)
        return cls(0, zeros, zeros)

    @classmethod
    def of(cls, features: Tensor) -> "GlobalStats":
        """Return the statistics of frames [T, F]."""
        frames = features.double()
        return cls(len(frames), frames.sum(dim=0), frames.square().sum(dim=0))

    def __add__(self, other: "GlobalStats") -> "GlobalStats":
        return GlobalStats(self.count + other.count, self.sum + other.sum, self.sumsq + other.sumsq)

    @property
    def mean(self) -> Tensor:
        """Mean: [F] float64."""
        return self.sum / self.count

    @property
    def std(self) -> Tensor:
        """Standard deviation of the population, at least 1e-5: [F] float64."""
        # E[x^2] - E[x]^2 in float64, floored because rounding may make it slightly negative.
        variance = self.sumsq / self.count - self.mean.square()
        return variance.clamp(min=MIN_STD**2).sqrt()

    def to_dict(self) -> dict[str, object]:
        """Convert the statistics to plain data for JSON."""
        return {"count": self.count, "sum": self.sum.tolist(), "sumsq": self.sumsq.tolist()}

    @classmethod
    def from_dict(cls, data: dict) -> "GlobalStats":
        """Make statistics from the plain data of `to_dict`."""
        return cls(data["count"], _float64(data["sum"]), _float64(data["sumsq"]))


@dataclass(frozen=True)
class Cmvn:
    """Mean and variance normalisation: causal mean with a prior, then global mean and variance.

    y_t = (x_t - m_t - mean) / std with
    m_t = (prior_frames * prior_mean + S + x_0 + ... + x_t) / (prior_frames + n + t + 1),
    where S and n are the sum and number of the speaker's earlier frames, and mean and std are
    those of x_t - m_t over the training data. The prior is that of Kaldi's OnlineCmvn
    (global_frames = 200); its window of 600 frames is not used: the paper's mean is over all of a
    speaker's audio so far (C17).

    With the scope `whole`, y_t = (x_t - m) / sqrt(v) instead, with x_T the last frame,
    m = (prior_frames * prior_mean + S + x_0 + ... + x_T) / (prior_frames + n + T + 1) and
    v = (prior_frames * std^2 + (x_0 - m)^2 + ... + (x_T - m)^2) / (prior_frames + T + 1).
    With the scope `global`, m_t is the prior mean, and the state is not used.

    Frames of digital silence (`toolkit.features.silence.counted_frames`) are left out of all sums
    and numbers. They are normalised like others, but their y is at least `QUIETEST`.
    """

    prior_mean: Tensor
    """[F] float64: mean of the raw training features."""
    residual: GlobalStats
    """Statistics of x_t - m_t over the training features."""
    prior_frames: int = 200
    """Weight of the prior in frames; 0 for none."""
    scope: Scope = "causal"
    """Which frames a frame's normalisation is computed from."""
    kind: str = "fbank"
    """Kind of the features, by which digital silence is found, see `FeatureStore.kind`."""

    @property
    def online(self) -> bool:
        """Whether the normalisation of a frame does not depend on later frames."""
        return self.scope != "whole"

    def apply(self, features: Tensor, state: CmnState | None = None) -> Tensor:
        """Normalise the features of one utterance.

        Args:
          features: [T, F] raw.
          state: statistics of the speaker's earlier utterances; None for a new speaker.

        Returns:
          [T, F] float32.
        """
        if features.shape[1] != len(self.prior_mean):
            raise NormaliserError(
                f"the features have {features.shape[1]} dimensions, but the normaliser has "
                f"{len(self.prior_mean)}. Extract the features with the model's front end"
            )
        residual = self.subtract_mean(features, state)  # [T, F] x_t - m_t
        counted = counted_frames(features, self.kind).numpy()
        if self.scope == "whole":
            # v of the file, with the prior variance as `prior_frames` frames
            squares = np.square(residual[counted]).sum(axis=0)
            squares += self.prior_frames * self.residual.std.numpy() ** 2
            weight = max(1, self.prior_frames + int(counted.sum()))
            residual /= np.sqrt(np.maximum(squares / weight, MIN_STD**2))
        else:
            residual -= self.residual.mean.numpy()
            residual /= self.residual.std.numpy()
        residual[~counted] = residual[~counted].clip(min=QUIETEST)
        return torch.from_numpy(residual.astype(np.float32))

    def subtract_mean(self, features: Tensor, state: CmnState | None) -> np.ndarray:
        """Return x_t - m_t, or x_t - m for `whole`: [T, F] raw to [T, F] float64."""
        if self.scope == "global":
            return features.numpy().astype(np.float64) - self.prior_mean.numpy()
        subtract = subtract_whole_mean if self.scope == "whole" else subtract_causal_mean
        counted = counted_frames(features, self.kind)
        return subtract(features, counted, self.prior_mean, self.prior_frames, state)

    def save(self, path: Path) -> None:
        """Write the normaliser as JSON."""
        write_atomically(path, self.to_json())

    def to_json(self) -> str:
        """Return the JSON text that `save` writes."""
        data = {
            "prior_frames": self.prior_frames,
            "prior_mean": self.prior_mean.tolist(),
            "residual": self.residual.to_dict(),
            "kind": self.kind,
            **({} if self.scope == "causal" else {"scope": self.scope}),
        }
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> "Cmvn":
        """Read a normaliser that `save` wrote; all values are restored exactly.

        Raises:
          NormaliserError: the file cannot be read, or is damaged; names the file.
        """
        with reading(path, NormaliserError, "estimate it again", "not a normaliser"):
            data = read_json(path, _FORM)
            residual, mean = GlobalStats.from_dict(data["residual"]), _float64(data["prior_mean"])
            if not mean.shape == residual.sum.shape == residual.sumsq.shape or not residual.count:
                raise ValueError("its vectors have different lengths, or its frame count is 0")
            if not all(x.float().isfinite().all() for x in (mean, residual.mean, residual.std)):
                raise ValueError("a mean or standard deviation is beyond the range of float32")
            scope = data.get("scope", "causal")
            if scope not in get_args(Scope):
                raise ValueError(f"its `scope`, {quoted(str(scope))}, is not a known value")
            return cls(mean, residual, data["prior_frames"], scope, data["kind"])


def subtract_causal_mean(
    features: Tensor,
    counted: Tensor,
    prior_mean: Tensor,
    prior_frames: int,
    state: CmnState | None = None,
) -> np.ndarray:
    """Return x_t - m_t as defined in `Cmvn`: [T, F] raw to [T, F] float64.

    Frames that are not `counted` [T] do not change the mean. The function uses numpy, which runs in
    one thread: torch's threads take several times as long when other processes use the cores.
    """
    raw = features.numpy().astype(np.float64)
    start = prior_frames * prior_mean.numpy()
    weight = prior_frames
    if state is not None:
        start = start + state.sum.numpy()
        weight += state.frames
    # m_t: the prior counts as `prior_frames` frames, the state as the frames in its sum.
    counts = counted.numpy()
    # Cumulative sums over the counted frames up to and including t: [T, F].
    means = (raw if counts.all() else raw * counts[:, None]).cumsum(axis=0)
    means += start
    means /= np.maximum(weight + counts.cumsum(), 1).astype(np.float64)[:, None]
    return raw - means


def subtract_whole_mean(
    features: Tensor,
    counted: Tensor,
    prior_mean: Tensor,
    prior_frames: int,
    state: CmnState | None = None,
) -> np.ndarray:
    """Return x_t - m with the mean m over the `counted` frames: [T, F] to [T, F] float64."""
    raw = features.numpy().astype(np.float64)
    # m = (n0 m0 + sum of counted frames) / (n0 + their number), with the prior m0 as n0 frames.
    total = prior_frames * prior_mean.numpy() + raw[counted.numpy()].sum(axis=0)
    weight = prior_frames + int(counted.sum())
    if state is not None:
        total = total + state.sum.numpy()
        weight += state.frames
    return raw - total / max(1, weight)


def estimate_normaliser(
    store: FeatureStore, prior_frames: int = 200, scope: Scope = "causal"
) -> Cmvn:
    """Estimate a normaliser from training features, in float64 and in shard order.

    The prior mean comes from the speakers' stored sums, and the residual's statistics from one pass
    over the features. Both leave out digital silence.

    Raises:
      NormaliserError: the store holds no features, or only digital silence.
    """
    if not store.ids:
        raise NormaliserError(f"{store.path} contains no features to estimate a normaliser from")
    with one_thread():
        totals = [store.speaker_total(speaker) for speaker in store.speakers]
        frames = sum(total.frames for total in totals)
        if not frames:
            raise NormaliserError(
                f"{store.path}: all audio is digital silence. Check the recordings"
            )
        # The mean of all training frames, from sums stored by speaker.
        prior_mean = torch.stack([total.sum for total in totals]).sum(dim=0) / frames
        stats = GlobalStats.empty(len(prior_mean))
        estimated = Cmvn(prior_mean, stats, prior_frames, scope, store.kind)
        for name, features in store.iter():
            residual = estimated.subtract_mean(features, store.cmn_state(name))
            stats += GlobalStats.of(torch.from_numpy(residual)[store.counted(name)])
    return replace(estimated, residual=stats)


def _float64(values: list[float]) -> Tensor:
    """Convert a list of numbers to a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)
