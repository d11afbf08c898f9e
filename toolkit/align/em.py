"""EM training of GMM systems: partitions of the data, parallel E steps and the training loop."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.align.config import AlignConfig, EmConfig
from toolkit.align.force_align import TranscriptGraphs, align_batched
from toolkit.align.store import ADVICE, DamagedAlignmentsError
from toolkit.errors import ToolkitError
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend, save_transforms
from toolkit.hmm.gmm import Gmm, GmmStatistics, LazyGmmScores
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology, phone_contexts
from toolkit.hmm.tree_growing import TreeStatistics
from toolkit.lang.lang import Lang
from toolkit.processes.bars import Bar
from toolkit.processes.workers import WorkerPool
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated

# Frames accumulated at a time: 16 MB with 40 dimensions, and enough to make the cost per pdf small.
SUM_FRAMES = 100_000

Statistics = TypeVar("Statistics")


class AlignedUtterances(Protocol):
    """Utterances with their alignments (state ids)."""

    def load(self) -> dict[str, Tensor]:
        """Return the state ids [T] int64 of each utterance."""


@dataclass(frozen=True)
class Partition:
    """A fixed group of training utterances that one worker processes together.

    Neither the partitions nor the order in which their statistics are added depends on the number
    of processes. So the results do not depend on it either.
    """

    transcripts: tuple[tuple[str, tuple[str, ...]], ...]
    """Utterance and words, in the order of the feature store, which keeps speakers together."""
    alignments: Path
    """The file of the current alignments: int32 state ids [T] by utterance."""

    def load(self) -> dict[str, Tensor]:
        """Return the state ids [T] int64 of the aligned utterances."""
        with reading(self.alignments, DamagedAlignmentsError, ADVICE):
            stored = read_tensors(self.alignments, {"*": ("I32", 1)})[0]
        return {u: stored[u].long() for u, _ in self.transcripts if u in stored}

    def save(self, states: Mapping[str, Tensor]) -> None:
        """Replace the stored alignments of this partition."""
        tensors = {u: s.int().contiguous() for u, s in states.items()}
        write_atomically(self.alignments, save(tensors))


def sum_statistics(parts: Iterable[Statistics]) -> Statistics:
    """Add up the statistics of the partitions in order; there must be at least one.

    Each part is released once it is added, as all parts together may exceed the memory.
    """
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total.add(part)
    return total


@dataclass(frozen=True)
class TrainingData:
    """Partitioned training utterances, and the worker processes that iterate over them."""

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
        """Number of utterances, aligned or not."""
        return sum(len(p.transcripts) for p in self.partitions)

    def realign(self, system: GmmSystem) -> list[str]:
        """Align all utterances with a system; return those without a path."""
        realign_partition = partial(_realign, system=system, lang=self.lang, config=self.align)
        return [u for failed in self.pool.map(realign_partition, self.partitions) for u in failed]

    def flat_start_alignment(self, features: GmmFeatures, topology: Topology) -> list[str]:
        """Align with states of equal length; return the utterances that are too short for it."""
        align_equally = partial(
            _flat_start_alignment, features=features, topology=topology, lang=self.lang
        )
        return [u for failed in self.pool.map(align_equally, self.partitions) for u in failed]

    def accumulate(
        self, function: Callable[[Partition], Statistics], **arguments: Any
    ) -> Statistics:
        """Return the sum of `function(partition, **arguments)` over all partitions."""
        return sum_statistics(self.pool.map(partial(function, **arguments), self.partitions))


def partition_utterances(
    transcripts: Mapping[str, Sequence[str]], folder: Path, per_partition: int = 500
) -> list[Partition]:
    """Partition utterances contiguously into eight partitions, or more for large corpora."""
    # -(-a // b) is a / b rounded up.
    names = list(transcripts)
    count = min(len(names), max(8, -(-len(names) // per_partition)))
    # Bounds that differ by at most one utterance between partitions.
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
    """Load a lexicon, once per process."""
    return Lang.load(folder)


def _realign(partition: Partition, system: GmmSystem, lang: Path, config: AlignConfig) -> list[str]:
    """Align the utterances of a partition with a GMM system; return those without a path."""
    compiler = TranscriptGraphs(_lang(lang), system.senones)

    def scores(utterance: str, pdfs: Tensor) -> LazyGmmScores:
        return LazyGmmScores(system.gmm, system.features.load(utterance), pdfs)

    paths = align_batched(partition.transcripts, scores, compiler, config)
    aligned = {utterance: path.states for utterance, path in paths if path is not None}
    partition.save(aligned)
    return [u for u, _ in partition.transcripts if u not in aligned]


def _flat_start_alignment(
    partition: Partition, features: GmmFeatures, topology: Topology, lang: Path
) -> list[str]:
    """Align a partition's utterances with states of equal length; return those too short."""
    compiler = TranscriptGraphs(_lang(lang), Senones.monophone(topology))
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
    """Yield batches of about SUM_FRAMES frames with their state ids.

    Args:
      aligned: state ids [T] by utterance.
      features: the features of these utterances.

    Yields:
      Features [T, D], the utterances' state ids, and which frames are not digital silence [T].
    """
    frames: list[Tensor] = []
    states: list[Tensor] = []
    counted: list[Tensor] = []
    for utterance, alignment in aligned.items():
        frames.append(features.load(utterance))
        states.append(alignment)
        counted.append(features.counted(utterance))
        # Collect whole utterances until there are enough frames.
        if sum(map(len, frames)) >= SUM_FRAMES:
            yield torch.cat(frames), states, torch.cat(counted)
            frames, states, counted = [], [], []
    if frames:
        yield torch.cat(frames), states, torch.cat(counted)


