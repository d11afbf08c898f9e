"""Searches utterances in one or two passes (decoding, lattice rescoring); stores the lattices."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.decode.config import DecodeConfig
from toolkit.decode.decoded import DecodedUtterance, NbestList
from toolkit.decode.tune import Axis, Keep, Point, difference_axis, ratio_axis
from toolkit.decode.words import WordAligner
from toolkit.fsa.config import Beam, RescoreLimits
from toolkit.fsa.fst import Fst, Lattice, load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.lattice_store import LatticeStore, ScoredCodec, write_lattices
from toolkit.fsa.nbest import n_best
from toolkit.fsa.online_search import OnlineSearch
from toolkit.fsa.rescore import Grammar, rescore_lattice
from toolkit.fsa.search import search_with_retries
from toolkit.lang.arpa import read_binary
from toolkit.lang.tables import SymbolTable

WEIGHTS = ("acoustic_scale", "word_penalty")
"""The fields of `Weights`, in the order of a grid's axes."""


def first_weights(config: DecodeConfig) -> Weights:
    """Return the first search's acoustic scale, and the penalty nearest 0.

    These weights stay if there are too few words to tune on.
    """
    return Weights(config.acoustic_scale, min(config.penalties, key=abs))


def weights_to_keep(config: DecodeConfig) -> Keep | None:
    """Return the weights that tuning keeps; None if `untuned_within` is None."""
    if config.untuned_within is None:
        return None
    first = first_weights(config)
    scale = config.scales[0] if len(config.scales) == 1 else first.acoustic_scale
    return Keep((scale, first.word_penalty), config.untuned_within)


def first_axes(config: DecodeConfig) -> tuple[Axis, Axis]:
    """Return the acoustic scales and word penalties to begin tuning with."""
    scales, penalties = weight_axes(config.scales, config.penalties)
    keep = weights_to_keep(config)
    if keep is None:
        return scales, penalties
    scale, penalty = keep.point
    return scales.including(scale), penalties.including(penalty)


def weight_axes(scales: Sequence[float], penalties: Sequence[float]) -> tuple[Axis, Axis]:
    """Return the axes of acoustic scales and word penalties."""
    return ratio_axis("scale", scales), difference_axis("penalty", penalties)


def smallest_change(point: Point, search_scale: float | None) -> tuple[float, ...]:
    """Return a sort key for weights with equal errors.

    The penalty nearest 0 comes first, then the scale nearest `search_scale`.
    """
    scale, penalty = point
    return abs(penalty), abs(math.log(scale / search_scale)), scale


@dataclass(frozen=True)
class DecoderFiles:
    """Paths and settings of a search, except the acoustic model.

    Worker processes get this and open it, see `open_decoder`.
    """

    graph: Path
    """The decoding graph's file."""
    words: Path
    """`words.txt`."""
    config: DecodeConfig
    """The search."""
    rescorer: Path | None = None
    """The language model that rescores the lattices in a second pass, as written by
    `toolkit.lang.arpa`; None for a single pass."""

    def at(self, acoustic_scale: float) -> "DecoderFiles":
        """Return the same search at another acoustic scale."""
        return replace(self, config=replace(self.config, acoustic_scale=acoustic_scale))

    @property
    def passes(self) -> int:
        """Number of passes: two with a `rescorer`, otherwise one."""
        return 1 if self.rescorer is None else 2


@dataclass(frozen=True)
class DecodedPass:
    """One utterance decoded by one pass with several pairs of weights."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance in seconds."""
    decode_seconds: float
    """CPU time of the network, this pass and earlier passes, for one pair of weights. A network on
    a GPU counts with this utterance's share of a batch's wall time."""
    beam: float
    """The search beam that gave a lattice; 0 if none did, and hypotheses are then empty."""
    hypotheses: tuple[str, ...]
    """Words, one string for each pair of weights."""
    cut: bool = False
    """Whether rescoring reached its memory limit and dropped paths."""


