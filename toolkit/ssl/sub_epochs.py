"""Sub-epochs: the schedule of passes over the shards of unlabelled data (C12)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.ssl.selection import Selection
from toolkit.ssl.shards import Example, TeacherShards
from toolkit.train.corpus import FeatureNormaliser
from toolkit.train.distillation import KBestBatch
from toolkit.train.errors import TrainingDataError
from toolkit.train.windows import Stacked


@dataclass(frozen=True)
class Source:
    """A folder of shards, and the selection of its utterances."""

    shards: TeacherShards
    selection: Selection


@dataclass(frozen=True)
class Window:
    """Shards of a sub-epoch that are shuffled together."""

    source: Source
    shards: tuple[int, ...]
    """Indices of the shards."""

    @property
    def frames(self) -> int:
        """Approximate number of selected low-rate frames."""
        return int(self.source.selection.frames[list(self.shards)].sum()) // LOW_RATE_FACTOR

    @property
    def utterances(self) -> int:
        """Number of selected utterances."""
        return int(self.source.selection.utterances[list(self.shards)].sum())


@dataclass(frozen=True)
class TeacherWindow(Stacked):
    """The concatenated utterances of a window, stacked at the offset of their targets."""

    senones: np.ndarray
    """[sum of T', k] uint16: the k best senones."""
    logits: np.ndarray
    """[sum of T', k] float16: their log posteriors."""

    def batch(self, rows: torch.Tensor, **given: object) -> KBestBatch:
        """Make a batch with the targets of `rows` [N, T]; its other fields are given."""
        where = rows.numpy()
        return KBestBatch(
            targets=self.targets[rows].long(),
            senones=torch.from_numpy(self.senones[where].astype(np.int64)),
            logits=torch.from_numpy(self.logits[where].astype(np.float32)),
            **given,
        )


class SubEpochs:
    """An endless sequence of passes over the shards, cut into sub-epochs of equal length.

    The order of the shards in a pass is a function of (seed, number of the pass) alone. A shard
    belongs to the sub-epoch in which its middle lies. Pass p reads source p % (number of sources);
    several sources hold the same data with targets at different offsets.

    Args:
      sources: the data, with targets at one or several offsets.
      normaliser: the student's normaliser of the raw features.
      hours: audio per sub-epoch, before selection; None: one pass makes `count` sub-epochs.
      count: number of sub-epochs.
      room: raw frames per window; a shard with more is a window of its own.
      seed: of the order.

    Raises:
      TrainingDataError: the sources differ or are empty, or a sub-epoch has no shard.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        normaliser: FeatureNormaliser,
        hours: float | None,
        count: int,
        room: int,
        seed: int,
    ) -> None:
        self._sources = sources
        self._normaliser = normaliser
        self._seed = seed
        first = sources[0].shards
        for source in sources[1:]:
            if not np.array_equal(source.shards.frames, first.frames):
                raise TrainingDataError(
                    f"{source.shards.name} and {first.name} do not hold the same utterances"
                )
        self.dimension = first.dimension
        """F, dimension of a raw frame."""
        self.count = count
        """Number of sub-epochs."""
        self._total = int(first.frames.sum())
        if not self._total:
            raise TrainingDataError(
                f"{first.name} has no frames: it holds no utterance, or none long enough for one"
            )
        self.length = self._total / count if hours is None else hours * first.frames_per_hour
        """Raw frames per sub-epoch, before selection."""
        self._windows = [self._cut(number, room) for number in range(count)]
        short = [n + 1 for n, windows in enumerate(self._windows) if not windows]
        if short:
            longest = self.length / first.frames_per_hour
            raise TrainingDataError(
                f"{first.name} has {len(first.frames)} shards, too few for sub-epochs of "
                f"{longest:.3g} hours each (of {short} there is nothing): write shards of "
                f"less than {longest / 2:.3g} hours, or make the sub-epochs longer"
            )

    @property
    def hours(self) -> float:
        """Hours of selected audio in all sub-epochs."""
        frames = sum(window.frames for windows in self._windows for window in windows)
        return frames * LOW_RATE_FACTOR / self._sources[0].shards.frames_per_hour

    def windows(self, number: int) -> list[Window]:
        """Return the windows of a sub-epoch (counted from 0)."""
        return self._windows[number]

    def shards(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (pass, shard) of a sub-epoch, in order."""
        begin, end = number * self.length, (number + 1) * self.length
        frames = self._sources[0].shards.frames
        for pass_number in range(int(begin // self._total), int(end // self._total) + 1):
            order = np.random.default_rng([self._seed, pass_number]).permutation(len(frames))
            ends = np.cumsum(frames[order]) + pass_number * self._total
            middles = ends - frames[order] / 2
            for shard in order[(begin <= middles) & (middles < end)]:
                yield pass_number, int(shard)

    def load(self, window: Window, rank: int, world_size: int) -> TeacherWindow:
        """Read a rank's share of a window: every `world_size`-th utterance of each shard.

        Raises:
          TrainingDataError: no utterance with frames is left.
        """
        shards, taken = window.source.shards, window.source.selection.takes
        found = [  # without the raw features, which are twice as large as the inputs
            (example.name, example.targets, self._inputs(example, shards.offset))
            for shard in window.shards
            for example in shards.read(shard, rank, world_size)
            if len(example.targets) and taken(example)
        ]
        if not found:
            raise TrainingDataError(
                f"shards {', '.join(map(str, window.shards))} of {shards.name} have no utterance "
                f"for process {rank} of {world_size}: write longer shards"
            )
        names, targets, inputs = zip(*found, strict=True)
        length = np.array([len(rows) for rows in inputs])
        senones = np.concatenate([best.ids for best in targets])
        return TeacherWindow(
            names=list(names),
            inputs=torch.cat(inputs),
            targets=torch.from_numpy(senones[:, 0].astype(np.int32)),
            first=np.cumsum(length) - length,
            length=length,
            senones=senones,
            logits=np.concatenate([best.logits for best in targets]),
        )

    def _inputs(self, example: Example, offset: int) -> torch.Tensor:
        """Return stacked frames [T', D]; float16, as in `Corpus.load`."""
        normalised = self._normaliser.apply(example.features, example.state)
        return stack(normalised.half(), offset)

    def _cut(self, number: int, room: int) -> list[Window]:
        """Group consecutive shards of a pass into windows of at most `room` raw frames."""
        made: list[Window] = []
        left, current = 0, None
        for pass_number, shard in self.shards(number):
            source = self._sources[pass_number % len(self._sources)]
            frames = int(source.selection.frames[shard])
            if not source.selection.utterances[shard]:
                continue
            if current != pass_number or frames > left:
                made.append(Window(source, ()))
                left, current = room, pass_number
            made[-1] = Window(source, (*made[-1].shards, shard))
            left -= frames
        return made
