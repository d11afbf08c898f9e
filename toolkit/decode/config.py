"""Settings of searches, their tuning, rescoring, transcription and streams."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from toolkit.config.fields import (
    ListLength,
    NonNegative,
    Positive,
    PositiveInt,
    ProperShare,
    Range,
    Settings,
    Share,
)
from toolkit.fsa.config import Beam, RescoreLimits

FORMATS = ("text", "ctm", "srt", "vtt", "json")
"""Output formats of transcripts, see `toolkit.decode.formats`."""


@dataclass(frozen=True)
class DecodeConfig(Settings):
    """Settings of the lattice search, and the grid of weights tried on the development set (C2)."""

    acoustic_scale: Annotated[float, Range(above=0, below=math.inf)] = 0.08
    """Factor on acoustic log-likelihoods in the first search; later searches use the tuned
    scale."""
    scales: tuple[Positive, ...] = (0.05, 0.06, 0.08, 0.1, 0.12)
    """Acoustic scales tried on the development set."""
    penalties: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0)
    """Word penalties tried on the development set, added per word; negative means fewer words."""
    untuned_within: NonNegative | None = None
    """Keep `acoustic_scale` (or the only value of `scales`) and the penalty nearest 0 unless other
    weights make fewer errors by more than this many standard errors of the difference. Intended for
    networks that were trained at a particular scale. None: take the weights with the fewest
    errors."""
    # Errors on the demo's dev and test splits. LDA + MLLT: 122 with search 15 and max_active 7,000,
    # 96 with the values below, 90 with 19 and 24,000 in twice the time. SAT: 72 with 15 and 7,000,
    # 68 with the values below.
    beam: Beam = Beam(search=17.0, output=4.0, max_active=12_000)
    """Pruning of the search."""
    retries: tuple[float, ...] = (2.0, 4.0)
    """Factors by which the beam is widened when no path survives."""
    rescoring: RescoreLimits = RescoreLimits()
    """Pruning when a larger language model rescores the lattices."""

    def check(self) -> None:
        """Raise a ValueError for a grid that is empty or has infinite values."""
        if not self.scales or not self.penalties:
            raise ValueError("`scales` and `penalties` need at least one value each")
        for name in ("scales", "penalties"):
            if not all(map(math.isfinite, getattr(self, name))):
                raise ValueError(f"`{name}` are {getattr(self, name)} but must be finite")
        self.beams()  # checks `retries`

    def beams(self) -> list[Beam]:
        """Return the beams to try, in order."""
        return self.beam.with_retries(self.retries)


@dataclass(frozen=True)
class NbestConfig(Settings):
    """Settings of the n-best lists extracted from each lattice."""

    count: ListLength = 10
    """Length of the n-best lists."""


@dataclass(frozen=True)
class NeuralRescoringConfig(Settings):
    """Length of the n-best lists, and the grid of weights tried on the development set."""

    count: ListLength = 100
    """Length of the n-best lists."""
    weights: tuple[Share, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Weights to try for the neural model's log-probability; the n-gram model's weight is 1 minus
    this. With 0 in the list, the neural model is not used if it does not help."""

    def check(self) -> None:
        """Raise a ValueError for an empty grid."""
        if not self.weights:
            raise ValueError("`weights` needs at least one value")


@dataclass(frozen=True)
class LatticeConfig(Settings):
    """Settings of denominator lattices: search and lattice density."""

    acoustic_scale: Positive = 0.3
    """Factor on acoustic log-likelihoods during the search. The default is the same as in the sMBR
    training that uses the lattices."""
    density: Annotated[float, Range(1)] = 10.0
    """Maximum number of arcs per 30 ms frame in an utterance's lattice (C8: about 10)."""
    beam: Beam = Beam(search=13.0, output=8.0, max_active=3000)
    """Pruning of the search. Its output beam also limits lattices with fewer arcs than `density`
    allows."""
    retries: tuple[Annotated[float, Range(above=1)], ...] = (2.0, 4.0)
    """Factors by which the beam is widened when no path survives."""
    max_failed: Share = 0.05
    """If more than this share of the utterances has no lattice, the corpus counts as unusable."""


