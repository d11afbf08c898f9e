"""The search of utterances, first pass and lattice rescoring, and its lattices on disk."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

from torch import Tensor

from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.decode.tune import Axis, Keep, Point, difference_axis, ratio_axis
from toolkit.fsa.config import Beam, RescoreLimits
from toolkit.fsa.fst import Fst, Lattice, load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.lattice_store import read_scored, write_scored
from toolkit.fsa.rescore import Grammar, rescore_lattice
from toolkit.fsa.search import search_with_retries
from toolkit.lang.arpa import read_binary
from toolkit.lang.tables import SymbolTable
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import write_atomically


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
        for point in product(self.scales, self.penalties):
            Weights(*point)  # checks that they are finite

    def beams(self) -> list[Beam]:
        """Return the beams to try, in order."""
        return self.beam.with_retries(self.retries)

    @property
    def first_weights(self) -> Weights:
        """Those of the first search, and of what cannot be tuned."""
        return Weights(self.acoustic_scale, min(self.penalties, key=abs))

    @property
    def keep(self) -> Keep | None:
        """What tuning keeps, see `untuned_within`; a single scale is the user's choice."""
        if self.untuned_within is None:
            return None
        first = self.first_weights
        scale = self.scales[0] if len(self.scales) == 1 else first.acoustic_scale
        return Keep((scale, first.word_penalty), self.untuned_within)

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Scales and penalties to begin with."""
        scales, penalties = weight_axes(self.scales, self.penalties)
        if self.keep is None:
            return scales, penalties
        scale, penalty = self.keep.point
        return scales.including(scale), penalties.including(penalty)


WEIGHTS = ("acoustic_scale", "word_penalty")
"""The fields of `Weights`, in the order of the axes of a grid."""


def weight_axes(scales: Sequence[float], penalties: Sequence[float]) -> tuple[Axis, Axis]:
    """A grid of acoustic scales and word penalties."""
    return ratio_axis("scale", scales), difference_axis("penalty", penalties)


def smallest_change(point: Point, search_scale: float | None) -> tuple[float, ...]:
    """Orders weights with equally many errors: the smallest penalty, the nearest scale."""
    scale, penalty = point
    return abs(penalty), abs(math.log(scale / search_scale)), scale


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
    `toolkit.lang.arpa`; None for a single pass."""

    def at(self, acoustic_scale: float) -> "Decoder":
        """The same, searching at another acoustic scale."""
        return replace(self, config=replace(self.config, acoustic_scale=acoustic_scale))

    @property
    def passes(self) -> int:
        """Number of passes: two with a `rescorer`, otherwise one."""
        return 1 if self.rescorer is None else 2


@dataclass(frozen=True)
class DecodedPass:
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
    """See `DecodedPass.beam`."""
    lattices: tuple[Lattice, ...]
    """One for each pass; empty when no path survived the widest beam."""
    seconds: tuple[float, ...]
    """Time of the scores and processor time up to the end of each pass."""
    cut: bool
    """See `DecodedPass.cut`."""


def search(scored: ScoredUtterance, decoder: Decoder) -> SearchResult:
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


def last_lattice(scored: ScoredUtterance, decoder: Decoder) -> ScoredLattice | None:
    """Make the lattice of one utterance after all passes; None if no path survives."""
    result = search(scored, decoder)
    if not result.lattices:
        return None
    return ScoredLattice.of(result.lattices[-1], result.scores, decoder.config.acoustic_scale)


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


def real_time_factor(decoded: Sequence[DecodedPass]) -> float:
    """Return the real-time factor: seconds of one core per second of speech."""
    audio = sum(d.audio_seconds for d in decoded)
    return sum(d.decode_seconds for d in decoded) / audio if audio else float("nan")


LATTICES = "searched.*.safetensors"
"""Files of lattices, which are removed when no more is to be found in them."""


