"""The monophone system: flat start and Viterbi training."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from toolkit.align.em import Expectation, Frames, Mode, Partition, expectation
from toolkit.align.graphs import TranscriptCompiler
from toolkit.errors import ToolkitError
from toolkit.fsa.alignment import AlignConfig
from toolkit.hmm.gmm import Gmm
from toolkit.stages.files import write_atomically
from toolkit.stages.workers import WorkerPool

PARTITIONS = 8
"""Shares into which the utterances are dealt; processes beyond this number are of no use."""


class UnalignableError(ToolkitError):
    """Too little of the training data can be aligned."""


@dataclass(frozen=True)
class MonophoneConfig:
    """Kaldi's train_mono.sh, its numbers as defaults."""

    iterations: int = 40
    """EM iterations (Kaldi: 40)."""
    realign: tuple[int, ...] = (*range(1, 11), *range(12, 21, 2), 23, 26, 29, 32, 35, 38)
    """Iterations that begin with a new Viterbi alignment (Kaldi's list)."""
    gaussians: int = 1000
    """Gaussians of all pdfs together in the end (Kaldi: 1000)."""
    grow_until: int = 30
    """The iteration that splits Gaussians last (Kaldi: 30)."""
    min_occupancy: float = 3.0
    """Frames below which a Gaussian is removed (Kaldi: 3 for monophones)."""
    variance_floor: float = 0.01
    """Lowest variance, as a share of the global one."""
    max_utterances: int = 2000
    """Train on this many of the shortest utterances at most, as Kaldi's recipes do."""
    align: AlignConfig = AlignConfig()
    """The search."""
    max_failed: float = 0.2
    """Share of utterances without an alignment at which training stops."""

    def __post_init__(self) -> None:
        if not 0 < self.grow_until <= self.iterations:
            raise ValueError("need 0 < grow_until <= iterations")


def train_monophone(
    features: Frames,
    transcripts: Mapping[str, Sequence[str]],
    compiler: TranscriptCompiler,
    config: MonophoneConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train monophone GMMs from a flat start; mirrors Kaldi's steps/train_mono.sh.

    The one difference: no transition probabilities are trained (see `Topology`).

    Args:
      features: normalised cepstra with deltas, by utterance.
      transcripts: the words of each training utterance.
      compiler: makes the training graphs.
      config: the schedule.
      out: gets `gmm.safetensors`, `topology.json` and `history.json`; an earlier unfinished
        training there is continued.
      jobs: worker processes; the result does not depend on them.
      progress: told (iterations done, iterations).

    Raises:
      UnalignableError: more than `max_failed` of the utterances have no alignment.
    """
    out.mkdir(parents=True, exist_ok=True)
    topology = compiler.topology
    chosen = sorted(transcripts, key=lambda u: (len(transcripts[u]), u))[: config.max_utterances]
    partitions = _deal(features, transcripts, compiler, config, sorted(chosen), out)
    checkpoint = out / "checkpoint.safetensors"
    if checkpoint.exists():
        gmm, floor, history = _load_checkpoint(checkpoint)
    else:
        mean, variance = _moments(features.load(u) for u in sorted(chosen))
        gmm = Gmm.flat(topology.num_pdfs, mean, variance)
        floor, history = config.variance_floor * variance, []

    with WorkerPool(min(jobs, len(partitions))) as pool:
        iterations = range(len(history), config.iterations)
        for iteration in tqdm(iterations, "monophones", disable=None):
            found = _expectation(pool, partitions, gmm, _mode(iteration, config))
            aligned = len(chosen) - len(found.failed)
            if len(found.failed) > config.max_failed * len(chosen):
                raise UnalignableError(
                    f"{len(found.failed)} of {len(chosen)} training utterances have no alignment,"
                    f" first {', '.join(found.failed[:5])}: do their transcripts match the audio?"
                    " See check/report.txt"
                )
            gmm = _maximise(gmm, found, floor, iteration, config)
            per_frame = found.statistics.log_likelihood / found.statistics.frames
            history.append(
                {
                    "iteration": iteration,
                    "log_likelihood_per_frame": per_frame,
                    "gaussians": gmm.num_gaussians,
                    "aligned": aligned,
                }
            )
            _save_checkpoint(checkpoint, gmm, floor, history)
            progress(iteration + 1, config.iterations)

    gmm.save(out / "gmm.safetensors")
    topology.save(out / "topology.json")
    write_atomically(out / "history.json", json.dumps(history, indent=1) + "\n")
    for temporary in (checkpoint, *(p.alignments for p in partitions)):
        temporary.unlink(missing_ok=True)
    return {
        "log_likelihood_per_frame": round(history[-1]["log_likelihood_per_frame"], 3),
        "gaussians": gmm.num_gaussians,
        "aligned_share": round(history[-1]["aligned"] / len(chosen), 4),
    }


def _deal(
    features: Frames,
    transcripts: Mapping[str, Sequence[str]],
    compiler: TranscriptCompiler,
    config: MonophoneConfig,
    utterances: Sequence[str],
    out: Path,
) -> list[Partition]:
    """Deal the utterances out in turn."""
    count = min(PARTITIONS, len(utterances))
    return [
        Partition(
            features,
            compiler,
            tuple((u, tuple(transcripts[u])) for u in utterances[index::count]),
            config.align,
            out / f"ali.{index}.safetensors",
        )
        for index in range(count)
    ]


def _mode(iteration: int, config: MonophoneConfig) -> Mode:
    if iteration == 0:
        return "equal"
    return "viterbi" if iteration in config.realign else "keep"


def _expectation(
    pool: WorkerPool, partitions: Sequence[Partition], gmm: Gmm, mode: Mode
) -> Expectation:
    """The E step of all partitions, summed in their order."""
    first, *others = pool.map(partial(expectation, gmm=gmm, mode=mode), partitions)
    failed = list(first.failed)
    for other in others:
        first.statistics.add(other.statistics)
        failed += other.failed
    return Expectation(first.statistics, tuple(sorted(failed)))


def _maximise(
    gmm: Gmm, found: Expectation, floor: Tensor, iteration: int, config: MonophoneConfig
) -> Gmm:
    """The M step, and more Gaussians while they are to grow."""
    zeros = torch.zeros(gmm.num_pdfs, dtype=torch.float64)
    occupancy = zeros.index_add_(0, gmm.owner, found.statistics.occupancy)
    gmm = gmm.maximise(found.statistics, config.min_occupancy, floor)
    if 0 < iteration <= config.grow_until and gmm.num_gaussians < config.gaussians:
        share = iteration / config.grow_until
        target = round(gmm.num_pdfs + share * (config.gaussians - gmm.num_pdfs))
        gmm = gmm.split(target, occupancy)
    return gmm


def _moments(arrays) -> tuple[Tensor, Tensor]:  # noqa: ANN001
    """Mean and variance [D] of all frames, summed in float64."""
    count, first, second = 0, 0.0, 0.0
    for array in arrays:
        double = array.double()
        count += len(array)
        first = first + double.sum(0)
        second = second + (double**2).sum(0)
    mean = first / count
    return mean.float(), (second / count - mean**2).float()


def _save_checkpoint(path: Path, gmm: Gmm, floor: Tensor, history: list) -> None:
    tensors = gmm.state() | {"floor": floor}
    write_atomically(path, save(tensors, metadata={"history": json.dumps(history)}))


def _load_checkpoint(path: Path) -> tuple[Gmm, Tensor, list]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        history = json.loads(file.metadata()["history"])
    return Gmm.from_state(tensors), tensors["floor"], history