SYMBOLS = 50
"""Number of a frame's most likely symbols by which label prefixes may be extended."""


@dataclass(frozen=True)
class PrefixConfig(Settings):
    """Settings of the CTC prefix beam search."""

    width: ListLength = 256
    """Prefixes kept per frame (A24: 1 for sentences during training, 64 in the equal-batch study,
    256 for evaluation, 512 for the final table)."""
    margin: Positive = 25.0
    """Pruning beam in natural log units. Prefixes that score this far below the best of a frame are
    dropped. With inf, the best `width` prefixes are always kept."""
    nbest: ListLength = 1
    """Length of the n-best list."""


@dataclass(frozen=True)
class WordsConfig(Settings):
    """Settings of the CTC beam search over dictionary words, and the score of a text.

    The score of a text is

        log P(text | posteriors) + lm_weight * log P(text) + word_bonus * words

    with natural logarithms. The first term is summed over all alignments; the second includes the
    end of the sentence. Scheidl's word beam search has another second term: the geometric mean of
    the words' probabilities. There the language model weighs as much in a long text as in a short
    one.
    """

    width: ListLength = 256
    """Prefixes kept per frame (A24: 1, 64, 256 or 512, as in `PrefixConfig`)."""
    mode: Literal["words", "ngrams", "forecast"] = "forecast"
    """How the language model is applied. `words`: not at all. `ngrams`: to each word when it is
    finished. `forecast`: from a word's first symbol on, by the probability of all words that begin
    with the symbols so far (look-ahead). With a wide beam, `ngrams` and `forecast` find the same
    texts; a narrow beam profits from the look-ahead."""
    lm_weight: NonNegative = 1.0
    """Factor on the language model's log-probability; not used in the mode `words`."""
    word_bonus: float = 0.0
    """Added for each word; positive means more words."""
    margin: Positive = 25.0
    """Pruning beam in natural log units. Prefixes that score this far below the best of a frame are
    dropped. With inf, the best `width` prefixes are always kept."""
    symbols: ListLength = SYMBOLS
    """In each frame, prefixes are extended only by this many of the most likely symbols."""
    between: str = " "
    """Characters that separate words. Any number of them may occur between two words, in any order.
    If the units include none of these characters, as with word pieces, no separator is needed."""
    complete: bool = False
    """Whether a text may end inside a word if only one dictionary word has this beginning. The word
    is then completed, and the rest of it costs nothing (as in Scheidl's search)."""
    nbest: ListLength = 1
    """Length of the n-best list."""

    def check(self) -> None:
        """Raise a ValueError for infinite weights."""
        for name in ("lm_weight", "word_bonus"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"`{name}` is {getattr(self, name)} but must be finite")


@dataclass(frozen=True)
class GraphConfig(Settings):
    """Settings of the CTC search in a decoding graph, and the score of a text.

    Texts are scored as in `WordsConfig`, but with the best alignment instead of the sum over all.
    """

    beam: Beam = Beam(search=20.0, output=8.0)
    """Pruning of the search, in log-probabilities divided by `lm_weight`."""
    lm_weight: Positive = 1.0
    """Factor on the language model's log-probability."""
    word_bonus: float = 0.0
    """Added for each word; positive means more words."""
    nbest: ListLength = 1
    """Length of the n-best list."""


