"""Settings of searches, their tuning, rescoring, transcription and streams."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from toolkit.fsa.beam import Beam
from toolkit.fsa.rescore import RescoreLimits


@dataclass(frozen=True)
class DecodeConfig:
    """The search, and the grid of weights tried on the development set (C2)."""

    acoustic_scale: float = 0.08
    """Factor on acoustic log-likelihoods in the first search; others are at the scale tuned."""
    scales: tuple[float, ...] = (0.05, 0.06, 0.08, 0.1, 0.12)
    """Acoustic scales tried on the development set."""
    penalties: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0)
    """Word penalties tried on the development set, added per word; negative means fewer words."""
    untuned_within: float | None = None
    """Keep `acoustic_scale`, and the penalty nearest to none, unless others make fewer errors by
    more than so many standard errors of the difference. For networks whose criterion has a scale of
    its own; None: the fewest errors decide."""
    # LDA + MLLT on the demo, dev and test: 122 errors with 15 and 7,000, 96 with these, 90 with 19
    # and 24,000 in twice the time; SAT 72 and 68.
    beam: Beam = Beam(search=17.0, output=4.0, max_active=12_000)
    """Pruning of the search."""
    retries: tuple[float, ...] = (2.0, 4.0)
    """Factors by which the beam is widened when no path survives."""
    rescoring: RescoreLimits = RescoreLimits()
    """Pruning when a larger language model rescores the lattices."""

    def __post_init__(self) -> None:
        if not self.scales or not self.penalties:
            raise ValueError("scales and penalties need a value each")
        for scale in (self.acoustic_scale, *self.scales):
            if not 0 < scale < math.inf:
                raise ValueError(f"acoustic scale {scale} needs to be positive and finite")
        if not all(map(math.isfinite, self.penalties)):
            raise ValueError(f"penalties are {self.penalties}, need to be finite")
        if self.untuned_within is not None and not self.untuned_within >= 0:
            raise ValueError(f"untuned_within is {self.untuned_within}, needs to be 0 or more")
        self.beams()

    def beams(self) -> list[Beam]:
        """Return the beams to try, in order."""
        return self.beam.with_retries(self.retries)


@dataclass(frozen=True)
class NbestConfig:
    """What is extracted from each lattice."""

    count: int = 10
    """Length of the n-best lists."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}, needs to be at least 1")


@dataclass(frozen=True)
class NeuralRescoringConfig:
    """The n-best lists and the weights tried on the development set."""

    count: int = 100
    """Length of the n-best lists."""
    weights: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Weights of the neural model's log-probability tried; the n-gram's has the rest. With 0 the
    neural model is not used where it does not help."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}, needs to be at least 1")
        if not self.weights or not all(0 <= weight <= 1 for weight in self.weights):
            raise ValueError(f"weights is {self.weights}, needs values in [0, 1]")


@dataclass(frozen=True)
class LatticeConfig:
    """Search and density of denominator lattices."""

    acoustic_scale: float = 0.3
    """Factor on acoustic log-likelihoods during the search; the same as in the sMBR training that
    uses the lattices."""
    density: float = 10.0
    """Most arcs per 30 ms frame in an utterance's lattice (C8: about 10)."""
    beam: Beam = Beam(search=13.0, output=8.0, max_active=3000)
    """Pruning of the search. Its output beam also limits lattices that stay below the density."""
    retries: tuple[float, ...] = (2.0, 4.0)
    """Factors by which the beam is widened when no path survives."""
    max_failed: float = 0.05
    """Share of utterances without a lattice above which the corpus counts as unusable."""

    def __post_init__(self) -> None:
        if not self.acoustic_scale > 0:
            raise ValueError("acoustic_scale must be positive")
        if not self.density >= 1:
            raise ValueError("density must be at least 1: the best path has an arc per frame")
        if not all(factor > 1 for factor in self.retries):
            raise ValueError("retries must be above 1")
        if not 0 <= self.max_failed <= 1:
            raise ValueError("max_failed must be from 0 to 1")


SYMBOLS = 50
"""Number of symbols, the most likely of a frame, by which prefixes of labels may be extended."""


def check_search(width: int, margin: float, symbols: int, nbest: int) -> None:
    """Check the settings that all beam searches share; raise ValueError for invalid ones."""
    for name, value in (("width", width), ("symbols", symbols), ("nbest", nbest)):
        if value < 1:
            raise ValueError(f"{name} is {value}, needs to be at least 1")
    if not margin > 0:
        raise ValueError(f"margin is {margin}, needs to be above 0")


@dataclass(frozen=True)
class PrefixConfig:
    """Settings of the search."""

    width: int = 256
    """Prefixes kept per frame (A24: 1 for sentences during training, 64 in the equal-batch study,
    256 for evaluation, 512 for the final table)."""
    margin: float = 25.0
    """Pruning beam in natural log units: prefixes this far below the best of a frame are dropped;
    inf always keeps `width` of them."""
    nbest: int = 1
    """Length of the n-best list."""

    def __post_init__(self) -> None:
        check_search(self.width, self.margin, SYMBOLS, self.nbest)


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
        modes = get_args(type(self).__annotations__["mode"])
        if self.mode not in modes:
            raise ValueError(f"mode is {self.mode!r}, not one of {', '.join(modes)}")
        if not 0 <= self.lm_weight < math.inf:
            raise ValueError(f"lm_weight is {self.lm_weight}, needs to be finite, 0 or more")
        if not math.isfinite(self.word_bonus):
            raise ValueError(f"word_bonus is {self.word_bonus}, needs to be finite")


