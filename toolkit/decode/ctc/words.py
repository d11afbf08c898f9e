"""Dictionary-constrained beam search with an n-gram language model (A21)."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.decode.ctc.arrays import FORECAST, NGRAMS, NO_LM
from toolkit.decode.ctc.beam import BeamSearch, Options
from toolkit.decode.ctc.decoder import CtcDecodeError, Decoder, Hypothesis, LogProbs, as_array
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.decode.ctc.ngrams import Ngrams
from toolkit.decode.ctc.prefix import check_search, read, space_label
from toolkit.decode.ctc.tune import Pair
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.units.units import Units

EXPECTED_FRAMES = 256
"""Frames for which an `OngoingSearch` has room at first."""
_MODES = {"words": NO_LM, "ngrams": NGRAMS, "forecast": FORECAST}


@dataclass(frozen=True)
class WordsConfig:
    """Settings of the search and of the score of a text.

    The score of a text is

        log P(text | posteriors) + lm_weight * log P(text) + word_bonus * words

    with natural logarithms. The first term is summed over all alignments; the second includes the
    end of the sentence. Scheidl's word beam search instead takes the geometric mean of the words'
    probabilities for the second, so that the language model weighs as much in a long text as in a
    short one.
    """

    width: int = 256
    """Prefixes kept per frame (A24: 1, 64, 256, 512)."""
    mode: Literal["words", "ngrams", "forecast"] = "forecast"
    """How the language model is applied. `words`: not at all. `ngrams`: to each word when it is
    finished. `forecast`: look-ahead from its first symbol on, by the probability of all words that
    begin like it. With a wide beam `ngrams` and `forecast` find the same texts; a narrow beam
    profits from the look-ahead."""
    lm_weight: float = 1.0
    """Factor on the language model's log-probability; not used in the mode `words`."""
    word_bonus: float = 0.0
    """Added for each word; positive means more words."""
    margin: float = 25.0
    """Pruning beam in natural log units: prefixes this far below the best of a frame are dropped;
    inf always keeps `width` of them."""
    symbols: int = 50
    """Number of symbols, the most likely of a frame, by which prefixes may be extended."""
    between: str = " "
    """The characters that may stand between words, any number of them in any order. Units without
    any of them, such as word pieces, need none."""
    complete: bool = False
    """Whether a text may end inside a word when only one word begins like it. That word is then
    completed, and the rest of it costs nothing (as in Scheidl's)."""
    nbest: int = 1
    """Length of the n-best list."""

    def __post_init__(self) -> None:
        check_search(self.width, self.margin, self.symbols, self.nbest)
        if self.mode not in _MODES:
            raise ValueError(f"mode is {self.mode!r}, not one of {', '.join(_MODES)}")
        if not 0 <= self.lm_weight < math.inf:
            raise ValueError(f"lm_weight is {self.lm_weight}, needs to be finite, 0 or more")
        if not math.isfinite(self.word_bonus):
            raise ValueError(f"word_bonus is {self.word_bonus}, needs to be finite")


class OngoingSearch:
    """The search of an utterance that is not complete yet; made by `WordsDecoder.begin`.

    Args:
      search: the compiled search.
      units: the output units.
      nbest: length of the n-best list.
    """

    def __init__(self, search: BeamSearch, units: Units, nbest: int) -> None:
        self._search, self._units, self._nbest = search, units, nbest
        self._state = search.begin(EXPECTED_FRAMES)

    @property
    def frames(self) -> int:
        """Frames searched so far."""
        return int(self._state.settings["frames"][0])

    def advance(self, log_probs: LogProbs) -> None:
        """Take the posteriors [t, C] of the next frames.

        Raises:
          CtcDecodeError: see `Decoder.decode`.
        """
        self._search.advance(self._state, as_array(log_probs, self._units.size))

    def text(self) -> str:
        """Return the finished words of the best hypothesis so far; they may still change."""
        return " ".join(self._units.decode(self._search.likeliest(self._state)).split())

    def hypotheses(self) -> list[Hypothesis]:
        """Return what `WordsDecoder.decode` returns for the frames so far."""
        return read(self._search.best(self._state, self._nbest), self._units, self._nbest)


class WordsDecoder(Decoder):
    """Finds texts of dictionary words; see `WordsConfig` for their scores.

    Args:
      units: the output units, in the order of the posteriors' columns.
      words: the dictionary's words, or the `Dictionary` of another decoder.
      lm: the n-grams; not needed in the mode `words`. Dictionary words that it lacks share the
        probability of its <UNK>.
      config: the search.

    Raises:
      CtcDecodeError: the mode needs a language model and none is given, or the units can write
        none of the words.
    """

    def __init__(
        self,
        units: Units,
        words: Collection[str] | Dictionary,
        lm: BackoffModel | Ngrams | None = None,
        config: WordsConfig = WordsConfig(),
    ) -> None:
        self.config, self._units = config, units
        if not isinstance(words, Dictionary):
            words = Dictionary.of(words, units, config.between)
        self.dictionary = words
        if config.mode == "words":
            lm = None
        elif lm is None:
            raise CtcDecodeError(
                f"the mode {config.mode!r} needs a language model; without one decode with"
                " mode='words'"
            )
        if isinstance(lm, BackoffModel):
            lm = Ngrams.of(lm, words.words)
        self._lm = lm
        options = Options(
            units.blank,
            space_label(units),
            config.width,
            config.margin,
            config.symbols,
            _MODES[config.mode],
            float(config.lm_weight),
            float(config.word_bonus),
            config.complete,
        )
        self._search = BeamSearch(words.tree, lm, options)

    def decode(self, log_probs: LogProbs) -> list[Hypothesis]:
        """See `Decoder.decode`."""
        array = as_array(log_probs, self._units.size)
        nbest = self.config.nbest
        return read(self._search.run(array, nbest), self._units, nbest)

    def begin(self) -> "OngoingSearch":
        """Begin to decode an utterance whose posteriors come block by block."""
        return OngoingSearch(self._search, self._units, self.config.nbest)

    def tuned(self, lm_weight: float, word_bonus: float) -> "WordsDecoder":
        """Return the same decoder with other weights."""
        return self.configured(replace(self.config, lm_weight=lm_weight, word_bonus=word_bonus))

    def texts(
        self, utterances: Sequence[LogProbs], pairs: Sequence[Pair], jobs: int = 1
    ) -> Iterator[list[str]]:
        """See `Tunable.texts`."""
        for pair in pairs:
            found = self.tuned(*pair).decode_many(utterances, jobs)
            yield [hypotheses[0].text for hypotheses in found]

    def widened(self, width: int) -> "WordsDecoder":
        """Return the same decoder with another beam width."""
        return self.configured(replace(self.config, width=width))

    def with_beam(self, width: int, margin: float) -> "WordsDecoder":
        """Return the same decoder with another beam."""
        return self.configured(replace(self.config, width=width, margin=margin))

    def configured(self, config: WordsConfig) -> "WordsDecoder":
        """Return a decoder of the same words with another configuration, sharing the word tree.

        The new configuration must have the same `between`, and a language model if and only if
        this one has.
        """
        return WordsDecoder(self._units, self.dictionary, self._lm, config)
