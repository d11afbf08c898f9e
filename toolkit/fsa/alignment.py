"""Forced alignment of one utterance."""

from collections.abc import Sequence
from dataclasses import dataclass

import k2
from torch import Tensor

from toolkit.fsa.search import Beam, best_paths, search_lattices


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
    return force_align_batch([log_likelihoods], [graph], config)[0]


def force_align_batch(
    log_likelihoods: Sequence[Tensor], graphs: Sequence[k2.Fsa], config: AlignConfig
) -> list[Aligned | None]:
    """Align several utterances at once, each as `force_align` would, in a fraction of the time.

    Args:
      log_likelihoods: for each utterance [T_n, P].
      graphs: for each its training graph.
      config: the search; utterances without a path are tried again with the wider beams.
    """
    found: list[Aligned | None] = [None] * len(graphs)
    open_ones = [i for i, scores in enumerate(log_likelihoods) if len(scores)]
    for beam in config.beams():
        if not open_ones:
            break
        open_ones.sort(key=lambda i: (-len(log_likelihoods[i]), i))
        lattices = search_lattices(
            [log_likelihoods[i] * config.acoustic_scale for i in open_ones],
            k2.create_fsa_vec([graphs[i] for i in open_ones]),
            beam,
        )
        for i, path in zip(open_ones, best_paths(lattices), strict=True):
            if path is not None:
                score = path.score / config.acoustic_scale / len(log_likelihoods[i])
                found[i] = Aligned(
                    path.pdfs.int(), path.words, path.word_frames, score, beam.search
                )
        open_ones = [i for i in open_ones if found[i] is None]
    return found
