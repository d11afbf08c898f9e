"""Dictionary-constrained beam search with an n-gram language model (A21)."""

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

_MODES = {"words": NO_LM, "ngrams": NGRAMS, "forecast": FORECAST}


@dataclass(frozen=True)
class WordsConfig:
    """The search, and how texts are scored.

    The score of a text is

        log P(text | posteriors) + lm_weight * log P(text) + word_bonus * words

    with natural logarithms, the first term summed over all alignments, the second with the
    sentence's end. Scheidl's word beam search has the geometric mean of the words' probabilities
    for the second, so that a language model weighs as much in a long text as in a short one.
    """

    width: int = 256
    """Prefixes kept per frame (A24: 1, 64, 256, 512)."""
    mode: Literal["words", "ngrams", "forecast"] = "forecast"
    """Language model. `words`: none. `ngrams`: a word counts when it is finished. `forecast`: from
    its first symbol on, with the probability of all words that begin so. All find the same texts
    when the beam is wide; a narrow one profits from knowing early."""
    lm_weight: float = 1.0
    """Factor on the language model's log-probability; without effect in the mode `words`."""
    word_bonus: float = 0.0
    """Added for each word; positive means more words."""
    margin: float = 25.0
    """Score below the best prefix of a frame from which prefixes are dropped, in natural log units;
    inf keeps `width` of them always."""
    symbols: int = 50
    """Symbols by which prefixes may grow in a frame, the most likely ones."""
    between: str = " "
    """The characters that may stand between words, any number of them in any order. Units that
    have none of these, as pieces of words, need none."""
    complete: bool = False
    """Whether a text may end inside a word when only one word begins so; it is completed then, and
    the rest of it costs nothing (as in Scheidl's)."""
    nbest: int = 1
    """Hypotheses wanted."""

    def __post_init__(self) -> None:
        check_search(self.width, self.margin, self.symbols, self.nbest)
        if self.mode not in _MODES:
            raise ValueError(f"mode is {self.mode!r}, not one of {', '.join(_MODES)}")
        if not self.lm_weight >= 0:
            raise ValueError(f"lm_weight is {self.lm_weight}, needs to be 0 or more")


class WordsDecoder(Decoder):
    """Texts of dictionary words; see `WordsConfig` for their scores.

    Args:
      units: what the columns of the posteriors stand for.
      words: the dictionary, or the one of another decoder.
      lm: the n-grams; not needed in the mode `words`. Dictionary words that it lacks share the
        probability of its <UNK>.
      config: the search.

    Raises:
      CtcDecodeError: a mode that needs a language model and none given, or a dictionary that the
        units cannot write.
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

    def tuned(self, lm_weight: float, word_bonus: float) -> "WordsDecoder":
        """See `toolkit.decode.ctc.tune`."""
        return self.configured(replace(self.config, lm_weight=lm_weight, word_bonus=word_bonus))

    def texts(
        self, utterances: Sequence[LogProbs], pairs: Sequence[Pair], jobs: int = 1
    ) -> Iterator[list[str]]:
        """See `toolkit.decode.ctc.tune`."""
        for pair in pairs:
            found = self.tuned(*pair).decode_many(utterances, jobs)
            yield [hypotheses[0].text for hypotheses in found]

    def widened(self, width: int) -> "WordsDecoder":
        """The same decoder with another beam width."""
        return self.configured(replace(self.config, width=width))

    def configured(self, config: WordsConfig) -> "WordsDecoder":
        """A decoder with another configuration of the same words, which are not spelt again.

        The configurations agree in `between`, and in whether they have a language model.
        """
        return WordsDecoder(self._units, self.dictionary, self._lm, config)
