"""The step `stats`: statistics of every shard, merged into the recipe's normaliser (C19).

The statistics merge by addition and give the normaliser in one pass. The recipe's normaliser needs
the mean of all features before it can accumulate statistics of the residuals of the causal mean, so
it makes two passes over stored features. But the residual of frame t, its features x_t minus the
causal mean m_t, is linear in the mean of all features mu:

    x_t - m_t = a_t - mu * b_t,   a_t = x_t - (S + x_0 + ... + x_t) / w_t,   b_t = P / w_t,

with w_t = P + n + t + 1, P the prior's frames, S and n the sum and number of the speaker's
earlier frames; digital silence counts in none of these. So the sums of a, a^2, a * b, b and b^2
give the residuals' statistics for any mu, and files can be accumulated in parallel, in one pass,
before mu is known.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.features.shards import CUTS, CmnState, read_features
from toolkit.features.silence import counted_frames
from toolkit.pipeline.config import StatsConfig
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.shards import Shard, single_shard
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult
from toolkit.processes.devices import torch_threads

PER_DIMENSION = 4  # x, a, a^2, a * b
SCALARS = 2  # b, b^2


class NormaliserStatsError(ToolkitError):
    """Statistics cannot be merged, or there are none."""


@dataclass(frozen=True)
class NormaliserStats:
    """Zeroth, first and second order statistics for the normaliser (C19)."""

    frames: int
    """Number of frames summed."""
    prior_frames: int
    """P, the weight of the causal mean's prior in frames."""
    kind: str
    """Kind of the features, by which digital silence is found."""
    sums: np.ndarray
    """[4F + 2] float64 sums over frames: x, a, a^2 and a * b by dimension, then b and b^2."""

    @classmethod
    def empty(
        cls, dimension: int, prior_frames: int = 200, kind: str = "fbank"
    ) -> "NormaliserStats":
        """Return the statistics of no frames."""
        return cls(0, prior_frames, kind, np.zeros(PER_DIMENSION * dimension + SCALARS))

    @classmethod
    def of(
        cls, features: Tensor, state: CmnState, prior_frames: int = 200, kind: str = "fbank"
    ) -> "NormaliserStats":
        """Accumulate the statistics of one utterance.

        Args:
          features: [T, F] raw features, as stored.
          state: sum and number of the frames of the speaker's earlier utterances.
          prior_frames: P.
          kind: kind of the features.
        """
        # x, a: [T, F] float64; b: [T]. The names are those of the module's docstring.
        x = features[counted_frames(features, kind)].double()
        first = prior_frames + state.frames + 1
        weights = np.arange(first, first + len(x), dtype=np.float64)
        b = prior_frames / weights
        means = (x.cumsum(dim=0) + state.sum).numpy()  # numpy's cumsum takes twice as long
        x = x.numpy()
        means /= weights[:, None]
        a = np.subtract(x, means, out=means)
        by_dimension = (
            x.sum(axis=0),
            a.sum(axis=0),
            np.einsum("tf,tf->f", a, a),
            np.einsum("tf,t->f", a, b),
        )
        sums = np.concatenate([*by_dimension, [b.sum(), (b * b).sum()]])
        return cls(len(x), prior_frames, kind, sums)

    @property
    def dimension(self) -> int:
        """F, the number of features."""
        return (len(self.sums) - SCALARS) // PER_DIMENSION

    def normaliser(self) -> Cmvn:
        """Compute the normaliser, the same as `estimate_normaliser` gives in two passes.

        Raises:
          NormaliserStatsError: there are no frames.
        """
        if not self.frames:
            raise NormaliserStatsError("there are no frames to estimate a normaliser from")
        x, a, a_squares, ab = self.sums[:-SCALARS].reshape(PER_DIMENSION, -1)
        b, b_squares = self.sums[-SCALARS:]
        # Sums over t of r = a - mu * b and of r^2 = a^2 - 2 * mu * a * b + mu^2 * b^2.
        mean = x / self.frames
        residual = GlobalStats(
            self.frames,
            torch.from_numpy(a - mean * b),
            torch.from_numpy(a_squares - 2 * mean * ab + mean**2 * b_squares),
        )
        return Cmvn(torch.from_numpy(mean), residual, self.prior_frames, kind=self.kind)

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON, which preserves float64 exactly."""
        return {
            "frames": self.frames,
            "prior_frames": self.prior_frames,
            "kind": self.kind,
            "sums": self.sums.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict) -> "NormaliserStats":
        """Restore statistics from the result of `to_dict`."""
        sums = np.array(values["sums"], np.float64)
        return cls(values["frames"], values["prior_frames"], values["kind"], sums)


def merge(parts: Iterable[NormaliserStats]) -> NormaliserStats:
    """Add up statistics in the order given, in constant memory.

    Neumaier's compensated summation keeps the error of half a million files at that of a single
    addition.

    Raises:
      NormaliserStatsError: `parts` is empty, or they differ in dimension, kind or prior.
    """
    total, frames, lost, first = None, 0, None, None
    for part in parts:
        if first is None:
            first, total, lost = part, np.zeros_like(part.sums), np.zeros_like(part.sums)
        if part.sums.shape != first.sums.shape or part.kind != first.kind:
            raise NormaliserStatsError("statistics of different features cannot be merged")
        if part.prior_frames != first.prior_frames:
            raise NormaliserStatsError("statistics with different `prior_frames` cannot be merged")
        # The rounding error of a float64 addition is a float64 itself: sum the errors separately.
        new_total = total + part.sums
        is_larger = np.abs(total) >= np.abs(part.sums)
        lost += np.where(
            is_larger, (total - new_total) + part.sums, (part.sums - new_total) + total
        )
        total, frames = new_total, frames + part.frames
    if first is None:
        raise NormaliserStatsError("there are no statistics to merge")
    return NormaliserStats(frames, first.prior_frames, first.kind, total + lost)


FEATURES = "features"


@dataclass(frozen=True)
class Stats:
    """Accumulate the `NormaliserStats` of one shard and write them to `stats/NNNNNN.json`."""

    config: StatsConfig
    kind: str = "fbank"
    """Kind of the features, see `toolkit.features.silence.counted_frames`."""
    name = "stats"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Accumulate the statistics of one shard; see `Step.run`."""
        shard = single_shard(partition.inputs)
        if not shard.utterances:  # all of a file's audio may be missing
            return StepResult((), (), {"hours": 0.0, "frames": 0})
        with torch_threads(resources.threads):
            total = merge(
                NormaliserStats.of(features, state, self.config.prior_frames, self.kind)
                for _, features, state in read_utterances(shard, store, resources.scratch)
            )
        content = json.dumps(total.to_dict()).encode() + b"\n"
        about = {"hours": shard.hours, "frames": total.frames}
        ref = store.put(f"{out}/stats/{shard.index:06d}.json", content, {"stats": shard.index})
        return StepResult((ref,), (), about)