@dataclass(frozen=True)
class TuneConfig(Settings):
    """The grid of weights to try; it is extended while the best pair lies at an edge."""

    lm_weights: tuple[Positive, ...] = (0.4, 0.7, 1.0, 1.5, 2.0)
    """Factors on the language model's log-probability."""
    word_bonuses: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Scores added per word; positive means more words."""
    untuned_within: NonNegative | None = None
    """Keep the decoder's own weight and bonus unless others make fewer errors by more than this
    many standard errors of the difference; None: take those with the fewest errors."""

    def check(self) -> None:
        """Raise a ValueError for an empty grid."""
        if not self.lm_weights or not self.word_bonuses:
            raise ValueError("`lm_weights` and `word_bonuses` need at least one value each")


@dataclass(frozen=True)
class BeamTuneConfig(Settings):
    """The beam widths and margins to try."""

    widths: tuple[ListLength, ...] = (16, 32, 64, 128, 256, 512)
    """Widths, ascending. The last is doubled as long as twice the width finds better texts."""
    margins: tuple[Positive, ...] = (8.0, 10.0, 12.0, 15.0, 20.0, 25.0)
    """Margins in natural log units, ascending."""

    def check(self) -> None:
        """Raise a ValueError if the widths or the margins do not ascend."""
        for name in ("widths", "margins"):
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)):
                raise ValueError(f"`{name}` are {values} but must be one or more ascending values")


@dataclass(frozen=True)
class CtcDecodeConfig(Settings):
    """Settings of the CTC searches in the final table of results."""

    prefix: PrefixConfig = PrefixConfig(width=512)
    """Prefix beam search without a dictionary."""
    words: WordsConfig = WordsConfig(width=512)
    """Beam search over dictionary words, without and with the language model."""
    graph: GraphConfig = GraphConfig()
    """Search in a graph of dictionary and language model."""
    tune: TuneConfig = TuneConfig()
    """The weights to try on the development splits."""
    tune_width: ListLength = 64
    """Beam width of the search over dictionary words while its weights are tuned."""
    widest: ListLength | None = None
    """Maximum beam width of the search over dictionary words. The search is widened as long as
    twice the width finds better texts on the development splits, which happens with weak networks.
    None: the search is not widened, and the log warns if it should be."""


@dataclass(frozen=True)
class EvaluationConfig(Settings):
    """Settings of the search that evaluates the epochs of a CTC training."""

    search: Literal["prefixes", "words", "words+lm"] = "prefixes"
    """`prefixes` needs no dictionary; `words` finds dictionary words; `words+lm` weighs them with
    the n-grams (A21). Sample sentences are recognised by the same search with one prefix (A24) or,
    without a dictionary, greedily."""
    utterances: PositiveInt | None = None
    """Number of utterances to recognise, such as 25 or 250; None: all. They are chosen by a
    checksum of their ids. The loss is always computed on all utterances."""
    lm_weight: NonNegative = 1.0
    """Factor on the language model's log-probability."""
    word_bonus: float = 0.0
    """Added for each word; positive means more words."""

    def name(self, width: int) -> str:
        """Return the name of the search in the report and in its tables."""
        number = "all" if self.utterances is None else self.utterances
        return f"{self.search}, width {width}, {number} utterances"


@dataclass(frozen=True)
class SegmentConfig(Settings):
    """Settings for cutting long recordings into segments; times in seconds."""

    longest: Positive = 30.0
    """Longest segment. A recording up to this length is not cut."""
    shortest: Positive = 5.0
    """Shortest segment that may end in a pause."""
    pause: Positive = 0.3
    """Shortest pause to cut in."""
    margin: NonNegative = 0.3
    """Silence to keep around speech. If the acoustic model provides silence posteriors, the rest of
    a longer pause is dropped."""
    threshold: ProperShare = 0.35
    """Speech score, 0 to 1, below which a frame belongs to a pause."""

    def check(self) -> None:
        """Raise a ValueError if the shortest segment is longer than the longest."""
        if not self.shortest < self.longest:
            raise ValueError(
                f"`shortest` is {self.shortest} but must be below `longest`, {self.longest}"
            )


@dataclass(frozen=True)
class EndpointConfig(Settings):
    """Endpoint detection: when an utterance ends within a stream; times in seconds."""

    silence: Positive = 0.8
    """Silence after speech that ends an utterance."""
    longest: Positive = 30.0
    """Longest utterance."""
