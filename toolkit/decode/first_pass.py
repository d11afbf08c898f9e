"""The search of one utterance: first pass and lattice rescoring."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from toolkit.align.scored import Scored
from toolkit.decode.tuning import Grid, Untuned
from toolkit.fsa.beam import Beam
from toolkit.fsa.files import load_fst
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.rescore import Grammar, RescoreLimits, rescore_lattice
from toolkit.fsa.search import search_with_retries
from toolkit.lang.ngram.binary import read_binary
from toolkit.lang.tables import SymbolTable


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
        if min(self.acoustic_scale, *self.scales) <= 0:
            raise ValueError("acoustic scales must be positive")
        if self.untuned_within is not None and not self.untuned_within >= 0:
            raise ValueError(f"untuned_within is {self.untuned_within}, needs to be 0 or more")
        self.beams()
        self.grid.pairs()  # checks that they are finite

    def beams(self) -> list[Beam]:
        """Return the beams to try, in order."""
        return self.beam.with_retries(self.retries)

    @property
    def first_weights(self) -> Weights:
        """Those of the first search, and of what cannot be tuned."""
        return Weights(self.acoustic_scale, min(self.penalties, key=abs))

    @property
    def untuned(self) -> Untuned | None:
        """What tuning keeps, see `untuned_within`; a single scale is the user's choice."""
        if self.untuned_within is None:
            return None
        first = self.first_weights
        scale = self.scales[0] if len(self.scales) == 1 else first.acoustic_scale
        return Untuned(Weights(scale, first.word_penalty), self.untuned_within)

    @property
    def grid(self) -> Grid:
        """Scales and penalties to begin with."""
        grid = Grid(self.scales, self.penalties)
        return grid if self.untuned is None else grid.including(self.untuned.weights)


@dataclass(frozen=True)
class Decoder:
    """Graph, language model and search: all but the acoustic model.

    It is passed to worker processes and therefore holds paths.
    """

    graph: Path
    """The decoding graph's file."""
    words: Path
    """`words.txt`."""
    config: DecodeConfig
    """The search."""
    rescorer: Path | None = None
    """The language model that rescores the lattices in a second pass, as written by
    `toolkit.lang.ngram.binary`; None for a single pass."""

    def at(self, acoustic_scale: float) -> "Decoder":
        """The same, searching at another acoustic scale."""
        return replace(self, config=replace(self.config, acoustic_scale=acoustic_scale))

    @property
    def passes(self) -> int:
        """Number of passes: two with a `rescorer`, otherwise one."""
        return 1 if self.rescorer is None else 2


@dataclass(frozen=True)
class Decoded:
    """One utterance decoded with several pairs of weights."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    decode_seconds: float
    """Processor time of the network, this pass and those before it, for one pair of weights; of a
    network on a GPU the utterance's share of its batch's wall time."""
    beam: float
    """The search beam that gave a lattice; 0 if none did, in which case hypotheses are empty."""
    hypotheses: tuple[str, ...]
    """Words, one string for each pair of weights."""
    cut: bool = False
    """Whether rescoring reached its memory limit and dropped paths."""


@dataclass(frozen=True)
class SearchResult:
    """The lattices of one utterance."""

    scores: Tensor
    """[T, P] log-likelihoods times `DecodeConfig.acoustic_scale`."""
    beam: float
    """See `Decoded.beam`."""
    lattices: tuple[Lattice, ...]
    """One for each pass; empty when no path survived the widest beam."""
    seconds: tuple[float, ...]
    """Time of the scores and processor time up to the end of each pass."""
    cut: bool
    """See `Decoded.cut`."""


def search(scored: Scored, decoder: Decoder) -> SearchResult:
    """Make the lattices of one utterance, one for each pass."""
    graph, config = decoding_graph(decoder.graph), decoder.config
    grammar = decoder.rescorer and _grammar(decoder.rescorer, decoder.words)
    start = scored.clock() - scored.seconds
    scores = scored.log_likelihoods * config.acoustic_scale
    lattice, beam = search_with_retries(scores, graph, config.beams())
    seconds = [scored.clock() - start] * decoder.passes
    if lattice is None:
        return SearchResult(scores, 0.0, (), tuple(seconds), False)
    lattices, cut = [lattice], False
    if grammar is not None:
        rescored = rescore_lattice(lattice, grammar, config.rescoring)
        lattices, cut = [lattice, rescored.lattice], rescored.cut
        seconds[1] = scored.clock() - start
    return SearchResult(scores, beam.search, tuple(lattices), tuple(seconds), cut)


def last_lattice(scored: Scored, decoder: Decoder) -> ScoredLattice | None:
    """Make the lattice of one utterance after all passes; None if no path survives."""
    found = search(scored, decoder)
    if not found.lattices:
        return None
    return ScoredLattice.of(found.lattices[-1], found.scores, decoder.config.acoustic_scale)


@lru_cache(maxsize=1)
def decoding_graph(path: Path) -> Fst:
    """Load a graph, once per process."""
    return load_fst(path)


def load_once(decoder: Decoder) -> None:
    """Load what searches read, before several threads of this process do so."""
    decoding_graph(decoder.graph)
    if decoder.rescorer is not None:
        _grammar(decoder.rescorer, decoder.words)


@lru_cache(maxsize=1)
def _grammar(path: Path, words: Path) -> Grammar:
    """Load the language model of the second pass, once per process."""
    return Grammar(read_binary(path), SymbolTable.read(words))


def real_time_factor(decoded: Sequence[Decoded]) -> float:
    """Return the real-time factor: seconds of one core per second of speech."""
    audio = sum(d.audio_seconds for d in decoded)
    return sum(d.decode_seconds for d in decoded) / audio if audio else float("nan")