@dataclass(frozen=True)
class GraphConfig:
    """Settings of the search and of the score of a text.

    Texts are scored as in `WordsConfig`, but with the best alignment instead of the sum over all.
    """

    beam: Beam = Beam(search=20.0, output=8.0)
    """Pruning of the search, in log-probabilities divided by `lm_weight`."""
    lm_weight: float = 1.0
    """Factor on the language model's log-probability."""
    word_bonus: float = 0.0
    """Added for each word; positive means more words."""
    nbest: int = 1
    """Length of the n-best list."""

    def __post_init__(self) -> None:
        if not self.lm_weight > 0:
            raise ValueError(f"lm_weight is {self.lm_weight}, needs to be above 0")
        if self.nbest < 1:
            raise ValueError(f"nbest is {self.nbest}, needs to be at least 1")


@dataclass(frozen=True)
class TuneConfig:
    """The grid of weights to try; it is extended where the best pair lies at its end."""

    lm_weights: tuple[float, ...] = (0.4, 0.7, 1.0, 1.5, 2.0)
    """Factors on the language model's log-probability."""
    word_bonuses: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Scores added per word; positive means more words."""
    untuned_within: float | None = None
    """Keep the decoder's own weight and bonus unless others make fewer errors by more than so many
    standard errors of the difference; None: the fewest errors decide."""

    def __post_init__(self) -> None:
        if not self.lm_weights or not self.word_bonuses:
            raise ValueError("lm_weights and word_bonuses need a value each")
        if not min(self.lm_weights) > 0:
            raise ValueError(f"lm_weights are {self.lm_weights}, need to be above 0")
        if self.untuned_within is not None and not self.untuned_within >= 0:
            raise ValueError(f"untuned_within is {self.untuned_within}, needs to be 0 or more")


@dataclass(frozen=True)
class BeamTuneConfig:
    """The beams to try."""

    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Widths, ascending; the last is doubled while twice the width finds better texts."""
    margins: tuple[float, ...] = (8.0, 10.0, 12.0, 15.0, 20.0, 25.0)
    """Margins in natural log units, ascending."""

    def __post_init__(self) -> None:
        for name in ("widths", "margins"):
            values = getattr(self, name)
            if not values or min(values) <= 0 or list(values) != sorted(set(values)):
                raise ValueError(f"{name} are {values}, need to be above 0 and ascending")


@dataclass(frozen=True)
class CtcDecodeConfig:
    """The searches of the final table."""

    prefix: PrefixConfig = PrefixConfig(width=512)
    """Prefix beam search without a dictionary."""
    words: WordsConfig = WordsConfig(width=512)
    """Beam search over dictionary words, without and with the language model."""
    graph: GraphConfig = GraphConfig()
    """Search in a graph of dictionary and language model."""
    tune: TuneConfig = TuneConfig()
    """The weights to try on the development splits."""
    tune_width: int = 64
    """Beam width of the search over dictionary words while its weights are tuned."""
    widest: int | None = None
    """The search over dictionary words is widened up to this width, while twice the width finds
    better texts on the development splits, as it does with weak networks. None: it is not, and the
    log says where it should be."""

    def __post_init__(self) -> None:
        if self.tune_width < 1:
            raise ValueError(f"tune_width is {self.tune_width}, needs to be at least 1")


@dataclass(frozen=True)
class EvaluationConfig:
    """The search that evaluates the epochs of a training."""

    search: Literal["prefixes", "words", "words+lm"] = "prefixes"
    """`prefixes` needs no dictionary; `words` finds dictionary words; `words+lm` weighs them with
    the n-grams (A21). Sample sentences are recognised by the same search with one prefix (A24),
    or greedily without a dictionary."""
    utterances: int | None = None
    """How many utterances are recognised, such as 25 or 250; None: all. They are chosen by a
    checksum of their ids. The loss is always that of all."""
    lm_weight: float = 1.0
    """Factor on the language model's log-probability."""
    word_bonus: float = 0.0
    """Added for each word."""

    def __post_init__(self) -> None:
        if self.search not in get_args(type(self).__annotations__["search"]):
            raise ValueError(f"search is {self.search!r}, needs to be prefixes, words or words+lm")
        if self.utterances is not None and self.utterances < 1:
            raise ValueError(f"utterances is {self.utterances}, needs to be at least 1")
        if not self.lm_weight >= 0:
            raise ValueError(f"lm_weight is {self.lm_weight}, needs to be 0 or more")

    def name(self, width: int) -> str:
        """Describe the search on the page and in its tables."""
        number = "all" if self.utterances is None else self.utterances
        return f"{self.search}, width {width}, {number} utterances"


@dataclass(frozen=True)
class SegmentConfig:
    """Where recordings are cut; times in seconds."""

    longest: float = 30.0
    """Longest segment. A recording that is no longer is left in one piece."""
    shortest: float = 5.0
    """Shortest segment that may end in a pause."""
    pause: float = 0.3
    """Shortest pause to cut in."""
    margin: float = 0.3
    """Silence that is kept around speech. The rest of a longer pause is dropped, if the acoustic
    model's posteriors of silence are known."""
    threshold: float = 0.35
    """Speech score, 0 to 1, below which a frame belongs to a pause."""

    def __post_init__(self) -> None:
        if not 0 < self.shortest < self.longest:
            raise ValueError("need 0 < shortest < longest")
        if self.pause <= 0 or self.margin < 0 or not 0 < self.threshold < 1:
            raise ValueError("need pause > 0, margin >= 0 and 0 < threshold < 1")


@dataclass(frozen=True)
class EndpointConfig:
    """Endpoint detection: when an utterance ends within a stream; times in seconds."""

    silence: float = 0.8
    """Silence after speech that ends an utterance."""
    longest: float = 30.0
    """Longest utterance."""

    def __post_init__(self) -> None:
        if not (self.silence > 0 and self.longest > 0):
            raise ValueError("silence and longest must be positive")
