"""Unlabelled speech with a teacher's targets: shards, selection, sub-epochs, batches (C11-C13).

The data pipeline's repartition writes a folder of shards: `features.json`, `targets.json` and, in
`shards/`, `cuts.NNNNNN.jsonl`, `features.NNNNNN.tar`, `targets.NNNNNN.tar`. Opening the folder
reads only the two manifests, even if there are half a million shards. Shards in an object store are
opened by `toolkit.pipeline.shard_cache`.

The number of batches of an epoch must be known before the epoch is read. For labelled data it
follows from the lengths of the utterances. For a million hours only the shards' totals are known:
they determine the number of batches, among which the utterances of the shards are divided equally.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, low_rate_length, stack
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import (
    MANIFEST,
    SHARDS,
    CmnState,
    field_file,
    index_arrays,
    read_array,
    to_features,
)
from toolkit.ssl.config import SelectionConfig
from toolkit.ssl.targets import ADVICE, FIELDS, KBest, TargetError
from toolkit.ssl.targets import MANIFEST as TARGETS_MANIFEST
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import DAMAGE_ERRORS, reading, regular, validated
from toolkit.train.batches import Batch, ChunkSampler, ShardGroup, UtteranceSampler, prefetched
from toolkit.train.cross_entropy import KBestBatch
from toolkit.train.errors import TrainingDataError

AHEAD = 8
"""Number of shards that are fetched ahead of their use when all are read in turn."""


@dataclass(frozen=True)
class Example:
    """A training utterance with its targets."""

    name: str
    """Id of the utterance."""
    features: Tensor
    """[T, F] float32, raw."""
    state: CmnState
    """State of the speaker's running mean before the utterance."""
    targets: KBest
    """Targets of the low-rate frames at the shards' offset."""

    @property
    def confidence(self) -> float:
        """The teacher's highest posterior, averaged over the frames; 0 without frames."""
        best = np.exp(self.targets.logits[:, 0].astype(np.float64))
        return float(best.mean()) if len(best) else 0.0


class ShardFiles(Protocol):
    """The files of a set of shards, in a local folder or in an object store."""

    name: str
    """Name of the set in messages: its folder or address."""

    def manifest(self, name: str) -> bytes:
        """Read a manifest of the set: `features.json` or `targets.json`."""

    def open(self, field: str, shard: int) -> BinaryIO:
        """Open a shard's file of a field: `cuts`, `features` or `targets`."""

    def prefetch(self, shards: Sequence[int]) -> None:
        """Begin to fetch shards that will be opened soon, if they are not on this machine."""


