"""What decoding gives: n-best lists, utterances with times of words, transcripts of recordings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from toolkit.align.times import TimedToken
from toolkit.fsa.lattice import Weights
from toolkit.fsa.nbest import Hypothesis
from toolkit.lang.tables import SymbolTable


@dataclass(frozen=True)
class NbestList:
    """The n-best list of an utterance; empty where no path survived the search."""

    texts: tuple[str, ...]
    """Words of each hypothesis, the best under the weights of the search first."""
    acoustic: tuple[float, ...]
    """Acoustic log-likelihood of each, unscaled."""
    graph: tuple[float, ...]
    """Log-probability of each one's pronunciations, silences and HMM transitions."""
    lm: tuple[float, ...]
    """Log-probability of each by the n-gram language model."""

    @classmethod
    def of(
        cls, hypotheses: Sequence[Hypothesis], weights: Weights, words: SymbolTable
    ) -> "NbestList":
        """Take the scores of an n-best list apart.

        Args:
          hypotheses: from `toolkit.fsa.nbest.n_best`.
          weights: those that it was called with.
          words: the names of the words.
        """
        rows = [
            (h.score, h.acoustic, h.lm, " ".join(map(words.symbol, h.words))) for h in hypotheses
        ]
        return cls.of_rows(rows, weights)

    @classmethod
    def of_rows(
        cls, rows: Sequence[tuple[float, float, float, str]], weights: Weights
    ) -> "NbestList":
        """The same from total score, acoustic and LM log-probability, and words."""
        scale, penalty = weights.acoustic_scale, weights.word_penalty
        return cls(
            tuple(text for *_, text in rows),
            tuple(acoustic for _, acoustic, _, _ in rows),
            tuple(
                score - scale * acoustic - lm - penalty * len(text.split())
                for score, acoustic, lm, text in rows
            ),
            tuple(lm for _, _, lm, _ in rows),
        )

    @property
    def sentences(self) -> list[list[str]]:
        """The words of each hypothesis."""
        return [text.split() for text in self.texts]

    @cached_property
    def scores(self) -> np.ndarray:
        """[4, K] float64: `acoustic`, `graph`, `lm`, and numbers of words."""
        lengths = [len(words) for words in self.sentences]
        return np.array([self.acoustic, self.graph, self.lm, lengths], dtype=np.float64)


@dataclass(frozen=True)
class DecodedUtterance:
    """One recognised utterance, or segment of a recording."""

    text: str
    """The words, separated by single spaces; empty when no path survives the wider beam either."""
    words: tuple[TimedToken, ...] | None = None
    """The words with times in seconds from the start of the utterance, or after `placed` of the
    recording; None when not requested."""
    start_s: float = 0.0
    """Start in the recording, seconds."""
    end_s: float | None = None
    """End in the recording, seconds; None before `placed`."""

    def placed(self, start_s: float, end_s: float) -> "DecodedUtterance":
        """Return the utterance at its place in a recording or stream, rounded to 1 ms.

        Words are shifted to the recording's time. They end with the utterance at the latest: the
        last row of scores may stand for frames behind it.
        """
        start_s, end_s = round(start_s, 3), round(end_s, 3)
        words = self.words and tuple(
            word._replace(
                start_s=min(round(word.start_s + start_s, 3), end_s),
                end_s=min(round(word.end_s + start_s, 3), end_s),
            )
            for word in self.words
        )
        return replace(self, words=words, start_s=start_s, end_s=end_s)

    def in_lower_case(self) -> "DecodedUtterance":
        """Return the utterance with all words in lower case."""
        words = self.words and tuple(w._replace(token=w.token.lower()) for w in self.words)
        return replace(self, text=self.text.lower(), words=words)


@dataclass(frozen=True)
class Transcript:
    """The transcript of one recording, or why there is none."""

    name: str
    """Name of the recording, see `Source.name`."""
    key: str
    """Path of its result without suffix, see `Source.key`."""
    utterances: tuple[DecodedUtterance, ...] = ()
    """In order of time."""
    fault: str = ""
    """Error message that names the recording; empty when it has been transcribed."""

    @property
    def text(self) -> str:
        """All words, separated by single spaces."""
        return " ".join(utterance.text for utterance in self.utterances if utterance.text)

    def in_lower_case(self) -> "Transcript":
        """Return the transcript with all words in lower case, as for subtitles."""
        return replace(self, utterances=tuple(u.in_lower_case() for u in self.utterances))