def accumulate_gmm(partition: AlignedUtterances, system: GmmSystem) -> GmmStatistics:
    """Accumulate the statistics of the E step over a partition (Kaldi's gmm-acc-stats-ali)."""
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
    """Accumulate the statistics for growing a decision tree (Kaldi's acc-tree-stats).

    Args:
      partition: aligned utterances.
      features: the features whose likelihood the tree maximises.
      topology: the topology of the alignments.
      low_rate: if given, count by the states of this topology instead, see
        `Topology.low_rate_targets`.
    """
    statistics = TreeStatistics(features.dimension)
    for x, batch, _ in aligned_frames(partition.load(), features):
        # The triphone of each frame: neighbours come from the alignment's own topology.
        contexts = [phone_contexts(topology, states) for states in batch]
        left_phones, right_phones = (torch.cat(side) for side in zip(*contexts, strict=True))
        mapped = [topology.low_rate_targets(s) for s in batch] if low_rate else batch
        statistics.accumulate(left_phones, torch.cat(mapped), right_phones, x)
    return statistics


def speech_mask(states: Tensor, topology: Topology) -> Tensor:
    """Return which frames are speech: state ids [T] to [T] bool."""
    # [states] whether each HMM state belongs to a silence phone.
    silence = torch.tensor([topology.is_silence(p) for p in topology.phone_of_state_id])
    return ~silence[states]


def speech_frames(
    x: Tensor, batch: Sequence[Tensor], counted: Tensor, senones: Senones
) -> tuple[Tensor, Tensor]:
    """Select the speech frames of a batch from `aligned_frames`: features [S, D], pdfs [S]."""
    speech = speech_mask(torch.cat(list(batch)), senones.topology) & counted
    return x[speech], torch.cat([senones.pdfs(states) for states in batch])[speech]


logger = logging.getLogger(__name__)

VARIANCE_FLOOR = 0.01
"""Lowest variance, as a share of the global variance."""
Update = Callable[[int, GmmSystem], GmmSystem]


class UnalignableError(ToolkitError):
    """Raised when too little of the training data can be aligned."""


@contextmanager
def training_data(
    partitions: Sequence[Partition], lang: Path, config: EmConfig, jobs: int
) -> Iterator[TrainingData]:
    """Open the training data and start its worker processes."""
    with WorkerPool(min(jobs, len(partitions))) as pool:
        yield TrainingData(partitions, lang, config.align, pool)


def require_aligned(data: TrainingData, failed: Sequence[str], limit: float) -> None:
    """Raise UnalignableError if more than `limit` of the utterances have no alignment.

    Raises:
      UnalignableError: the message names some of them.
    """
    if len(failed) > limit * data.utterances:
        raise UnalignableError(
            f"{len(failed)} of {data.utterances} training utterances have no alignment, such as "
            f"{', '.join(failed[:5])}. Check that their transcripts match the audio; see "
            "check/report.txt"
        )


def single_gaussians(statistics: TreeStatistics, table: Tensor) -> tuple[Gmm, Tensor]:
    """Return one Gaussian for every pdf of a tree, and the variance floor [D]."""
    # [P], [P, D], [P, D]: frames, sums and sums of squares by pdf.
    count, first, second = statistics.sum_by_pdf(table)
    # The floor is a share of the variance of all frames: E[x^2] - E[x]^2.
    mean = first.sum(0) / count.sum()
    floor = (VARIANCE_FLOOR * (second.sum(0) / count.sum() - mean**2)).float()
    return Gmm.from_moments(count, first, second, floor), floor