class FolderFiles:
    """The files of a local folder.

    Args:
      folder: a folder of shards, see the description of this module.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = Path(folder), str(folder)

    def manifest(self, name: str) -> bytes:
        """Implement `ShardFiles.manifest`."""
        return regular(self._folder / name).read_bytes()

    def open(self, field: str, shard: int) -> BinaryIO:
        """Implement `ShardFiles.open`."""
        return open(self._folder / SHARDS / field_file(field, shard), "rb")

    def prefetch(self, shards: Sequence[int]) -> None:
        """Do nothing: the shards are on this machine."""


class TeacherShards:
    """A set of shards of features with a teacher's targets.

    Args:
      files: the folder of the set, or its files stored elsewhere.

    Raises:
      TargetError: the set has no features or no targets, or a manifest is damaged.
    """

    def __init__(self, files: Path | ShardFiles) -> None:
        self._files = FolderFiles(files) if isinstance(files, Path) else files
        self.name = self._files.name
        """The folder or address, for messages."""
        with reading(self.name, TargetError, ADVICE, "not a folder of targets"):
            targets_content = self._files.manifest(TARGETS_MANIFEST)
            targets = validated(json.loads(targets_content), FIELDS)
        self.num_senones: int = targets["senones"]
        """C, number of senones."""
        self.offset: int = targets["offset"]
        """Offset at which the teacher's targets were computed: the raw frame at which the first
        low-rate frame begins. They are valid for a student's frames at this offset only."""
        try:
            features_content = self._files.manifest(MANIFEST)
            manifest = json.loads(features_content)
            self.digest = digest_bytes(features_content + targets_content)
            """Digest of both manifests, which describe front end, sizes of shards, and teacher."""
            counts = manifest["shards"]
            self.dimension = int(manifest["dimension"])
            """F, dimension of a raw frame."""
            self.frames = np.array([shard["frames"] for shard in counts], dtype=np.int64)
            """[S] number of raw frames of every shard."""
            self.utterances = np.array([shard["utterances"] for shard in counts], dtype=np.int64)
            """[S] number of utterances of every shard."""
            self.frames_per_hour = 3600e3 / manifest["frontend"]["frame_shift_ms"]
            """Raw frames per hour."""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{self.name} is not a folder of features with targets ({error!r})"
            ) from error

    def prefetch(self, shards: Sequence[int]) -> None:
        """Begin to fetch shards that will be read soon, if they are not on this machine."""
        self._files.prefetch(shards)

    def read(self, shard: int, rank: int = 0, world_size: int = 1) -> Iterator[Example]:
        """Read a rank's utterances of a shard: those numbered rank, rank + world_size, ...

        Raises:
          TargetError: a file is missing or damaged, or features and targets do not match.
        """
        try:
            with self._files.open("cuts", shard) as cuts:
                lines = cuts.read().splitlines()
            with (
                self._files.open("features", shard) as features,
                self._files.open("targets", shard) as targets,
            ):
                rows = zip(lines, index_arrays(features), index_arrays(targets), strict=True)
                # A row has an utterance's cut, and the byte ranges of its two arrays.
                for line, (name, *feature_range), (target_name, *target_range) in list(rows)[
                    rank::world_size
                ]:
                    cut = json.loads(line)
                    if not cut["id"] == name == target_name:
                        raise ValueError(
                            f"the cut belongs to the utterance {cut['id']}, but the features "
                            f"belong to {name} and the targets to {target_name}"
                        )
                    state = CmnState(
                        cut["custom"]["cmn_frames"],
                        torch.tensor(cut["custom"]["cmn_sum"], dtype=torch.float64),
                    )
                    array = to_features(read_array(features, *feature_range))
                    best = KBest.unpack(read_array(targets, *target_range))
                    example = Example(name, array, state, best)
                    self._check(example)
                    yield example
        except (*DAMAGE_ERRORS, TargetError) as error:
            raise TargetError(
                f"shard {shard} of {self.name} cannot be read ({error}); write this shard again"
            ) from error

    def _check(self, example: Example) -> None:
        """Check that an utterance's targets fit its features and the teacher."""
        frames, num_targets = len(example.features), len(example.targets)
        if num_targets != low_rate_length(frames, self.offset):
            raise ValueError(
                f"{example.name}: the {num_targets} frames of the targets do not match the "
                f"{frames} raw frames of the features at offset {self.offset}"
            )
        highest = int(example.targets.ids.max(initial=0))
        if highest >= self.num_senones:
            raise ValueError(
                f"{example.name}: the targets contain senone {highest}, but there are only "
                f"{self.num_senones} senones"
            )


def selection_score(config: SelectionConfig, example: Example) -> float:
    """Return the score by which utterances are ranked; the highest are selected."""
    if config.by == "confidence":
        return example.confidence
    return zlib.crc32(example.name.encode()) / 2**32


