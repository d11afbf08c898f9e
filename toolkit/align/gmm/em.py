"""Passes over the training data by partition: alignment, and accumulation of statistics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.align.batched import align_batched
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.graphs import TrainingGraphCompiler
from toolkit.align.store import ADVICE, DamagedAlignmentsError
from toolkit.features.gmm_features import GmmFeatures
from toolkit.fsa.alignment import AlignConfig
from toolkit.hmm.context import phone_contexts
from toolkit.hmm.demand import DemandedScores
from toolkit.hmm.gmm import GmmStatistics
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree.stats import TreeStatistics
from toolkit.lang.lang import Lang
from toolkit.processes.workers import WorkerPool
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading

# Frames accumulated at a time: 16 MB with 40 dimensions, and enough to make the cost per pdf small.
SUM_FRAMES = 100_000

Statistics = TypeVar("Statistics")


class AlignedUtterances(Protocol):
    """Utterances with their alignments."""

    def load(self) -> dict[str, Tensor]:
        """State ids [T] int64 by utterance."""


@dataclass(frozen=True)
class Partition:
    """A share of the training utterances, always processed together.

    The partitions do not depend on the number of processes, and their statistics are added in
    order, so that no result depends on it either.
    """

    transcripts: tuple[tuple[str, tuple[str, ...]], ...]
    """Utterance and words, in the order of the feature store, which keeps speakers together."""
    alignments: Path
    """The file of the current alignments: int32 state ids [T] by utterance."""

    def load(self) -> dict[str, Tensor]:
        """The aligned utterances' state ids [T] int64."""
        with reading(self.alignments, DamagedAlignmentsError, ADVICE):
            found = read_tensors(self.alignments, {"*": ("I32", 1)})[0]
        return {u: found[u].long() for u, _ in self.transcripts if u in found}

    def save(self, states: Mapping[str, Tensor]) -> None:
        """Replace the alignments."""
        tensors = {u: s.int().contiguous() for u, s in states.items()}
        write_atomically(self.alignments, save(tensors))


def sum_statistics(parts: Iterable[Statistics]) -> Statistics:
    """Add up the statistics of all parts of the data in order; there is at least one.

    Each part is let go once it is added: there may be more than memory holds.
    """
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total.add(part)
    return total


@dataclass(frozen=True)
class TrainingData:
    """Utterances in partitions, and the worker processes that pass over them."""

    partitions: Sequence[Partition]
    """The partitions."""
    lang: Path
    """The folder of the lexicon."""
    align: AlignConfig
    """The search of the alignments."""
    pool: WorkerPool = field(repr=False)
    """The worker processes."""

    @property
    def utterances(self) -> int:
        """The number of utterances, aligned or not."""
        return sum(len(p.transcripts) for p in self.partitions)

    def realign(self, system: GmmSystem) -> list[str]:
        """Align all utterances with a system; returns those without a path."""
        work = partial(_realign, system=system, lang=self.lang, config=self.align)
        return [u for failed in self.pool.map(work, self.partitions) for u in failed]

    def align_equally(self, features: GmmFeatures, topology: Topology) -> list[str]:
        """The flat start, all states equally long; returns utterances too short for it."""
        work = partial(_align_equally, features=features, topology=topology, lang=self.lang)
        return [u for failed in self.pool.map(work, self.partitions) for u in failed]

    def accumulate(
        self, function: Callable[[Partition], Statistics], **arguments: Any
    ) -> Statistics:
        """`function(partition, **arguments)` of all partitions, added up in order."""
        return sum_statistics(self.pool.map(partial(function, **arguments), self.partitions))


def partition_utterances(
    transcripts: Mapping[str, Sequence[str]], folder: Path, per_partition: int = 500
) -> list[Partition]:
    """Partition utterances contiguously: eight partitions, more where there are many utterances."""
    names = list(transcripts)
    count = min(len(names), max(8, -(-len(names) // per_partition)))
    bounds = [len(names) * i // count for i in range(count + 1)]
    return [
        Partition(
            tuple((u, tuple(transcripts[u])) for u in names[bounds[i] : bounds[i + 1]]),
            folder / f"ali.{i:04d}.safetensors",
        )
        for i in range(count)
    ]


@lru_cache(maxsize=2)
def _lang(folder: Path) -> Lang:
    return Lang.load(folder)


def _realign(partition: Partition, system: GmmSystem, lang: Path, config: AlignConfig) -> list[str]:
    compiler = TrainingGraphCompiler(_lang(lang), system.senones)

    def scores(utterance: str, pdfs: Tensor) -> DemandedScores:
        return DemandedScores(system.gmm, system.features.load(utterance), pdfs)

    found = align_batched(partition.transcripts, scores, compiler, config)
    aligned = {utterance: path.states for utterance, path in found if path is not None}
    partition.save(aligned)
    return [u for u, _ in partition.transcripts if u not in aligned]


def _align_equally(
    partition: Partition, features: GmmFeatures, topology: Topology, lang: Path
) -> list[str]:
    compiler = TrainingGraphCompiler(_lang(lang), Senones.monophone(topology))
    equal = {
        u: compiler.equal_alignment(words, features.store.num_frames(u))
        for u, words in partition.transcripts
    }
    aligned = {u: states for u, states in equal.items() if len(states)}
    partition.save(aligned)
    return [u for u in equal if u not in aligned]


def aligned_frames(
    aligned: Mapping[str, Tensor], features: GmmFeatures
) -> Iterator[tuple[Tensor, list[Tensor], Tensor]]:
    """Yield batches of about SUM_FRAMES frames.

    Args:
      aligned: state ids [T] by utterance.
      features: of these utterances.

    Yields:
      Features [T, D], the state ids by utterance, and which frames are no digital silence [T].
    """
    frames: list[Tensor] = []
    states: list[Tensor] = []
    counted: list[Tensor] = []
    for utterance, alignment in aligned.items():
        frames.append(features.load(utterance))
        states.append(alignment)
        counted.append(features.counted(utterance))
        if sum(map(len, frames)) >= SUM_FRAMES:
            yield torch.cat(frames), states, torch.cat(counted)
            frames, states, counted = [], [], []
    if frames:
        yield torch.cat(frames), states, torch.cat(counted)


def accumulate_gmm(partition: AlignedUtterances, system: GmmSystem) -> GmmStatistics:
    """Accumulate the statistics of the E step (Kaldi's gmm-acc-stats-ali)."""
    statistics = GmmStatistics.zeros(system.gmm.num_gaussians, system.gmm.means.shape[1])
    for x, states, _ in aligned_frames(partition.load(), system.features):
        pdfs = torch.cat([system.senones.pdfs(s) for s in states])
        system.gmm.accumulate(x, pdfs, statistics)
    return statistics


def accumulate_tree(
    partition: AlignedUtterances,
    features: GmmFeatures,
    topology: Topology,
    low_rate: Topology | None = None,
) -> TreeStatistics:
    """Accumulate the statistics from which a tree is grown (Kaldi's acc-tree-stats).

    Args:
      partition: aligned utterances.
      features: the features whose likelihood the tree maximises.
      topology: of the alignments.
      low_rate: accumulate by this topology's states instead, see `Topology.low_rate_targets`.
    """
    statistics = TreeStatistics(features.dimension)
    for x, batch, _ in aligned_frames(partition.load(), features):
        contexts = [phone_contexts(topology, states) for states in batch]
        left, right = (torch.cat(side) for side in zip(*contexts, strict=True))
        mapped = [topology.low_rate_targets(s) for s in batch] if low_rate else batch
        statistics.accumulate(left, torch.cat(mapped), right, x)
    return statistics
