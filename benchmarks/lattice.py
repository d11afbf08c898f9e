"""Denominator lattices: size on disk, and times of generation, loading and sMBR training."""

import lzma
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks import lattice_gpu as gpu_lattice
from benchmarks.run import Case, Table, Target, compare, table_figure
from benchmarks.synthetic import FRAMES_PER_SECOND, SyntheticSentences
from toolkit.decode.config import LatticeConfig
from toolkit.decode.denominators import search
from toolkit.fsa.config import Criterion
from toolkit.fsa.discriminative import PdfClasses, sequence_objective
from toolkit.fsa.forward_backward import pack, total_scores
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lattice import LatticeArcs
from toolkit.fsa.lattice_store import (
    GraphCodec,
    GraphInfo,
    LatticeStore,
    build_lattice,
    encode,
    write_lattices,
)
from toolkit.fsa.search import search_lattice
from toolkit.processes.devices import one_thread

CONFIG = LatticeConfig(acoustic_scale=0.4)
# MB per hour of speech at 10 arcs per frame, below the paper's 0.86 (C8: 6 GB for 7,000 h).
TARGET = 0.6
# Utterances per training step.
BATCH = 4

GENERATION = "generation: search, pruning, coding"
SEARCH = "the search alone"
LOADING = "loading stored lattices"
SMBR = "sMBR, forward and backward"
POSTERIORS = "arc posteriors"
K2_POSTERIORS = "arc posteriors, k2"
SIZE = "MB per hour of speech"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the task and the comparison."""

    utterances: int = 40
    seconds: float = 10.0
    """Minimum duration of an utterance."""
    words: int = 2000
    """Vocabulary of the synthetic language."""
    repeats: int = 3


SMOKE = {"sizes": Sizes(utterances=6, seconds=2.0, words=40, repeats=1)}
TARGETS = (Target(f"lattices, {SIZE}", TARGET, table_figure(SIZE), at_most=True),)


def benchmark(device: str | None = None, sizes: Sizes = Sizes()) -> Table:
    """Measure seconds of speech per second of processor time on one core, for synthetic speech.

    The network is not included: its scores are computed beforehand. With a device, see
    `benchmarks.lattice_gpu`.
    """
    if device is not None:
        return gpu_lattice.measure(device)
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        task = _Task(Path(folder), sizes)
        cases = [
            task.case(GENERATION, task.generate),
            task.case(SEARCH, task.search),
            task.case(LOADING, task.load),
            task.case(SMBR, task.train),
            task.case(POSTERIORS, task.posteriors),
        ]
        notes = []
        # k2 is optional; its row has the same lattices in the same batches.
        try:
            from toolkit.fsa.k2_engine import total_scores_and_posteriors

            k2_posteriors = partial(task.in_batches, total_scores_and_posteriors)
            cases.append(task.case(K2_POSTERIORS, k2_posteriors))
        except ImportError as error:
            notes.append(f"No row for k2's posteriors: {error}.")
        table = compare(
            cases,
            unit="s of speech",
            baseline=GENERATION,
            repeats=sizes.repeats,
            title="Lattices for sequence training on one core",
            clock=process_time,
        )
        table = table.with_figures({SIZE: task.size})
        return table.with_notes(*task.notes(), _real_time_factors(table), *notes)


class _Task:
    """The utterances, their graph and their stored lattices."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._words = sizes.words
        speech = SyntheticSentences.make(sizes.words)
        spoken = [speech.sentence(seed, sizes.seconds) for seed in range(sizes.utterances)]
        self._references = [sentence.pdfs for sentence in spoken]
        self._likelihoods = [sentence.scores for sentence in spoken]
        self._scores = [CONFIG.acoustic_scale * x for x in self._likelihoods]
        self._frames = sum(map(len, self._scores))
        self._seconds = self._frames / FRAMES_PER_SECOND
        self._classes = PdfClasses.of(speech.senones)
        path = speech.graph(folder)
        codec = GraphCodec(path)
        self._graph, self._index = codec.graph, codec.index
        self._made = self._lattices()
        named = {str(n): lattice for n, lattice in enumerate(self._made)}
        shard = codec.path(folder, 0)
        write_lattices(shard, named, codec, GraphInfo())
        self._bytes = shard.stat().st_size
        self._store = LatticeStore(folder, codec)
        self._loaded = [self._store.load(name) for name in named]

    def case(self, name: str, function: Callable[[], object]) -> Case:
        """Return a case that runs `function`, which processes all utterances."""

        def run() -> float:
            function()
            return self._seconds

        return Case(name, run)

    def _lattices(self) -> list[LatticeArcs]:
        """Search all utterances; return the lattices."""
        lattices = [search(x, self._graph, CONFIG)[0] for x in self._scores]
        return [lattice for lattice in lattices if lattice is not None]

    def generate(self) -> bytes:
        """Compute the bytes of a shard from scores."""
        return encode(self._lattices(), self._index)

    def search(self) -> None:
        """Run only the search."""
        for scores in self._scores:
            search_lattice(scores, self._graph, CONFIG.beam)

    def load(self) -> None:
        """Load the stored lattices."""
        for name in self._store.ids:
            self._store.load(name)

    def train(self) -> None:
        """Compute the criterion and its gradient with respect to the scores, in batches."""
        criterion = Criterion(acoustic_scale=CONFIG.acoustic_scale)
        for first in range(0, len(self._scores), BATCH):
            rows = slice(first, first + BATCH)
            scores = pad_sequence(self._likelihoods[rows], batch_first=True).requires_grad_()
            value = sequence_objective(
                self._loaded[rows], scores, self._references[rows], criterion, self._classes
            )
            value.objective.sum().backward()

    def posteriors(self) -> None:
        """Compute the posteriors of all arcs under the lattices' own scores, in batches."""
        self.in_batches(_posteriors)

    def in_batches(self, function: Callable[[Sequence[Lattice]], object]) -> None:
        """Run `function` on the lattices of each batch."""
        for first in range(0, len(self._scores), BATCH):
            function(self._loaded[first : first + BATCH])

    @property
    def size(self) -> float:
        """MB on disk per hour of speech."""
        return self._bytes / 1e6 / (self._seconds / 3600)

    def notes(self) -> Sequence[str]:
        """Report sizes, densities and correctness."""
        num_arcs = sum(lattice.num_emitting for lattice in self._made)
        same = all(
            _rows(build_lattice(arcs, self._graph)) == _rows(stored)
            for arcs, stored in zip(self._made, self._loaded, strict=True)
        )
        hours = self._seconds / 3600
        arrays = b"".join(map(_rows, self._loaded))
        coded = len(lzma.compress(arrays)) / 1e6 / hours
        outcome = "met" if self.size <= TARGET else "missed"
        return (
            f"{len(self._scores)} synthetic utterances, {self._seconds / 60:.1f} min at 33 frames"
            f" per second, {len(self._made)} lattices; a trigram graph of {self._words} words and"
            f" {self._graph.num_arcs / 1e6:.1f} M arcs; times are processor time.",
            f"Density {num_arcs / self._frames:.2f} arcs per frame; {self.size:.3f} MB per hour"
            f" (target: at most {TARGET}, {outcome}), plain arrays"
            f" {len(arrays) / 1e6 / hours:.1f}, the same with lzma {coded:.1f};"
            f" read back {'exactly' if same else 'WITH DIFFERENCES'}.",
        )


def _rows(lattice: Lattice) -> bytes:
    """Return source, target, label and score of all arcs, one arc after the other as in k2."""
    scores = lattice.scores.view(np.int32)
    return np.stack([lattice.source, lattice.target, lattice.labels, scores], axis=1).tobytes()


def _posteriors(lattices: Sequence[Lattice]) -> Tensor:
    """Return the arc posteriors of lattices under their own scores."""
    packed = pack(lattices, torch.device("cpu"))
    scores = packed.scores.requires_grad_()
    (posteriors,) = torch.autograd.grad(total_scores(packed, scores).sum(), scores)
    return posteriors


def _real_time_factors(table: Table) -> str:
    """Describe the real-time factors of all cases."""
    factors = ", ".join(f"{row.name} {1 / row.rate:.5f}" for row in table.rows)
    return f"Real-time factors per core: {factors}."