@dataclass(frozen=True)
class Selection:
    """The selected utterances: those whose score reaches the threshold."""

    config: SelectionConfig
    threshold: float
    """Lowest score that is selected."""
    frames: np.ndarray
    """[S] number of selected raw frames of every shard."""
    utterances: np.ndarray
    """[S] number of selected utterances of every shard."""
    data: str = ""
    """Digest of the shards; empty if all is selected."""

    def takes(self, example: Example) -> bool:
        """Return whether an utterance is selected."""
        return self.config.share == 1 or selection_score(self.config, example) >= self.threshold

    def save(self, path: Path) -> None:
        """Write JSON."""
        content = {
            "config": asdict(self.config),
            "threshold": self.threshold,
            "data": self.data,
        }
        counts = {"frames": self.frames.tolist(), "utterances": self.utterances.tolist()}
        write_atomically(path, json.dumps(content | counts) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Selection":
        """Read what `save` wrote.

        Raises:
          TargetError: the file is damaged; the message names it.
        """
        with reading(path, TargetError, "remove it; it will be made again", "damaged"):
            content = json.loads(path.read_text(encoding="utf-8"))
            counts = (np.array(content[name], dtype=np.int64) for name in ("frames", "utterances"))
            config = SelectionConfig(**content["config"])
            return cls(config, content["threshold"], *counts, data=content.get("data", ""))


def select(shards: TeacherShards, config: SelectionConfig) -> Selection:
    """Rank all utterances and determine the threshold, in one pass over the shards.

    Utterances are selected from the highest score down until they have `config.share` of the
    frames.
    """
    # No shard needs to be read to select all.
    if config.share == 1 or not shards.utterances.any():
        return Selection(config, -np.inf, shards.frames, shards.utterances)
    rows = []
    for shard in range(len(shards.frames)):
        shards.prefetch(range(shard, min(shard + AHEAD, len(shards.frames))))
        rows += [(shard, selection_score(config, e), len(e.features)) for e in shards.read(shard)]
    # [U] by utterance: its shard, its score, its raw frames
    shard, scores, frames = (np.array(column) for column in zip(*rows, strict=True))
    threshold = score_threshold(scores, frames, config.share * frames.sum())
    is_selected = scores >= threshold
    # [S] numbers of selected frames and of selected utterances of every shard
    counts = (
        np.bincount(shard[is_selected], weights, len(shards.frames)).astype(np.int64)
        for weights in (frames[is_selected], None)
    )
    return Selection(config, threshold, *counts, data=shards.digest)


def score_threshold(scores: Sequence[float], frames: Sequence[int], target_frames: float) -> float:
    """Return the lowest score to select, so that the selected utterances have `target_frames`.

    Args:
      scores: [U] scores of the utterances.
      frames: [U] their numbers of frames.
      target_frames: frames to select; if there are fewer, all utterances are selected.
    """
    scores, frames = np.asarray(scores), np.asarray(frames)
    # The first position, from the highest score down, at which the sum reaches the target
    order = np.argsort(-scores, kind="stable")
    index = int(np.searchsorted(np.cumsum(frames[order]), target_frames))
    return float(scores[order[min(index, len(order) - 1)]])


@dataclass(frozen=True)
class Source:
    """A set of shards, and the selection of its utterances."""

    shards: TeacherShards
    selection: Selection


@dataclass(frozen=True)
class ShardSet:
    """Shards of a sub-epoch that are in memory together; their utterances are shuffled."""

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
class TeacherShardGroup(ShardGroup):
    """The concatenated utterances of some shards, stacked at the offset of their targets."""

    senones: np.ndarray
    """[sum of T', k] uint16: the k best senones."""
    logits: np.ndarray
    """[sum of T', k] float16: their log posteriors."""

    def make_batch(self, frame_rows: torch.Tensor, **fields: Any) -> KBestBatch:
        """Make a batch from the frames [N, T] of the group, with their targets.

        Args:
          frame_rows: [N, T] indices of the frames in the group.
          fields: the other fields of the batch.
        """
        rows = frame_rows.numpy()
        return KBestBatch(
            targets=self.targets[frame_rows].long(),
            senones=torch.from_numpy(self.senones[rows].astype(np.int64)),
            logits=torch.from_numpy(self.logits[rows].astype(np.float32)),
            **fields,
        )


class SubEpochs:
    """An endless sequence of passes over the shards, cut into sub-epochs of equal length.

    The order of the shards in a pass is a function of (seed, number of the pass) alone. A shard
    belongs to the sub-epoch in which its middle lies. Pass p reads source p % (number of sources);
    several sources hold the same data with targets at different offsets.

    Args:
      sources: the data, with targets at one or several offsets.
      normaliser: the student's normaliser of the raw features.
      hours: hours of audio per sub-epoch, before selection; None: `count` sub-epochs are one pass.
      count: number of sub-epochs.
      max_frames: most raw frames in memory together; a shard with more is loaded alone.
      seed: seed of the order.

    Raises:
      TrainingDataError: the sources differ or are empty, or a sub-epoch has no shard.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        normaliser: Cmvn,
        hours: float | None,
        count: int,
        max_frames: int,
        seed: int,
    ) -> None:
        self._sources = sources
        self._normaliser = normaliser
        self._seed = seed
        # Sources differ in offset only: one shard has the same utterances in all of them.
        first = sources[0].shards
        for source in sources[1:]:
            if not np.array_equal(source.shards.frames, first.frames):
                raise TrainingDataError(
                    f"{source.shards.name} and {first.name} do not contain the same utterances"
                )
        self.dimension = first.dimension
        """F, dimension of a raw frame."""
        self.count = count
        """Number of sub-epochs."""
        self._total = int(first.frames.sum())
        if not self._total:
            raise TrainingDataError(
                f"{first.name} has no frames: it contains no utterances, or all its utterances are "
                "shorter than a frame"
            )
        self.length = self._total / count if hours is None else hours * first.frames_per_hour
        """Raw frames per sub-epoch, before selection."""
        self._shard_sets = [self._cut(number, max_frames) for number in range(count)]
        short = [n + 1 for n, shard_sets in enumerate(self._shard_sets) if not shard_sets]
        if short:
            longest = self.length / first.frames_per_hour
            raise TrainingDataError(
                f"{first.name} has {len(first.frames)} shards, too few for sub-epochs of "
                f"{longest:.3g} hours each (sub-epochs {short} would be empty): write shards of "
                f"less than {longest / 2:.3g} hours, or make the sub-epochs longer"
            )

    @property
    def hours(self) -> float:
        """Hours of selected audio in all sub-epochs."""
        frames = sum(shard_set.frames for sets in self._shard_sets for shard_set in sets)
        return frames * LOW_RATE_FACTOR / self._sources[0].shards.frames_per_hour

    def shard_sets(self, number: int) -> list[ShardSet]:
        """Return the sets into which the shards of a sub-epoch (counted from 0) are divided."""
        return self._shard_sets[number]

    def shards(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (pass, shard) of a sub-epoch, in order."""
        # The sub-epoch has the frames [begin, end) of the endless sequence of passes, in which
        # pass p begins with frame p * total.
        begin, end = number * self.length, (number + 1) * self.length
        frames = self._sources[0].shards.frames
        for pass_number in range(int(begin // self._total), int(end // self._total) + 1):
            order = np.random.default_rng([self._seed, pass_number]).permutation(len(frames))
            # A shard belongs where its middle lies, so that each is in one sub-epoch of a pass.
            ends = np.cumsum(frames[order]) + pass_number * self._total
            middles = ends - frames[order] / 2
            for shard in order[(begin <= middles) & (middles < end)]:
                yield pass_number, int(shard)

    def load(self, shard_set: ShardSet, rank: int, world_size: int) -> TeacherShardGroup:
        """Read a rank's share of some shards: every `world_size`-th utterance of each shard.

        Raises:
          TrainingDataError: no utterance with frames is left.
        """
        shards, is_selected = shard_set.source.shards, shard_set.source.selection.takes
        # Raw features, twice as large as the inputs, are not kept.
        utterances = [
            (example.name, example.targets, self._inputs(example, shards.offset))
            for shard in shard_set.shards
            for example in shards.read(shard, rank, world_size)
            if len(example.targets) and is_selected(example)
        ]
        if not utterances:
            raise TrainingDataError(
                f"shards {', '.join(map(str, shard_set.shards))} of {shards.name} contain no"
                f" utterance for process {rank} of {world_size}: write longer shards"
            )
        names, targets, inputs = zip(*utterances, strict=True)
        # All utterances one after the other: [sum of T', D] inputs, [sum of T', k] senones
        length = np.array([len(rows) for rows in inputs])
        senones = np.concatenate([best.ids for best in targets])
        return TeacherShardGroup(
            names=list(names),
            inputs=torch.cat(inputs),
            targets=torch.from_numpy(senones[:, 0].astype(np.int32)),
            first=np.cumsum(length) - length,
            length=length,
            offset=shards.offset,
            senones=senones,
            logits=np.concatenate([best.logits for best in targets]),
        )

    def _inputs(self, example: Example, offset: int) -> torch.Tensor:
        """Return stacked frames [T', D]; float16, as in `Corpus.load`."""
        normalised = self._normaliser.apply(example.features, example.state)
        return stack(normalised.half(), offset)

    def _cut(self, number: int, max_frames: int) -> list[ShardSet]:
        """Group consecutive shards of a pass, in sets of at most `max_frames` raw frames."""
        shard_sets: list[ShardSet] = []
        free_frames, current_pass = 0, None
        for pass_number, shard in self.shards(number):
            source = self._sources[pass_number % len(self._sources)]
            frames = int(source.selection.frames[shard])
            if not source.selection.utterances[shard]:
                continue
            # The shards of a set belong to one pass: passes may read sources of different offsets.
            if current_pass != pass_number or frames > free_frames:
                shard_sets.append(ShardSet(source, ()))
                free_frames, current_pass = max_frames, pass_number
            shard_sets[-1] = ShardSet(source, (*shard_sets[-1].shards, shard))
            free_frames -= frames
        return shard_sets


class TeacherBatches:
    """The batches of sub-epochs, in an order that is a function of (seed, sub-epoch, world_size).

    This is a `BatchSource` with one difference: ranks do not take turns in a common order, because
    every rank would then have to read all data. Each rank reads and shuffles its own share of the
    utterances.

    Args:
      data: the sub-epochs.
      sampler: divides the utterances that are in memory together into batches.
      seed: seed of the order.
      first: number of earlier sub-epochs; epoch e of this source is sub-epoch first + e.
    """

    def __init__(
        self, data: SubEpochs, sampler: ChunkSampler | UtteranceSampler, seed: int, first: int = 0
    ) -> None:
        self._data = data
        self._sampler = sampler
        self._seed = seed
        self._first = first

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        return sum(self._counts(self._data.shard_sets(self._first + epoch), world_size))

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Yield a rank's batches from step `start` on; the next shards are loaded ahead."""
        number = self._first + epoch
        shard_sets = self._data.shard_sets(number)
        counts = self._counts(shard_sets, world_size)
        ends = np.cumsum(counts).tolist()
        # Sets whose batches all come before step `start` are not read.
        remaining = [i for i, end in enumerate(ends) if end > start]
        loaded = self._load([shard_sets[i] for i in remaining], rank, world_size)
        for i, group in zip(remaining, prefetched(loaded, depth=0), strict=True):
            rng = np.random.default_rng([self._seed, number, i, rank])
            batches = self._sampler.split(group.length, counts[i], rng)
            # The set's first batch is step ends[i] - counts[i] of the epoch.
            for rows in batches[max(0, start - ends[i] + counts[i]) :]:
                yield self._sampler.collate(group, rows)

    def _counts(self, shard_sets: Sequence[ShardSet], world_size: int) -> list[int]:
        """Return the number of batches that each rank makes of each set of shards."""
        return [self._sampler.estimate(s.frames, s.utterances, world_size) for s in shard_sets]

    def _load(
        self, shard_sets: Sequence[ShardSet], rank: int, world_size: int
    ) -> Iterator[TeacherShardGroup]:
        """Load sets of shards in turn, and meanwhile fetch the shards of the next set."""
        for number, shard_set in enumerate(shard_sets):
            for expected in shard_sets[number : number + 2]:
                expected.source.shards.prefetch(expected.shards)
            yield self._data.load(shard_set, rank, world_size)