@dataclass(frozen=True)
class SearchedUtterance:
    """What the search of an utterance has left."""

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
    """The folder, which is made, of what searches of a split at an acoustic scale leave."""
    folder = out / split / "decoded" / f"{scale:g}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def decode_store(
    scorer: Scorer,
    decoder: Decoder,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[DecodedPass]]:
    """Decode every utterance of the scorer's feature store.

    Lattices are made once, at the acoustic scale of the search, and kept in `out`; each pair of
    weights then takes its best path, also in later calls. An utterance of which no path survives
    even the widest beam gets empty hypotheses, as does one without features.

    Args:
      scorer: the acoustic model with its features.
      decoder: graph and search.
      weights: for each pass the pairs of scale and penalty to decode with.
      out: the folder that gets files per feature shard; those of an earlier call, with the same
        scorer and decoder, are kept.
      jobs: worker processes; threads beside a network on a GPU.
      progress: called with (shards done, shards).

    Returns:
      For each pass the utterances in the order of the store, then those without features.
    """
    work = partial(_decode_shard, decoder, weights, out)
    decoded: list[list[DecodedPass]] = [[] for _ in range(decoder.passes)]
    for path in map_scored_shards(work, scorer, jobs, "decode", progress):
        for line in path.read_text(encoding="utf-8").splitlines():
            for utterances, fields in zip(decoded, json.loads(line), strict=True):
                utterances.append(
                    DecodedPass(**{**fields, "hypotheses": tuple(fields["hypotheses"])})
                )
    for utterances, pairs in zip(decoded, weights, strict=True):
        no_hypotheses = ("",) * len(pairs)
        utterances += [
            DecodedPass(cut.id, cut.duration, 0.0, 0.0, no_hypotheses)
            for cut in scorer.store.failed_cuts
        ]
    return decoded


def remove_lattices(folder: Path) -> None:
    """Remove the lattices that `decode_store` has kept in a folder or below it."""
    for path in folder.rglob(LATTICES):
        path.unlink()


def _decode_shard(
    decoder: Decoder,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> Path:
    number = shard[0]
    tried = [[asdict(pair) for pair in pairs] for pairs in weights]
    name = digest_bytes(json.dumps(tried).encode())[:8]
    path = out / f"passes-{name}.{number:06d}.jsonl"
    if not path.exists():
        table = SymbolTable.read(decoder.words)
        searched = searched_shard(decoder, out, scorer, threads, shard)
        lines = [
            json.dumps(_best_paths(utterance, weights, table)) + "\n" for utterance in searched
        ]
        write_atomically(path, "".join(lines))
    return path


def searched_shard(
    decoder: Decoder, folder: Path, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]
) -> list[SearchedUtterance]:
    """The lattices of a shard: those in a folder, or of a search that leaves them there.

    Args:
      decoder: graph and search.
      folder: of lattices made with the same scorer and decoder, see `search_folder`.
      scorer, threads, shard: see `toolkit.align.scorer.Work`.
    """
    number, ids = shard
    path = folder / LATTICES.replace("*", f"{number:06d}")
    if not path.exists():
        _search_shard(decoder, path, scorer, threads, ids)
    stored, descriptions = read_scored(path)
    lattices = iter(stored)
    utterances = []
    for fields in json.loads(descriptions):
        of_utterance = tuple(next(lattices) for _ in range(decoder.passes if fields["beam"] else 0))
        utterances.append(
            SearchedUtterance(
                **fields | {"seconds": tuple(fields["seconds"])}, lattices=of_utterance
            )
        )
    return utterances


def _search_shard(
    decoder: Decoder, path: Path, scorer: Scorer, threads: int, ids: Sequence[str]
) -> None:
    """Write the lattices of a shard, and what else is known of its utterances."""
    load_once(decoder)
    scale = decoder.config.acoustic_scale

    def searched(scored: ScoredUtterance) -> SearchedUtterance:
        result = search(scored, decoder)
        return SearchedUtterance(
            scored.utterance,
            round(scorer.store.cut(scored.utterance).duration, 4),
            result.seconds,
            result.beam,
            result.cut,
            tuple(ScoredLattice.of(x, result.scores, scale) for x in result.lattices),
        )

    descriptions, lattices = [], []
    for utterance in map_utterances(searched, scorer, ids, threads):
        descriptions.append({k: v for k, v in vars(utterance).items() if k != "lattices"})
        lattices += utterance.lattices
    write_scored(path, lattices, json.dumps(descriptions))


def _best_paths(
    searched: SearchedUtterance, weights: Sequence[Sequence[Weights]], table: SymbolTable
) -> list[dict]:
    """The fields of `DecodedPass` for each pass."""
    passes = []
    for pass_number, pairs in enumerate(weights):
        start = time.process_time()
        hypotheses = [""] * len(pairs)
        if searched.lattices:
            paths = [searched.lattices[pass_number].best_words(pair) for pair in pairs]
            hypotheses = [" ".join(map(table.symbol, path)) for path in paths]
        spent = (time.process_time() - start) / len(pairs)
        passes.append(
            {
                "utterance": searched.utterance,
                "audio_seconds": searched.audio_seconds,
                "decode_seconds": round(searched.seconds[pass_number] + spent, 6),
                "beam": searched.beam,
                "hypotheses": hypotheses,
                "cut": searched.cut and pass_number > 0,
            }
        )
    return passes