@dataclass(frozen=True)
class SearchResult:
    """The lattices of one utterance, and the time that they took."""

    scores: Tensor
    """[T, P] log-likelihoods times `acoustic_scale`."""
    acoustic_scale: float
    """The acoustic scale of the search."""
    beam: float
    """See `DecodedPass.beam`."""
    lattices: tuple[Lattice, ...]
    """One for each pass; empty when no path survived the widest beam."""
    seconds: tuple[float, ...]
    """CPU time up to the end of each pass."""
    cut: bool
    """See `DecodedPass.cut`."""

    def scored_lattice(self, number: int) -> ScoredLattice:
        """Return the lattice of a pass with acoustic and graph scores kept apart."""
        return ScoredLattice.of(self.lattices[number], self.scores, self.acoustic_scale)

    @property
    def last_lattice(self) -> ScoredLattice | None:
        """The lattice of the last pass; None if no path survived."""
        return self.scored_lattice(-1) if self.lattices else None


class NbestRescorer(Protocol):
    """Chooses a hypothesis from an n-best list; `toolkit.decode.rescore.Rescorer` does so."""

    def best(self, nbest: NbestList) -> str:
        """Return the words of the best hypothesis."""

    def words(self, nbest: NbestList) -> tuple[list[str], list[float]]:
        """Return the words of the best hypothesis with their posteriors."""


@dataclass(frozen=True)
class NeuralPass:
    """Settings of the last pass: a neural language model rescores n-best lists."""

    rescorer: NbestRescorer
    """The model and its weights."""
    count: int
    """Length of the lists."""


@dataclass(frozen=True)
class Decoder:
    """A search with its files loaded, for a recipe's decoding or a bundle.

    It may be used by several threads at a time.
    """

    graph: Fst
    """The decoding graph."""
    words: SymbolTable
    """The symbol table of its words."""
    acoustic_scale: float
    """Factor on the log-likelihoods in the search."""
    beams: Sequence[Beam]
    """Beams: each is tried if no path survives the previous one."""
    grammar: Grammar | None = None
    """The n-grams that rescore the lattices in a second pass; None: there is no such pass."""
    limits: RescoreLimits = RescoreLimits()
    """Pruning of the second pass."""
    neural: NeuralPass | None = None
    """The pass with a neural language model, see `best`; None if there is none."""

    def search(
        self, log_likelihoods: Tensor, clock: Callable[[], float] = time.process_time
    ) -> SearchResult:
        """Make the lattices of one utterance, one per pass.

        Args:
          log_likelihoods: [T, P] float32.
          clock: measures the time of each pass.
        """
        start = clock()
        scores = log_likelihoods * self.acoustic_scale  # [T, P] float32
        lattice, beam = search_with_retries(scores, self.graph, self.beams)
        return self._rescored(scores, lattice, beam, clock() - start, clock)

    def _rescored(
        self,
        scores: Tensor,
        lattice: Lattice | None,
        beam: Beam,
        seconds: float,
        clock: Callable[[], float] = time.process_time,
    ) -> SearchResult:
        """Add the second pass's lattice to that of the first pass, which took `seconds`."""
        num_passes = 1 if self.grammar is None else 2
        if lattice is None:
            return SearchResult(
                scores, self.acoustic_scale, 0.0, (), (seconds,) * num_passes, False
            )
        if self.grammar is None:
            return SearchResult(
                scores, self.acoustic_scale, beam.search, (lattice,), (seconds,), False
            )
        start = clock()
        rescored = rescore_lattice(lattice, self.grammar, self.limits)
        return SearchResult(
            scores,
            self.acoustic_scale,
            beam.search,
            (lattice, rescored.lattice),
            (seconds, seconds + clock() - start),
            rescored.cut,
        )

    def best(
        self, result: SearchResult, weights: Weights, aligner: WordAligner | None = None
    ) -> DecodedUtterance:
        """Return the best words of an utterance after all passes, including the neural one.

        Args:
          result: the result of `search`.
          weights: acoustic scale and word penalty of the best path, or of the n-best list.
          aligner: finds word times and confidences; None: leave them out.
        """
        lattice = result.last_lattice
        if lattice is None:
            return DecodedUtterance("", None if aligner is None else ())
        scores, scale = result.scores, result.acoustic_scale
        if self.neural is not None:
            # The neural model chooses from an n-best list that `weights` have ordered.
            hypotheses = n_best(lattice, weights, self.neural.count)
            nbest = NbestList.of(hypotheses, weights, self.words)
            if aligner is None:
                return DecodedUtterance(self.neural.rescorer.best(nbest))
            names, posteriors = self.neural.rescorer.words(nbest)
            tokens = aligner.timed(names, posteriors, scores, scale)
            return DecodedUtterance(" ".join(names), tuple(tokens))
        if aligner is None:
            return DecodedUtterance(self.text(lattice.best_words(weights)))
        tokens = aligner(lattice, weights, scores, scale)
        return DecodedUtterance(" ".join(token.token for token in tokens), tuple(tokens))

    def text(self, words: Sequence[int]) -> str:
        """Return the words with these ids, separated by spaces."""
        return " ".join(map(self.words.symbol, words))

    def start(self, weights: Weights, aligner: WordAligner | None = None) -> "SearchStream":
        """Begin to search an utterance whose scores arrive block by block.

        Args:
          weights, aligner: see `best`.
        """
        return SearchStream(self, weights, aligner)


