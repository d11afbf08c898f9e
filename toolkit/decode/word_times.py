"""Start and end times of recognised words, by forced alignment, and their confidences."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from torch import Tensor

from toolkit.align.graphs import TrainingGraphCompiler, check_phones
from toolkit.decode.confidence import Calibration, word_confidences
from toolkit.decode.transcript import Word
from toolkit.fsa.alignment import AlignConfig, UtteranceAlignment, force_align
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import sampled_words
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang

SAMPLES = 200
"""Lattice paths that are sampled for confidences."""


class WordAligner:
    """Finds the times and confidences of recognised words.

    Args:
      lang: the folder of the lexicon.
      senones: those of the acoustic model.
      calibration: the file of the confidences' calibration; None leaves the lattice posteriors as
        they are.
      frame_shift: seconds between rows of scores.
      beam: search beam of the forced alignment.

    Raises:
      GraphMismatchError: lexicon and senones have different phones.
    """

    def __init__(
        self,
        lang: Path,
        senones: Senones,
        calibration: Path | None,
        frame_shift: float,
        beam: float,
    ) -> None:
        self._compiler = TrainingGraphCompiler(Lang.load(lang), senones)
        check_phones(lang, self._compiler.lang, senones)
        self._calibration = Calibration.load(calibration) if calibration else Calibration()
        self._shift, self._beam = frame_shift, beam

    def __call__(
        self, lattice: ScoredLattice, weights: Weights, scores: Tensor, scale: float
    ) -> list[Word]:
        """Return the words of the best path with their times and confidences.

        Args:
          lattice: the lattice of one utterance.
          weights: acoustic scale and word penalty of the best path.
          scores: [T, P] log-likelihoods times `scale`.
          scale: the acoustic scale of the search.
        """
        best = lattice.best_path(weights)
        names = [self.symbol(word) for word in best.words]
        samples = sampled_words(lattice, weights, SAMPLES)
        posteriors = word_confidences(best.words, samples)
        starts = best.word_frames
        return self.timed(names, posteriors, scores, scale, [*starts, len(scores)])

    def timed(
        self,
        words: Sequence[str],
        posteriors: Sequence[float],
        scores: Tensor,
        scale: float,
        bounds: Sequence[int] | None = None,
    ) -> list[Word]:
        """Return words with their times and confidences.

        Args:
          words: what was recognised.
          posteriors: of each word, not calibrated.
          scores: [T, P] log-likelihoods times `scale`.
          scale: the acoustic scale of the search.
          bounds: the frame of each word's begin, then T, where the beam of the forced alignment
            loses the path; None: words of equal length.
        """
        if not words:
            return []
        spans = self.spans(words, scores, scale)
        if spans is None:
            if bounds is None:
                bounds = [n * len(scores) // len(words) for n in range(len(words) + 1)]
            spans = list(pairwise(bounds))
        sure = self._calibration(posteriors)
        return [
            Word(name, round(start * self._shift, 3), round(end * self._shift, 3), confidence)
            for name, (start, end), confidence in zip(words, spans, sure, strict=True)
        ]

    def text(self, words: Sequence[int]) -> str:
        """Return the words with these ids, separated by spaces."""
        return " ".join(map(self.symbol, words))

    def symbol(self, word: int) -> str:
        """Return the word with this id."""
        return self._compiler.lang.words.symbol(word)

    def spans(
        self, words: Sequence[str], scores: Tensor, scale: float
    ) -> list[tuple[int, int]] | None:
        """Return the first frame and the end frame (exclusive) of each word by forced alignment.

        The best path itself does not give them: a decoding graph outputs a word where no other
        word is possible any more, which is often late. None where the alignment's beam loses the
        path.

        Args:
          words: what was recognised, at least one.
          scores: [T, P] log-likelihoods times `scale`.
          scale: the acoustic scale of the search.
        """
        graph = self._compiler.compile(words)
        columns = scores[:, graph.pdfs] / scale
        config = AlignConfig(scale, beam=self._beam)
        aligned = force_align(columns, graph, self._compiler.senones, config)
        return aligned and self._ends(aligned)

    def _ends(self, aligned: UtteranceAlignment) -> list[tuple[int, int]]:
        """Return the words' spans: a word ends where the next one, or a silence, begins."""
        starts, silence = aligned.phone_frames, self._compiler.senones.topology.silence
        ends = [*starts[1:], len(aligned.pdfs)]
        next_words = [*aligned.word_phones[1:], len(starts)]
        last = [phone - 1 - (aligned.phones[phone - 1] == silence) for phone in next_words]
        return [
            (starts[first], ends[end]) for first, end in zip(aligned.word_phones, last, strict=True)
        ]