def plan_shards(shards: Sequence[Shard]) -> list[Partition]:
    """Make a partition of each shard."""
    return [
        Partition(f"{shard.index:06d}", shard.inputs, {"hours": shard.hours, "shard": shard.index})
        for shard in shards
    ]


def read_utterances(
    shard: Shard, store: ObjectStore, scratch: Path
) -> Iterator[tuple[str, Tensor, CmnState]]:
    """Yield id, raw features [T, F] float32 and causal mean state of a shard's utterances."""
    folder = scratch / "inputs"
    cuts = store.local(shard.objects[CUTS], folder)
    tar = store.local(shard.objects[FEATURES], folder)
    with open(cuts, "rb") as lines:
        for line, (name, features) in zip(lines, read_features(tar), strict=True):
            cut = json.loads(line)
            if cut["id"] != name:
                raise StepError(f"{tar.name}: expected utterance {cut['id']}, found {name}")
            total = torch.tensor(cut["custom"]["cmn_sum"], dtype=torch.float64)
            yield name, features, CmnState(cut["custom"]["cmn_frames"], total)


def merge_stats(refs: Iterable[ObjectRef], store: ObjectStore) -> Cmvn:
    """Return the normaliser of all shards' statistics, merged by number in constant memory."""
    ordered = sorted((r for r in refs if "stats" in r.about), key=lambda ref: ref.about["stats"])
    if not ordered:
        raise NormaliserStatsError(
            "no utterance could be read. The file _failures.tsv of each step lists the reasons"
        )
    return merge(
        NormaliserStats.from_dict(json.loads(store.get(ref))) for ref in ordered
    ).normaliser()
