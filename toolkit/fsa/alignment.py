"""Forced alignment: the best path of the frames through the graph of their transcript."""

from collections.abc import Sequence
from dataclasses import dataclass

import k2
import torch
from torch import Tensor

from toolkit.fsa.search import Beam, BestPath, best_paths, search_lattices
from toolkit.fsa.transcript import unpack_label
from toolkit.hmm.senones import Senones


@dataclass(frozen=True)
class AlignConfig:
    """The search for the best path through a transcript."""

    acoustic_scale: float = 0.1
    """Factor on log-likelihoods; Kaldi's default for alignment."""
    beam: float = 10.0
    """First search beam, in scaled log units."""
    retries: tuple[float, ...] = (4.0, 16.0)
    """Factors by which the beam is widened when no path survives (Kaldi: 10, then 40)."""
    max_active: int = 2000
    """States kept per frame at the first beam."""

    def beams(self) -> list[Beam]:
        """The beams to try, in order."""
        first = Beam(self.beam, 1.0, min(30, self.max_active - 1), self.max_active)
        return first.with_retries(self.retries)


@dataclass(frozen=True)
class TrainingGraph:
    """The linear graph of a transcript, expanded to the pdfs that occur in it."""

    fsa: k2.Fsa
    """Input label i + 1 stands for `pdfs[i]`; output labels are those of `pack_label` in
    `toolkit.fsa.transcript`."""
    pdfs: Tensor
    """[L] ascending."""

    @classmethod
    def of(cls, graph: k2.Fsa) -> "TrainingGraph":
        """Renumber the labels of a graph that reads pdf + 1."""
        arcs = graph.arcs.values().clone()
        reads = arcs[:, 2] > 0
        pdfs, labels = (arcs[reads, 2] - 1).unique(return_inverse=True)
        arcs[reads, 2] = labels.int() + 1
        return cls(k2.Fsa(arcs, aux_labels=graph.aux_labels), pdfs.long())


@dataclass
class UtteranceAlignment:
    """One utterance's alignment."""

    states: Tensor
    """[T] int32, the state id of every frame."""
    pdfs: Tensor
    """[T] int32, the pdf of every frame."""
    phones: list[int]
    """The phones in order, silences among them."""
    phone_frames: list[int]
    """The frame in which each phone begins."""
    words: list[int]
    """The words, in the pronunciations chosen."""
    word_phones: list[int]
    """For each word the position of its first phone in `phones`."""
    score: float
    """Log-likelihood per frame, unscaled."""
    beam: float
    """The search beam that found it."""

    @property
    def word_frames(self) -> list[int]:
        """The frame in which each word begins."""
        return [self.phone_frames[phone] for phone in self.word_phones]


def force_align(
    log_likelihoods: Tensor, graph: TrainingGraph, senones: Senones, config: AlignConfig
) -> UtteranceAlignment | None:
    """The best path of log_likelihoods[T, L] through a training graph; None if there is none."""
    return force_align_batch([log_likelihoods], [graph], senones, config)[0]


def force_align_batch(
    log_likelihoods: Sequence[Tensor],
    graphs: Sequence[TrainingGraph],
    senones: Senones,
    config: AlignConfig,
) -> list[UtteranceAlignment | None]:
    """Align several utterances at once, each as `force_align` would, in a fraction of the time.

    Args:
      log_likelihoods: for each utterance [T_n, L_n], a column for each of its graph's pdfs.
      graphs: for each its training graph, from `TrainingGraphCompiler`.
      senones: those of the graphs.
      config: the search; utterances without a path are tried again with the wider beams.
    """
    found: list[UtteranceAlignment | None] = [None] * len(graphs)
    open_ones = [i for i, scores in enumerate(log_likelihoods) if len(scores)]
    for beam in config.beams():
        if not open_ones:
            break
        open_ones.sort(key=lambda i: (-len(log_likelihoods[i]), i))
        lattices = search_lattices(
            [log_likelihoods[i] * config.acoustic_scale for i in open_ones],
            k2.create_fsa_vec([graphs[i].fsa for i in open_ones]),
            beam,
        )
        for i, path in zip(open_ones, best_paths(lattices), strict=True):
            if path is not None:
                score = path.score / config.acoustic_scale / len(log_likelihoods[i])
                path.pdfs = graphs[i].pdfs[path.pdfs.long()]
                found[i] = _aligned(path, senones, score, beam.search)
        open_ones = [i for i in open_ones if found[i] is None]
    return found


def _aligned(path: BestPath, senones: Senones, score: float, beam: float) -> UtteranceAlignment:
    """Read phones and words off a path's output labels."""
    pairs = [unpack_label(label) for label in path.words]
    phones = [phone for phone, _ in pairs]
    topology = senones.topology
    entered = torch.zeros(len(path.pdfs), dtype=torch.int64)
    entered[path.word_frames] = 1
    first = torch.tensor([topology.state_id(phone, 0) for phone in phones])
    states = first[entered.cumsum(0) - 1] + senones.state_of_pdf[path.pdfs.long()]
    return UtteranceAlignment(
        states=states.int(),
        pdfs=path.pdfs.int(),
        phones=phones,
        phone_frames=path.word_frames,
        words=[word for _, word in pairs if word],
        word_phones=[i for i, (_, word) in enumerate(pairs) if word],
        score=score,
        beam=beam,
    )
