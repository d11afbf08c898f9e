"""Data of sequence-discriminative training: whole utterances with their lattices."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, low_rate_length
from toolkit.fsa.fst import Lattice
from toolkit.train.batches import Batch, by_length, whole_utterances
from toolkit.train.corpus import Alignments, Corpus, FeatureNormaliser, Features, Utterance

SHARDS_TOGETHER = 16
"""Number of shards shuffled together; a lattice store caches about as many."""
SORTED_BATCHES = 50
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
class SequenceBatch(Batch):
    """Whole utterances with their lattices."""

    lattices: Sequence[Lattice] = ()
    """One per row, in memory wherever the batch is."""


@dataclass(frozen=True)
class Source:
    """The stores of one split."""

    features: Features
    """Raw features."""
    references: References
    """The reference pdf of every raw frame, or of every low-rate frame at offset 0."""
    lattices: Lattices
    """Lattices at offset 0."""


class SequenceData:
    """Batches of whole utterances at offset 0, see `BatchSource`.

    The order is a function of (seed, epoch): shards are permuted, then the utterances of groups of
    shards; buckets of these are sorted by length, so that batches need little padding, and the
    batches of a bucket permuted. Iterating over the object itself goes from the longest utterance
    to the shortest.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        normaliser: FeatureNormaliser,
        num_targets: int,
        config: SequenceDataConfig,
        lookahead: int,
        seed: int,
        names: Iterable[str] | None = None,
    ) -> None:
        """Select and check utterances by their lengths; no lattice and no reference is read.

        Args:
          sources: the stores of all splits.
          normaliser: of the raw features.
          num_targets: C; references hold 0 ... C - 1.
          config: batches and limit.
          lookahead: low-rate frames of input beyond the last output.
          seed: of the order.
          names: use only these utterances; None for all.
        """
        selected = {n for s in sources for shard in s.features.shards for n in shard}
        selected = selected if names is None else selected & set(names)
        excluded: dict[str, str] = {}
        for source in sources:
            excluded |= _unusable(source, selected, config.max_frames)
        pairs = [(s.features, _AtRawRate(s.features, s.references)) for s in sources]
        self.corpus = Corpus(pairs, normaliser, num_targets, selected - set(excluded), False)
        """The usable utterances; its `excluded` lists all others with the reason."""
        self.corpus.excluded.update(excluded)
        self._lattices = [source.lattices for source in sources]
        self._config = config
        self._lookahead = lookahead
        self._seed = seed
        self._utterances = self.corpus.utterances

    def __iter__(self) -> Iterator[SequenceBatch]:
        return map(self._batch, self._groups(by_length(self._utterances)))

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`."""
        return -(-len(self._utterances) // self._config.batch) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[SequenceBatch]:
        """See `BatchSource`."""
        groups = self._order(epoch)
        for step in range(start, self.num_steps(epoch, world_size)):
            yield self._batch(groups[step * world_size + rank])

    def _order(self, epoch: int) -> list[list[Utterance]]:
        generator = np.random.default_rng([self._seed, epoch])

        def shuffled(items: list) -> list:
            return [items[i] for i in generator.permutation(len(items))]

        shards, utterances = shuffled(self.corpus.shards), []
        for first in range(0, len(shards), SHARDS_TOGETHER):
            together = shards[first : first + SHARDS_TOGETHER]
            utterances += shuffled([u for shard in together for u in shard])
        stretch = SORTED_BATCHES * self._config.batch
        groups: list[list[Utterance]] = []
        for first in range(0, len(utterances), stretch):
            groups += shuffled(self._groups(by_length(utterances[first : first + stretch])))
        return groups

    def _groups(self, utterances: list[Utterance]) -> list[list[Utterance]]:
        batch = self._config.batch
        return [utterances[i : i + batch] for i in range(0, len(utterances), batch)]

    def _batch(self, group: list[Utterance]) -> SequenceBatch:
        batch = whole_utterances(self.corpus, group, self._lookahead)
        lattices = [self._lattices[u.source].load(u.name) for u in group]
        return SequenceBatch(**vars(batch), lattices=lattices)


class _AtRawRate:
    """References at either frame rate as targets of raw frames."""

    def __init__(self, features: Features, references: References) -> None:
        self._features = features
        self._references = references

    @property
    def ids(self) -> list[str]:
        return self._references.ids

    def num_frames(self, name: str) -> int:
        frames, raw = self._references.num_frames(name), self._features.num_frames(name)
        return raw if frames == low_rate_length(raw) else frames

    def load(self, name: str) -> Tensor:
        reference, raw = self._references.load(name), self._features.num_frames(name)
        if len(reference) != raw and len(reference) == low_rate_length(raw):
            return reference.repeat_interleave(LOW_RATE_FACTOR)[:raw]
        return reference


def _unusable(source: Source, selected: set[str], max_frames: int) -> dict[str, str]:
    """Return utterance id -> reason, for unusable lengths and lattices."""
    found = set(source.lattices.ids)
    reasons = {}
    for name in (n for shard in source.features.shards for n in shard if n in selected):
        frames = low_rate_length(source.features.num_frames(name))
        if not frames:
            reasons[name] = "no frames"
        elif frames > max_frames:
            reasons[name] = f"{frames} frames of 30 ms, allowed are {max_frames}"
        elif name not in found:
            reasons[name] = "no lattice"
        elif (length := source.lattices.num_frames(name)) != frames:
            reasons[name] = f"lattice of {length} frames, features of {frames}"
    return reasons