class SearchStream:
    """The search of an utterance whose scores arrive in blocks.

    Args:
      decoder: the graph, the settings of the search, and its later passes.
      weights, aligner: see `Decoder.best`.
    """

    def __init__(self, decoder: Decoder, weights: Weights, aligner: WordAligner | None) -> None:
        self._decoder, self._weights, self._aligner = decoder, weights, aligner
        self._search = OnlineSearch(decoder.graph, decoder.beams[0])
        self._scores: list[Tensor] = []

    @property
    def num_rows(self) -> int:
        """Number of rows of scores searched so far."""
        return self._search.num_frames

    def advance(self, log_likelihoods: Tensor) -> None:
        """Search the next rows [t, P]."""
        scores = log_likelihoods * self._decoder.acoustic_scale
        self._scores.append(scores)
        self._search.advance(scores)

    def partial_text(self, speech: bool) -> str:
        """Return the words so far, which may still change.

        Args:
          speech: whether speech has begun. If so, and no word is finished yet, words that may be
            under way are returned.
        """
        words = self._search.best_words()
        if not words and speech:
            words = self._search.next_words()
        return self._decoder.text(words)

    def finish(self) -> DecodedUtterance:
        """End the utterance; return its best words after all passes."""
        # If no path has survived, all scores are searched again with the wider beams.
        scores, beams = torch.cat(self._scores), self._decoder.beams
        lattice, beam = self._search.finish(), beams[0]
        if lattice is None and len(scores):
            lattice, beam = search_with_retries(scores, self._decoder.graph, beams[1:])
        result = self._decoder._rescored(scores, lattice, beam, seconds=0.0)
        return self._decoder.best(result, self._weights, self._aligner)


def open_decoder(files: DecoderFiles) -> Decoder:
    """Load the files of a search; graph and language model are loaded once per process.

    Call it before several threads of this process search.
    """
    grammar = None
    if files.rescorer is not None:
        grammar = _grammar(files.rescorer, files.words)
    config = files.config
    return Decoder(
        _decoding_graph(files.graph),
        SymbolTable.read(files.words),
        config.acoustic_scale,
        config.beams(),
        grammar,
        config.rescoring,
    )


# One entry each: shared workers would otherwise keep the graphs of earlier systems.
@lru_cache(maxsize=1)
def _decoding_graph(path: Path) -> Fst:
    """Load a decoding graph, once per process."""
    return load_fst(path)


@lru_cache(maxsize=1)
def _grammar(path: Path, words: Path) -> Grammar:
    """Load a language model, once per process."""
    return Grammar(read_binary(path), SymbolTable.read(words))


def real_time_factor(decoded: Sequence[DecodedPass]) -> float:
    """Return the real-time factor: CPU seconds on one core per second of speech."""
    audio = sum(d.audio_seconds for d in decoded)
    return sum(d.decode_seconds for d in decoded) / audio if audio else float("nan")