def train_em(
    name: str,
    start: Callable[[], tuple[GmmSystem, Tensor]],
    cepstra: Path,
    data: TrainingData,
    config: EmConfig,
    out: Path,
    progress: Callable[[int, int], None],
    update: Update = lambda iteration, system: system,
) -> dict[str, float]:
    """Train a GMM system by EM on Viterbi alignments.

    Args:
      name: the system's name in the progress bar and the log.
      start: makes the first system and its variance floor [D], and aligns the data; not called
        when an earlier, unfinished training is continued.
      cepstra: the feature store of the training data.
      data: the training utterances.
      config: the schedule.
      out: the folder that gets the system, `history.json` and, until training ends, a checkpoint.
      progress: called with (iterations done, iterations).
      update: called in each iteration after realignment; may change features and mixtures.

    Returns:
      `log_likelihood_per_frame`; `pdfs` and `gaussians`, their numbers; and `removed`, the number
      of Gaussians removed in all iterations.
    """
    checkpoint = out / "checkpoint.safetensors"
    if checkpoint.exists():
        system, floor, history = _load_checkpoint(checkpoint, cepstra)
    else:
        out.mkdir(parents=True, exist_ok=True)
        system, floor = start()
        system.save(out)
        history = []
    initial = system.senones.num_pdfs
    for iteration in Bar(range(len(history) + 1, config.iterations + 1), name):
        # Viterbi alignment with the current system, in the iterations of the schedule.
        if iteration in config.realign:
            failed = data.realign(system)
            require_aligned(data, failed, config.max_failed)
            logger.info(
                "%s, iteration %d: %d utterances could not be aligned", name, iteration, len(failed)
            )
        system = update(iteration, system)
        # E step over all partitions: Gaussian posteriors at the aligned pdf of each frame.
        statistics = data.accumulate(accumulate_gmm, system=system)
        # M step; Gaussians with too little occupancy are removed, variances floored.
        gmm = system.gmm.maximise(statistics, config.min_occupancy, floor)
        removed = system.gmm.num_gaussians - gmm.num_gaussians
        # Mix up: the number of Gaussians grows linearly from one per pdf (Kaldi's numgauss).
        if iteration <= config.grow_until and gmm.num_gaussians < config.gaussians:
            target = initial + (config.gaussians - initial) * iteration // config.grow_until
            # [P] frames of each pdf: pdfs with more frames get more Gaussians.
            occupancy = torch.zeros(gmm.num_pdfs, dtype=torch.float64)
            occupancy.index_add_(0, system.gmm.owner, statistics.occupancy)
            gmm = gmm.split(target, occupancy, min_count=2 * config.min_occupancy)
        system = system.with_gmm(gmm)
        history.append(
            {
                "iteration": iteration,
                "log_likelihood_per_frame": statistics.log_likelihood / statistics.frames,
                "frames": statistics.frames,
                "gaussians": gmm.num_gaussians,
                "removed": removed,
            }
        )
        _save_checkpoint(checkpoint, system, floor, history)
        progress(iteration, config.iterations)
    # The checkpoint and the alignments are removed last: without them training would restart.
    system.save(out)
    save_transforms(out / "fmllr.safetensors", system.features.transforms)
    write_atomically(out / "history.json", json.dumps(history, indent=1) + "\n")
    for temporary in (checkpoint, *(p.alignments for p in data.partitions)):
        temporary.unlink(missing_ok=True)
    return {
        "log_likelihood_per_frame": round(history[-1]["log_likelihood_per_frame"], 3),
        "pdfs": system.senones.num_pdfs,
        "gaussians": system.gmm.num_gaussians,
        "removed": sum(row["removed"] for row in history),
    }


def _save_checkpoint(path: Path, system: GmmSystem, floor: Tensor, history: list) -> None:
    """Write the system, its variance floor and the history of the iterations."""
    tensors = {f"gmm.{name}": tensor for name, tensor in system.gmm.state().items()}
    tensors["floor"] = floor
    if system.features.frontend.projection is not None:
        tensors["projection"] = system.features.frontend.projection.contiguous()
    for speaker, transform in system.features.transforms.items():
        tensors[f"fmllr.{speaker}"] = transform.contiguous()
    write_atomically(path, save(tensors, metadata={"history": json.dumps(history)}))


def _load_checkpoint(path: Path, cepstra: Path) -> tuple[GmmSystem, Tensor, list]:
    """Return the system, its variance floor and the history of an unfinished training run."""
    with reading(path, DamagedAlignmentsError, "remove it to train from the beginning"):
        tensors, about = read_tensors(path, {"floor": ("F32", 1)})
        history = validated(json.loads(about["history"]), [{str: float}])
        parts = {kind: {} for kind in ("gmm", "fmllr")}
        for name, tensor in tensors.items():
            kind, _, key = name.partition(".")
            if key:
                parts[kind][key] = tensor
        gmm = Gmm.from_state(parts["gmm"])
    frontend = replace(GmmFrontend.load(path.parent), projection=tensors.get("projection"))
    features = GmmFeatures(cepstra, frontend, parts["fmllr"])
    return GmmSystem(features, Senones.load(path.parent), gmm), tensors["floor"], history
