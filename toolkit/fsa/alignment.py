"""Forced alignment of one utterance."""

from dataclasses import dataclass

import k2
from torch import Tensor

from toolkit.fsa.search import Beam, best_path, search_lattice


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
        first = Beam(self.beam, 1.0, min(30, self.max_active), self.max_active)
        return [first, *(first.widened(factor) for factor in self.retries)]


@dataclass
class Aligned:
    """One utterance's alignment."""

    pdfs: Tensor
    """[T] int32, the pdf of every frame."""
    words: list[int]
    """The words, in the pronunciations chosen."""
    word_frames: list[int]
    """The frame in which each word begins."""
    score: float
    """Log-likelihood per frame, unscaled."""
    beam: float
    """The search beam that found it."""


def force_align(log_likelihoods: Tensor, graph: k2.Fsa, config: AlignConfig) -> Aligned | None:
    """The best path of log_likelihoods[T, P] through a training graph; None if there is none."""
    scaled = log_likelihoods * config.acoustic_scale
    for beam in config.beams():
        lattice = search_lattice(scaled, graph, beam)
        if lattice is not None:
            path = best_path(lattice)
            score = path.score / config.acoustic_scale / len(scaled)
            return Aligned(path.pdfs.int(), path.words, path.word_frames, score, beam.search)
    return None
