"""Data of sequence-discriminative training: whole utterances with their lattices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, low_rate_length
from toolkit.fsa.fst import Lattice
from toolkit.train.batches import Batch, by_length, whole_utterances
from toolkit.train.corpus import Alignments, Corpus, Features, Utterance

SHARDS_TOGETHER = 16
"""Number of shards shuffled together; a lattice store caches about as many."""
BUCKET_BATCHES = 50
"""Number of batches whose utterances are sorted by length together, after shuffling."""


class Lattices(Protocol):
    """Stored lattices, such as `toolkit.fsa.lattice_store.LatticeStore`."""

    ids: list[str]
    """The utterances with a lattice."""

    def num_frames(self, name: str) -> int:
        """Count the frames of an utterance's lattice; quick, without reading it."""

    def load(self, name: str) -> Lattice:
        """Read the lattice of an utterance, see `toolkit.fsa.discriminative.sequence_objective`."""


class References(Alignments, Protocol):
    """Stored references, such as `toolkit.align.store.PdfAlignments`."""

    def num_frames(self, name: str) -> int:
        """Count the frames of an utterance's reference; quick, without reading it."""


@dataclass(frozen=True)
class SequenceDataConfig:
    """Selection of the utterances, and batch size."""

    batch: int = 4
    """Utterances of similar length per step (Kaldi's train_mpe.sh: 1)."""
    max_frames: int = 2000
    """Low-rate frames (30 ms) above which an utterance is left out; 2,000 are one minute, as
    Kaldi's 6,000 of 10 ms."""

    def __post_init__(self) -> None:
        for name in ("batch", "max_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")


@dataclass(frozen=True)
class LatticeBatch(Batch):
    """Whole utterances with their lattices."""

    lattices: Sequence[Lattice] = ()
    """One per row, in memory wherever the batch is."""


class LatticeBatches:
    """Batches of whole utterances at offset 0 with their lattices, see `BatchSource`.

    The order is a function of (seed, epoch): shards are permuted, then the utterances of groups of
    shards; buckets of these are sorted by length, so that batches need little padding, and the
    batches of a bucket permuted. Iterating over the object itself goes from the longest utterance
    to the shortest, for validation.

    Args:
      corpus: the utterances; those of `unusable_lattices` are excluded.
      lattices: the stores of lattices, one for each source of the corpus.
      config: batch size.
      lookahead: low-rate frames of input beyond the last output.
      seed: of the order.
    """

    def __init__(
        self,
        corpus: Corpus,
        lattices: Sequence[Lattices],
        config: SequenceDataConfig,
        lookahead: int,
        seed: int,
    ) -> None:
        self._corpus = corpus
        self._lattices = lattices
        self._config = config
        self._lookahead = lookahead
        self._seed = seed
        self._utterances = corpus.utterances

    def __iter__(self) -> Iterator[LatticeBatch]:
        return map(self._collate, self._cut(by_length(self._utterances)))

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        return -(-len(self._utterances) // self._config.batch) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[LatticeBatch]:
        """See `BatchSource`."""
        batches = self._order(epoch)
        for step in range(start, self.num_steps(epoch, world_size)):
            yield self._collate(batches[step * world_size + rank])

    def _order(self, epoch: int) -> list[list[Utterance]]:
        rng = np.random.default_rng([self._seed, epoch])

        def shuffled(items: list) -> list:
            return [items[i] for i in rng.permutation(len(items))]

        shards, utterances = shuffled(self._corpus.shards), []
        for first in range(0, len(shards), SHARDS_TOGETHER):
            group = shards[first : first + SHARDS_TOGETHER]
            utterances += shuffled([u for shard in group for u in shard])
        bucket = BUCKET_BATCHES * self._config.batch
        batches: list[list[Utterance]] = []
        for first in range(0, len(utterances), bucket):
            batches += shuffled(self._cut(by_length(utterances[first : first + bucket])))
        return batches

    def _cut(self, utterances: list[Utterance]) -> list[list[Utterance]]:
        size = self._config.batch
        return [utterances[i : i + size] for i in range(0, len(utterances), size)]

    def _collate(self, utterances: list[Utterance]) -> LatticeBatch:
        batch = whole_utterances(self._corpus, utterances, self._lookahead)
        lattices = [self._lattices[u.source].load(u.name) for u in utterances]
        return LatticeBatch(**vars(batch), lattices=lattices)


class UpsampledReferences:
    """References at either frame rate as targets of raw frames.

    Args:
      features: raw features, for the lengths.
      references: the reference pdf of every raw frame, or of every low-rate frame at offset 0.
    """

    def __init__(self, features: Features, references: References) -> None:
        self._features = features
        self._references = references

    @property
    def ids(self) -> Sequence[str]:
        """The utterances with a reference."""
        return self._references.ids

    def num_frames(self, name: str) -> int:
        """Count the raw frames of an utterance, if its reference is of one of the two rates."""
        frames, raw = self._references.num_frames(name), self._features.num_frames(name)
        return raw if frames == low_rate_length(raw) else frames

    def load(self, name: str) -> Tensor:
        """Read an utterance's reference: [T] integers."""
        reference, raw = self._references.load(name), self._features.num_frames(name)
        if len(reference) != raw and len(reference) == low_rate_length(raw):
            return reference.repeat_interleave(LOW_RATE_FACTOR)[:raw]
        return reference


def unusable_lattices(features: Features, lattices: Lattices, max_frames: int) -> dict[str, str]:
    """Return utterance id -> reason, for unusable lengths and lattices; no lattice is read.

    Args:
      features: raw features.
      lattices: of the same utterances at offset 0.
      max_frames: low-rate frames above which an utterance is left out.
    """
    ids = set(lattices.ids)
    reasons = {}
    for name in (name for shard in features.shards for name in shard):
        frames = low_rate_length(features.num_frames(name))
        if not frames:
            reasons[name] = "no frames"
        elif frames > max_frames:
            reasons[name] = f"{frames} frames of 30 ms, allowed are {max_frames}"
        elif name not in ids:
            reasons[name] = "no lattice"
        elif (length := lattices.num_frames(name)) != frames:
            reasons[name] = f"lattice of {length} frames, features of {frames}"
    return reasons
