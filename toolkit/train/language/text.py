"""The text of a neural language model as word ids, some of it held out."""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from toolkit.lang.shortlist import Shortlist
from toolkit.train.errors import TrainingDataError


@dataclass(frozen=True)
class Sentences:
    """Sentences one after another in one array, without <s> and </s>."""

    words: np.ndarray
    """int32, the ids of all words."""
    ends: np.ndarray
    """int64, by sentence: the position after its last word."""

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]]) -> "Sentences":
        """Join sentences of word ids."""
        joined = Joined()
        for words in sentences:
            joined.add(words)
        return joined.sentences()

    @property
    def lengths(self) -> np.ndarray:
        """Words by sentence."""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, number: int) -> np.ndarray:
        """Return the words of a sentence."""
        start = self.ends[number - 1] if number else 0
        return self.words[start : self.ends[number]]

    def __len__(self) -> int:
        return len(self.ends)


class Joined:
    """Collects sentences in 8 bytes each and 4 per word, where lists of arrays have 250 more."""

    def __init__(self) -> None:
        self._words, self._ends = array("i"), array("q")

    def add(self, words: Iterable[int]) -> None:
        """Append the ids of a sentence."""
        self._words.extend(words)
        self._ends.append(len(self._words))

    def sentences(self) -> Sentences:
        """Return them all."""
        words = np.asarray(self._words, dtype=np.int32)
        return Sentences(words, np.asarray(self._ends, dtype=np.int64))


@dataclass(frozen=True)
class LmText:
    """What a neural language model is trained on."""

    shortlist: Shortlist
    """Its words."""
    train: Sentences
    """To train on."""
    valid: Sentences
    """Held out."""
    counts: np.ndarray
    """int64 [V], how often each word of the shortlist is to be predicted in `train`."""


def prepare_text(
    sentences: Callable[[], Iterable[Sequence[str]]],
    vocabulary: Collection[str],
    size: int | None,
    held_out: int,
) -> LmText:
    """Choose the shortlist, hold out sentences, and number the words.

    Sentences are held out by a checksum of their words: the same in every training, and all copies
    of a sentence together.

    Args:
      sentences: yields the normalised words of every sentence; called twice.
      vocabulary: the recogniser's words.
      size: most words in the shortlist; None takes all that occur.
      held_out: one sentence in this many is held out.

    Raises:
      TrainingDataError: there is too little text to train or to validate on.
    """
    counts: Counter[str] = Counter()
    for words in sentences():
        if crc32(" ".join(words).encode()) % held_out:
            counts.update(words)
    shortlist = Shortlist.of(counts, vocabulary, size)
    parts = Joined(), Joined()
    for words in sentences():
        aside = not crc32(" ".join(words).encode()) % held_out
        parts[aside].add(shortlist.ids(words))
    train, valid = (part.sentences() for part in parts)
    if not len(train) or not len(valid):
        raise TrainingDataError(
            f"{len(train)} sentences to train a language model on and {len(valid)} held out: "
            "set lm.text to more text, or lstm_lm.held_out to a smaller number"
        )
    predicted = np.bincount(train.words, minlength=len(shortlist.words))
    predicted[shortlist.ids(["</s>"])] = len(train)
    return LmText(shortlist, train, valid, predicted)
