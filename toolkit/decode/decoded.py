"""Results of decoding: n-best lists, utterances with word times, transcripts of recordings."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.lattice import Weights
from toolkit.fsa.nbest import Hypothesis
from toolkit.lang.tables import SymbolTable
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading


@dataclass(frozen=True)
class NbestList:
    """The n-best list of an utterance; empty if no path survived the search."""

    texts: tuple[str, ...]
    """Words of each hypothesis, from best to worst under the weights of the search."""
    acoustic: tuple[float, ...]
    """Acoustic log-likelihood of each hypothesis, unscaled."""
    graph: tuple[float, ...]
    """Log-probability of each hypothesis's pronunciations, silences and HMM transitions."""
    lm: tuple[float, ...]
    """Log-probability of each hypothesis by the n-gram language model."""

    @classmethod
    def of(
        cls, hypotheses: Sequence[Hypothesis], weights: Weights, words: SymbolTable
    ) -> "NbestList":
        """Make an n-best list from hypotheses, with their scores split into parts.

        Args:
          hypotheses: from `toolkit.fsa.nbest.n_best`.
          weights: the weights passed to `n_best`.
          words: the symbol table of the words.
        """
        # score = scale * acoustic + graph + lm + penalty * words, solved for the graph's part.
        scale, penalty = weights.acoustic_scale, weights.word_penalty
        return cls(
            tuple(" ".join(map(words.symbol, h.words)) for h in hypotheses),
            tuple(h.acoustic for h in hypotheses),
            tuple(h.score - scale * h.acoustic - h.lm - penalty * len(h.words) for h in hypotheses),
            tuple(h.lm for h in hypotheses),
        )

    def first(self, count: int) -> "NbestList":
        """Return a list of the first `count` hypotheses at most."""
        return NbestList(
            self.texts[:count], self.acoustic[:count], self.graph[:count], self.lm[:count]
        )

    def totals(self, weights: Weights) -> list[float]:
        """Return the weighted total score of each hypothesis, without a neural model."""
        acoustic, graph, lm, num_words = self.scores
        scale, penalty = weights.acoustic_scale, weights.word_penalty
        return (scale * acoustic + graph + lm + penalty * num_words).tolist()

    @property
    def sentences(self) -> list[list[str]]:
        """The words of each hypothesis."""
        return [text.split() for text in self.texts]

    @cached_property
    def scores(self) -> np.ndarray:
        """[4, K] float64: `acoustic`, `graph`, `lm` and number of words of each hypothesis."""
        lengths = [len(words) for words in self.sentences]
        return np.array([self.acoustic, self.graph, self.lm, lengths], dtype=np.float64)


class NbestListError(ToolkitError):
    """Raised when n-best lists cannot be read."""


@dataclass(frozen=True)
class ListedUtterance:
    """An utterance with its n-best list, stored between decoding and rescoring."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    decode_seconds: float
    """Processor time of network, search and list, see `toolkit.decode.search.DecodedPass`."""
    nbest: NbestList
    """The list."""
    words: tuple[TimedToken, ...] = ()
    """The best hypothesis, word by word; confidences are lattice posteriors, not calibrated. Empty
    if words were not requested."""


def nbest_path(folder: Path, number: int) -> Path:
    """Return the path of a feature shard's n-best lists."""
    return folder / f"nbest.{number:06d}.jsonl"


def write_nbest_shard(path: Path, utterances: Iterable[ListedUtterance]) -> None:
    """Write a feature shard's n-best lists, one line of JSON per utterance."""
    lines = [json.dumps(asdict(utterance)) + "\n" for utterance in utterances]
    write_atomically(path, "".join(lines))


def read_nbest_shard(path: Path) -> list[ListedUtterance]:
    """Read the n-best lists that `write_nbest_shard` wrote.

    Raises:
      NbestListError: the file is damaged, or of an earlier version.
    """
    with reading(path, NbestListError, "remove it and decode again"):
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_read_listed(json.loads(line)) for line in lines]


def _read_listed(fields: dict[str, Any]) -> ListedUtterance:
    """Make an utterance's n-best list from a parsed line of JSON."""
    words = tuple(TimedToken(*token) for token in fields.pop("words"))
    return replace(from_plain(ListedUtterance, fields), words=words)


def read_nbest_lists(folder: Path, count: int) -> list[ListedUtterance]:
    """Read the n-best lists of a split.

    Args:
      folder: `nbest/` of the split.
      count: maximum number of hypotheses to take from each list.

    Raises:
      NbestListError: a file is damaged, or of an earlier version.
    """
    return [
        replace(utterance, nbest=utterance.nbest.first(count))
        for path in sorted(folder.glob("nbest.*.jsonl"))
        for utterance in read_nbest_shard(path)
    ]


@dataclass(frozen=True)
class DecodedUtterance:
    """A recognised utterance, or a recognised segment of a recording."""

    text: str
    """The words, separated by single spaces; empty if no path survives even the widest beam."""
    words: tuple[TimedToken, ...] | None = None
    """The words with times in seconds from the start of the utterance or, after `placed`, from the
    start of the recording; None when not requested."""
    start_s: float = 0.0
    """Start in the recording, seconds."""
    end_s: float | None = None
    """End in the recording, seconds; None before `placed`."""

    def placed(self, start_s: float, end_s: float) -> "DecodedUtterance":
        """Return the utterance with times relative to its recording or stream, rounded to 1 ms.

        Words are shifted to the recording's time. No word ends later than the utterance, although
        the last row of scores may stand for frames after it.
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
    """The transcript of one recording, or the reason why there is none."""

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
        """All words of the transcript, separated by single spaces."""
        return " ".join(utterance.text for utterance in self.utterances if utterance.text)

    def in_lower_case(self) -> "Transcript":
        """Return the transcript with all words in lower case, as for subtitles."""
        return replace(self, utterances=tuple(u.in_lower_case() for u in self.utterances))
