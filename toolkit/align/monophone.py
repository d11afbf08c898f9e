"""The monophone system: flat start and Viterbi training."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from toolkit.align.graphs import TranscriptCompiler
from toolkit.errors import ToolkitError
from toolkit.fsa.alignment import AlignConfig, force_align
from toolkit.hmm.gmm import Gmm, Statistics
from toolkit.stages.files import write_atomically

# Frames whose scores are held at a time: 20,000 x 1,000 Gaussians are 80 MB.
BATCH_FRAMES = 20_000


class TrainingDataError(ToolkitError):
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


class Frames(Protocol):
    """What a GMM trains on."""

    def load(self, utterance: str) -> Tensor:
        """The utterance's features [T, D]."""


def train_monophone(
    features: Frames,
    transcripts: Mapping[str, Sequence[str]],
    compiler: TranscriptCompiler,
    config: MonophoneConfig,
    out: Path,
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
      progress: told (iterations done, iterations).

    Raises:
      TrainingDataError: more than `max_failed` of the utterances have no alignment.
    """
    topology = compiler.topology
    out.mkdir(parents=True, exist_ok=True)
    chosen = sorted(transcripts, key=lambda u: (len(transcripts[u]), u))[: config.max_utterances]
    chosen.sort()
    data = {u: features.load(u) for u in chosen}
    graphs = {u: compiler.compile(transcripts[u]) for u in chosen}
    everything = torch.cat(list(data.values()))
    floor = config.variance_floor * everything.var(0)

    checkpoint = out / "checkpoint.safetensors"
    if checkpoint.exists():
        gmm, alignment, history = _load_checkpoint(checkpoint)
    else:
        gmm = Gmm.flat(topology.num_pdfs, everything.mean(0), everything.var(0))
        alignment = {u: compiler.equal_alignment(transcripts[u], len(x)) for u, x in data.items()}
        history = []

    for iteration in range(len(history), config.iterations):
        if iteration in config.realign:
            alignment = {
                u: found.pdfs.long()
                for u, x in data.items()
                if (found := force_align(gmm.log_likelihoods(x), graphs[u], config.align))
            }
            _require_enough(alignment, data, config.max_failed)
        statistics = Statistics.zeros(gmm.num_gaussians, everything.shape[1])
        used = [u for u in data if len(alignment.get(u, ()))]
        for batch in _batches(used, data):
            x = torch.cat([data[u] for u in batch])
            gmm.accumulate(x, torch.cat([alignment[u] for u in batch]), statistics)
        occupancy = _pdf_occupancy(gmm, statistics)
        gmm = gmm.maximise(statistics, config.min_occupancy, floor)
        if 0 < iteration <= config.grow_until and gmm.num_gaussians < config.gaussians:
            start = topology.num_pdfs
            share = iteration / config.grow_until
            target = round(start + share * (config.gaussians - start))
            gmm = gmm.split(target, occupancy)
        history.append(
            {
                "iteration": iteration,
                "log_likelihood_per_frame": statistics.log_likelihood / statistics.frames,
                "gaussians": gmm.num_gaussians,
                "aligned": len(used),
                "utterances": len(data),
            }
        )
        _save_checkpoint(checkpoint, gmm, alignment, history)
        progress(iteration + 1, config.iterations)

    gmm.save(out / "gmm.safetensors")
    topology.save(out / "topology.json")
    write_atomically(out / "history.json", json.dumps(history, indent=1))
    checkpoint.unlink()
    return {
        "log_likelihood_per_frame": round(history[-1]["log_likelihood_per_frame"], 3),
        "gaussians": gmm.num_gaussians,
        "aligned_share": round(history[-1]["aligned"] / len(data), 4),
    }


def _require_enough(
    alignment: Mapping[str, Tensor], data: Mapping[str, Tensor], max_failed: float
) -> None:
    failed = sorted(set(data) - set(alignment))
    if len(failed) > max_failed * len(data):
        raise TrainingDataError(
            f"{len(failed)} of {len(data)} training utterances have no alignment, first"
            f" {', '.join(failed[:5])}: do their transcripts match the audio? See check/report.txt"
        )


def _batches(utterances: Sequence[str], data: Mapping[str, Tensor]) -> list[list[str]]:
    """Consecutive utterances of about BATCH_FRAMES frames together."""
    batches: list[list[str]] = [[]]
    frames = 0
    for utterance in utterances:
        if frames > BATCH_FRAMES:
            batches.append([])
            frames = 0
        batches[-1].append(utterance)
        frames += len(data[utterance])
    return batches


def _pdf_occupancy(gmm: Gmm, statistics: Statistics) -> Tensor:
    zeros = torch.zeros(gmm.num_pdfs, dtype=torch.float64)
    return zeros.index_add_(0, gmm.owner, statistics.occupancy)


def _save_checkpoint(path: Path, gmm: Gmm, alignment: Mapping[str, Tensor], history: list) -> None:
    tensors = {f"gmm/{name}": value for name, value in gmm.state().items()}
    tensors |= {f"ali/{u}": pdfs.int().contiguous() for u, pdfs in alignment.items()}
    write_atomically(path, save(tensors, metadata={"history": json.dumps(history)}))


def _load_checkpoint(path: Path) -> tuple[Gmm, dict[str, Tensor], list]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        history = json.loads(file.metadata()["history"])
    parts: dict[str, dict[str, Tensor]] = {"gmm": {}, "ali": {}}
    for name, tensor in tensors.items():
        kind, key = name.split("/", 1)
        parts[kind][key] = tensor
    return Gmm.from_state(parts["gmm"]), {u: a.long() for u, a in parts["ali"].items()}, history
