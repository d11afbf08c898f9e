"""The passes of decoding, utterance by utterance: lattices, and best paths of a grid of weights."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from toolkit.align.scorer import Scorer
from toolkit.features.store import map_shards
from toolkit.fsa.arcs import Fsa, load_graph
from toolkit.fsa.density import number_arcs
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.rescore import Grammar, RescoreLimits, rescore_lattice
from toolkit.fsa.search import Beam, search_widening
from toolkit.lang.ngram.binary import read_binary
from toolkit.lang.tables import SymbolTable
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class DecodeConfig:
    """Search, and what is tuned on the development set (C2)."""

    acoustic_scale: float = 0.1
    """Factor on acoustic log-likelihoods during the search."""
    scales: tuple[float, ...] = (0.05, 0.06, 0.08, 0.1, 0.12)
    """Acoustic scales tried on the development set."""
    penalties: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0)
    """Scores per word tried on the development set; negative means fewer words."""
    beam: Beam = Beam(search=13.0, output=4.0, max_active=3000)
    """The pruning."""
    retries: tuple[float, ...] = (2.0, 4.0)
    """Factors by which the beam is widened when no path survives."""
    rescoring: RescoreLimits = RescoreLimits()
    """The pruning when a larger language model rescores the lattices."""

    def grid(self) -> list[Weights]:
        """Every pair of scale and penalty."""
        return [Weights(scale, penalty) for scale in self.scales for penalty in self.penalties]

    def beams(self) -> list[Beam]:
        """The beams to try, in order."""
        return self.beam.tries(self.retries)


@dataclass(frozen=True)
class Decoder:
    """Everything but the acoustic model; passed to worker processes, so it holds paths."""

    graph: Path
    """The decoding graph's file."""
    words: Path
    """`words.txt`."""
    config: DecodeConfig
    """The search."""
    rescorer: Path | None = None
    """The language model of a second pass, as `toolkit.lang.ngram.binary` writes it; None for one
    pass alone."""

    @property
    def passes(self) -> int:
        """One, or two with a `rescorer`."""
        return 1 if self.rescorer is None else 2


@dataclass(frozen=True)
class Decoded:
    """One utterance decoded with several weights."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    decode_seconds: float
    """Processor time of the network, this pass and those before it, for one of the weights."""
    beam: float
    """The search beam that gave a lattice; 0 if none did: the hypotheses are empty then."""
    hypotheses: tuple[str, ...]
    """Words, one string for each of the weights asked for."""
    cut: bool = False
    """Whether rescoring met its bound of memory and dropped paths for it."""


@dataclass(frozen=True)
class Searched:
    """An utterance's lattices."""

    scores: Tensor
    """[T, P] log-likelihoods times `DecodeConfig.acoustic_scale`."""
    beam: float
    """See `Decoded.beam`."""
    lattices: tuple[Fsa, ...]
    """One for each pass; empty when no path survived the widest beam."""
    seconds: tuple[float, ...]
    """Processor time until each pass was done."""
    cut: bool
    """See `Decoded.cut`."""


def search(utterance: str, scorer: Scorer, decoder: Decoder) -> Searched:
    """Make the lattices of all passes of one utterance."""
    graph, config = decoding_graph(decoder.graph), decoder.config
    grammar = decoder.rescorer and _grammar(decoder.rescorer, decoder.words)
    start = time.process_time()
    scores = scorer.log_likelihoods(utterance) * config.acoustic_scale
    lattice, beam = search_widening(scores, graph, config.beams())
    seconds = [time.process_time() - start] * decoder.passes
    if lattice is None:
        return Searched(scores, 0.0, (), tuple(seconds), False)
    lattices, cut = [lattice], False
    if grammar is not None:
        rescored = rescore_lattice(lattice, grammar, config.rescoring)
        lattices, cut = [lattice, rescored.lattice], rescored.cut
        seconds[1] = time.process_time() - start
    return Searched(scores, beam.search, tuple(lattices), tuple(seconds), cut)


def decode_store(
    scorer: Scorer,
    decoder: Decoder,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Decoded]]:
    """Decode every utterance of the scorer's feature store.

    Lattices are made once, at the search's acoustic scale; each of `weights` takes its best path.
    Every utterance gets a line: where no path survives even the widest beam it is empty.

    Args:
      scorer: the acoustic model with its features.
      decoder: graph and search.
      weights: scales and penalties to decode with, for each pass.
      out: gets a file per feature shard; those of an earlier run are kept.
      jobs: worker processes.
      progress: told (shards done, shards).

    Returns:
      For each pass the utterances in the order of the store.
    """
    work = partial(_decode_shard, scorer, decoder, weights, out)
    decoded: list[list[Decoded]] = [[] for _ in range(decoder.passes)]
    for path in map_shards(work, scorer.store, jobs, "decode", progress):
        for line in path.read_text(encoding="utf-8").splitlines():
            for found, plain in zip(decoded, json.loads(line), strict=True):
                found.append(Decoded(**{**plain, "hypotheses": tuple(plain["hypotheses"])}))
    return decoded


@lru_cache(maxsize=1)
def decoding_graph(path: Path) -> Fsa:
    """A graph whose lattices can be stored, loaded once per process."""
    return number_arcs(load_graph(path))


@lru_cache(maxsize=1)
def _grammar(path: Path, words: Path) -> Grammar:
    """The second pass's language model, loaded once per process."""
    return Grammar(read_binary(path), SymbolTable.read(words))


def _decode_shard(
    scorer: Scorer,
    decoder: Decoder,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    shard: tuple[int, Sequence[str]],
) -> Path:
    number, ids = shard
    path = out / f"passes.{number:06d}.jsonl"
    if path.exists():
        return path
    table = SymbolTable.read(decoder.words)
    lines = []
    for utterance in ids:
        found = search(utterance, scorer, decoder)
        plain = []
        for pass_number, wanted in enumerate(weights):
            start = time.process_time()
            hypotheses = [""] * len(wanted)
            if found.lattices:
                scored = ScoredLattice(
                    found.lattices[pass_number], found.scores, decoder.config.acoustic_scale
                )
                paths = [scored.best_words(weight) for weight in wanted]
                hypotheses = [" ".join(map(table.symbol, path)) for path in paths]
            seconds = found.seconds[pass_number] + (time.process_time() - start) / len(wanted)
            plain.append(
                {
                    "utterance": utterance,
                    "audio_seconds": round(scorer.store.cut(utterance).duration, 4),
                    "decode_seconds": round(seconds, 4),
                    "beam": found.beam,
                    "hypotheses": hypotheses,
                    "cut": found.cut and pass_number > 0,
                }
            )
        lines.append(json.dumps(plain))
    write_atomically(path, "".join(line + "\n" for line in lines))
    return path


def real_time_factor(decoded: Sequence[Decoded]) -> float:
    """Seconds of one core per second of speech."""
    audio = sum(d.audio_seconds for d in decoded)
    return sum(d.decode_seconds for d in decoded) / audio if audio else float("nan")
