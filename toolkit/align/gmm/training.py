"""EM training of GMM systems: the loop and schedule that all systems share."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.align.gmm.em import Partition, TrainingData, accumulate_gmm
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.store import DamagedAlignmentsError
from toolkit.errors import ToolkitError
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend, save_transforms
from toolkit.fsa.alignment import AlignConfig
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.senones import Senones
from toolkit.hmm.tree.stats import TreeStatistics
from toolkit.processes.bars import Bar
from toolkit.processes.workers import WorkerPool
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated

logger = logging.getLogger(__name__)

VARIANCE_FLOOR = 0.01
"""Lowest variance, as a share of the global one."""
Update = Callable[[int, GmmSystem], GmmSystem]


class UnalignableError(ToolkitError):
    """Too little of the training data can be aligned."""


@dataclass(frozen=True)
class EmConfig:
    """EM iterations; the defaults are those of Kaldi's train_deltas.sh."""

    iterations: int = 35
    """EM iterations (Kaldi: 35, monophones 40)."""
    realign: tuple[int, ...] = (10, 20, 30)
    """Iterations, counted from 1, that begin with a new Viterbi alignment."""
    gaussians: int = 10_000
    """Gaussians of all pdfs together in the end."""
    grow_until: int = 25
    """The iteration that splits Gaussians last."""
    min_occupancy: float = 10.0
    """Frames below which a Gaussian is removed (Kaldi: 10, monophones 3); one with fewer than
    twice as many is not split."""
    align: AlignConfig = AlignConfig()
    """The search of the alignments."""
    max_failed: float = 0.2
    """Share of utterances without an alignment at which training stops."""

    def __post_init__(self) -> None:
        if not 0 < self.grow_until <= self.iterations:
            raise ValueError("need 0 < grow_until <= iterations")
        if self.gaussians < 1:
            raise ValueError(f"gaussians is {self.gaussians}, needs to be 1 or more")
        if self.min_occupancy < 0:
            raise ValueError(f"min_occupancy is {self.min_occupancy}, must not be negative")
        if not 0 <= self.max_failed <= 1:
            raise ValueError(f"max_failed is {self.max_failed}, needs to be between 0 and 1")


@contextmanager
def training_data(
    partitions: Sequence[Partition], lang: Path, config: EmConfig, jobs: int
) -> Iterator[TrainingData]:
    """The training data with its worker processes."""
    with WorkerPool(min(jobs, len(partitions))) as pool:
        yield TrainingData(partitions, lang, config.align, pool)


def require_aligned(data: TrainingData, failed: Sequence[str], limit: float) -> None:
    """Refuse to train when more than `limit` of the utterances have no alignment.

    Raises:
      UnalignableError: naming some of them.
    """
    if len(failed) > limit * data.utterances:
        raise UnalignableError(
            f"{len(failed)} of {data.utterances} training utterances have no alignment,"
            f" first {', '.join(failed[:5])}: do their transcripts match the audio?"
            " See check/report.txt"
        )


def single_gaussians(statistics: TreeStatistics, table: Tensor) -> tuple[Gmm, Tensor]:
    """One Gaussian for every pdf of a tree, and the variance floor [D]."""
    count, first, second = statistics.sum_by_pdf(table)
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
      name: for the progress bar.
      start: makes the first system and its variance floor [D], and aligns the data; not called
        when an earlier, unfinished training is continued.
      cepstra: the feature store of the training data.
      data: the utterances.
      config: the schedule.
      out: gets the system, `history.json` and, as long as it is unfinished, a checkpoint.
      progress: called with (iterations done, iterations).
      update: called in each iteration, after its realignment: may change features and mixtures.

    Returns:
      Headline numbers.
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
        if iteration in config.realign:
            failed = data.realign(system)
            require_aligned(data, failed, config.max_failed)
            logger.info("%s, iteration %d: %d utterances unaligned", name, iteration, len(failed))
        system = update(iteration, system)
        statistics = data.accumulate(accumulate_gmm, system=system)
        gmm = system.gmm.maximise(statistics, config.min_occupancy, floor)
        removed = system.gmm.num_gaussians - gmm.num_gaussians
        if iteration <= config.grow_until and gmm.num_gaussians < config.gaussians:
            target = initial + (config.gaussians - initial) * iteration // config.grow_until
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
    tensors = {f"gmm.{name}": tensor for name, tensor in system.gmm.state().items()}
    tensors["floor"] = floor
    if system.features.frontend.projection is not None:
        tensors["projection"] = system.features.frontend.projection.contiguous()
    for speaker, transform in system.features.transforms.items():
        tensors[f"fmllr.{speaker}"] = transform.contiguous()
    write_atomically(path, save(tensors, metadata={"history": json.dumps(history)}))


def _load_checkpoint(path: Path, cepstra: Path) -> tuple[GmmSystem, Tensor, list]:
    """The system, its variance floor and the history; other files are beside the checkpoint."""
    with reading(path, DamagedAlignmentsError, "remove it to train from the beginning"):
        tensors, about = read_tensors(path, {"floor": ("F32", 1)})
        history = validated(json.loads(about["history"]), [{str: float}])
        parts = {kind: {} for kind in ("gmm", "fmllr")}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if rest:
                parts[kind][rest] = tensor
        gmm = Gmm.from_state(parts["gmm"])
    frontend = replace(GmmFrontend.load(path.parent), projection=tensors.get("projection"))
    features = GmmFeatures(cepstra, frontend, parts["fmllr"])
    return GmmSystem(features, Senones.load(path.parent), gmm), tensors["floor"], history
