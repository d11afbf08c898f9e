"""The E step of GMM training: alignment and statistics of one partition of the utterances."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from toolkit.align.graphs import TranscriptCompiler
from toolkit.fsa.alignment import AlignConfig, force_align_batch
from toolkit.fsa.arcs import Fsa
from toolkit.hmm.gmm import Gmm, Statistics
from toolkit.stages.files import write_atomically

# Frames that are scored at a time: with 1,000 Gaussians 16 MB, which stays near the caches.
BATCH_FRAMES = 4000

Mode = Literal["equal", "viterbi", "keep"]


class Frames(Protocol):
    """What a GMM trains on; picklable."""

    def load(self, utterance: str) -> Tensor:
        """The utterance's features [T, D]."""


@dataclass(frozen=True)
class Partition:
    """A share of the training utterances, always processed together.

    The partitions do not depend on the number of processes, and their statistics are summed in
    their order: so the result does not either. Processes keep features and graphs of the
    partitions that they have seen, alignments lie on disk.
    """

    features: Frames
    """The features of all utterances."""
    compiler: TranscriptCompiler
    """Makes the training graphs."""
    transcripts: tuple[tuple[str, tuple[str, ...]], ...]
    """Utterance and words."""
    config: AlignConfig
    """The search."""
    alignments: Path
    """The file of the current alignments."""

    def __hash__(self) -> int:
        return hash(self.alignments)


@dataclass(frozen=True)
class Expectation:
    """What the E step found."""

    statistics: Statistics
    """Sums over the partition's frames."""
    failed: tuple[str, ...]
    """Utterances without an alignment."""


def expectation(partition: Partition, gmm: Gmm, mode: Mode) -> Expectation:
    """Align a partition and accumulate its statistics.

    Args:
      partition: the utterances.
      gmm: the current model.
      mode: `equal` cuts each utterance into equal states (the flat start), `viterbi` searches the
        best path, `keep` takes the alignments of the last time.
    """
    data, graphs = _load(partition)
    words = dict(partition.transcripts)
    if mode == "keep":
        alignment = {u: pdfs.long() for u, pdfs in load_file(partition.alignments).items()}
    else:
        alignment = {}
        for batch in _batches(list(data), data):
            if mode == "equal":
                found = {
                    u: partition.compiler.equal_alignment(words[u], len(data[u])) for u in batch
                }
            else:
                found = _align(batch, data, graphs, gmm, partition.config)
            alignment |= {u: pdfs for u, pdfs in found.items() if len(pdfs)}
        write_atomically(
            partition.alignments,
            save({u: pdfs.int().contiguous() for u, pdfs in alignment.items()}),
        )
    statistics = Statistics.zeros(gmm.num_gaussians, gmm.means.shape[1])
    used = [u for u in data if u in alignment]
    for batch in _batches(used, data):
        frames = torch.cat([data[u] for u in batch])
        gmm.accumulate(frames, torch.cat([alignment[u] for u in batch]), statistics)
    return Expectation(statistics, tuple(u for u in data if u not in alignment))


def _align(
    batch: Sequence[str],
    data: dict[str, Tensor],
    graphs: dict[str, Fsa],
    gmm: Gmm,
    config: AlignConfig,
) -> dict[str, Tensor]:
    scores = gmm.log_likelihoods(torch.cat([data[u] for u in batch]))
    rows = scores.split([len(data[u]) for u in batch])
    aligned = force_align_batch(rows, [graphs[u] for u in batch], config)
    return {u: found.pdfs.long() for u, found in zip(batch, aligned, strict=True) if found}


@cache
def _load(partition: Partition) -> tuple[dict[str, Tensor], dict[str, Fsa]]:
    """Features and graphs of a partition, once per process."""
    utterances = sorted(partition.transcripts)
    data = {u: partition.features.load(u) for u, _ in utterances}
    return data, {u: partition.compiler.compile(words) for u, words in utterances}


def _batches(utterances: Sequence[str], data: dict[str, Tensor]) -> Iterator[list[str]]:
    """Consecutive utterances of at least BATCH_FRAMES frames together."""
    batch: list[str] = []
    frames = 0
    for utterance in utterances:
        batch.append(utterance)
        frames += len(data[utterance])
        if frames >= BATCH_FRAMES:
            yield batch
            batch, frames = [], 0
    if batch:
        yield batch