@dataclass(frozen=True)
class SearchedUtterance:
    """Lattices and times of one utterance's search, as stored in a shard."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    seconds: tuple[float, ...]
    """See `toolkit.decode.search.SearchResult`."""
    beam: float
    """See `DecodedPass.beam`."""
    cut: bool
    """See `DecodedPass.cut`."""
    lattices: tuple[ScoredLattice, ...] = ()
    """One for each pass; empty when no path survived the widest beam."""


def search_folder(out: Path, split: str, scale: float) -> Path:
    """Make and return the folder for the lattices of a split at an acoustic scale."""
    folder = out / split / "decoded" / f"{scale:g}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def decode_store(
    scorer: Scorer,
    files: DecoderFiles,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[DecodedPass]]:
    """Decode every utterance of the scorer's feature store.

    Lattices are made once, at the acoustic scale of the search, and kept in `out`. This call and
    later ones take the best path for each pair of weights from the lattices. An utterance gets
    empty hypotheses if no path survives the widest beam, or if it has no features.

    Args:
      scorer: the acoustic model with its features.
      files: graph and search.
      weights: for each pass, the pairs of scale and penalty to decode with.
      out: the folder that gets files per feature shard; files of an earlier call with the same
        scorer and decoder are kept.
      jobs: worker processes, or threads if the network runs on a GPU.
      progress: called with (shards done, shards).

    Returns:
      For each pass the utterances in the order of the store, then those without features.
    """
    decode_shard = partial(_decode_shard, files, weights, out)
    decoded: list[list[DecodedPass]] = [[] for _ in range(files.passes)]
    for shard in map_scored_shards(decode_shard, scorer, jobs, "decode", progress):
        for by_pass in shard:
            for utterances, utterance in zip(decoded, by_pass, strict=True):
                utterances.append(utterance)
    # Every utterance gets a line: those without features have no words.
    for utterances, pairs in zip(decoded, weights, strict=True):
        no_hypotheses = ("",) * len(pairs)
        utterances += [
            DecodedPass(cut.id, cut.duration, 0.0, 0.0, no_hypotheses)
            for cut in scorer.store.failed_cuts
        ]
    return decoded


def remove_lattices(folder: Path) -> None:
    """Remove the lattices that `decode_store` kept in a folder and below it."""
    for path in folder.rglob(ScoredCodec().pattern):
        path.unlink()


def _decode_shard(
    files: DecoderFiles,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> list[list[DecodedPass]]:
    """Decode a shard; return for each utterance one `DecodedPass` per pass."""
    table = SymbolTable.read(files.words)
    searched = searched_shard(files, out, scorer, threads, shard)
    return [_best_paths(utterance, weights, table) for utterance in searched]


def searched_shard(
    files: DecoderFiles,
    folder: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> list[SearchedUtterance]:
    """Return the lattices of a shard: read them from a folder, or search and store them there.

    Args:
      files: graph and search.
      folder: the folder of lattices made with the same scorer and decoder, see `search_folder`.
      scorer, threads, shard: see `toolkit.align.scorer.Work`.
    """
    number, ids = shard
    codec = ScoredCodec()
    path = codec.path(folder, number)
    if not path.exists():
        _search_shard(files, path, scorer, threads, ids)
    store = LatticeStore(path, codec)
    return [
        SearchedUtterance(
            **{**search, "seconds": tuple(search["seconds"])},
            lattices=store.load(search["utterance"]) if search["beam"] else (),
        )
        for search in store.headers[path].info
    ]


def _search_shard(
    files: DecoderFiles, path: Path, scorer: Scorer, threads: int, ids: Sequence[str]
) -> None:
    """Search the utterances of a shard, and write their lattices and times."""
    decoder = open_decoder(files)

    def searched(scored: ScoredUtterance) -> SearchedUtterance:
        result = decoder.search(scored.log_likelihoods, scored.clock)
        return SearchedUtterance(
            scored.utterance,
            round(scorer.store.cut(scored.utterance).duration, 4),
            # The network's time is part of every pass's time.
            tuple(scored.seconds + seconds for seconds in result.seconds),
            result.beam,
            result.cut,
            tuple(map(result.scored_lattice, range(len(result.lattices)))),
        )

    utterances = list(map_utterances(searched, scorer, ids, threads))
    searches = [{k: v for k, v in vars(u).items() if k != "lattices"} for u in utterances]
    lattices = {u.utterance: u.lattices or None for u in utterances}
    write_lattices(path, lattices, ScoredCodec(), searches)


def _best_paths(
    searched: SearchedUtterance, weights: Sequence[Sequence[Weights]], table: SymbolTable
) -> list[DecodedPass]:
    """Return for each pass the utterance's best path under each pair of weights."""
    passes = []
    for pass_number, pairs in enumerate(weights):
        start = time.process_time()
        hypotheses = ("",) * len(pairs)
        if searched.lattices:
            paths = [searched.lattices[pass_number].best_words(pair) for pair in pairs]
            hypotheses = tuple(" ".join(map(table.symbol, path)) for path in paths)
        seconds_per_pair = (time.process_time() - start) / len(pairs)
        passes.append(
            DecodedPass(
                searched.utterance,
                searched.audio_seconds,
                round(searched.seconds[pass_number] + seconds_per_pair, 6),
                searched.beam,
                hypotheses,
                searched.cut and pass_number > 0,
            )
        )
    return passes
