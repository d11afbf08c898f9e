"""First pass: lattices from a decoding graph, best paths for a grid of scales and penalties."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from tqdm import tqdm

from toolkit.align.scorer import Scorer
from toolkit.fsa.arcs import Fsa, load_graph
from toolkit.fsa.lattice import Weights, reweighted_best_path
from toolkit.fsa.search import Beam, search_lattice
from toolkit.lang.tables import SymbolTable
from toolkit.stages.files import write_atomically
from toolkit.stages.workers import map_in_processes


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

    def grid(self) -> list[Weights]:
        """Every pair of scale and penalty."""
        return [Weights(scale, penalty) for scale in self.scales for penalty in self.penalties]


@dataclass(frozen=True)
class Decoded:
    """One utterance decoded with several weights."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    decode_seconds: float
    """Time spent on scoring and searching it."""
    beam: float
    """The search beam that gave a lattice; 0 if none did: the hypotheses are empty then."""
    hypotheses: tuple[str, ...]
    """Words, one string for each of the weights asked for."""


def decode_store(
    scorer: Scorer,
    graph: Path,
    words: Path,
    weights: Sequence[Weights],
    config: DecodeConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Decoded]:
    """Decode every utterance of the scorer's feature store.

    The lattice is made once, at `config.acoustic_scale`; each of `weights` takes its best path.
    Every utterance gets a line: where no path survives even the widest beam it is empty.

    Args:
      scorer: the acoustic model with its features.
      graph: the decoding graph's file.
      words: `words.txt`.
      weights: scales and penalties to decode with.
      config: the search.
      out: gets a file per feature shard; those of an earlier run are kept.
      jobs: worker processes.
      progress: told (shards done, shards).

    Returns:
      The utterances in the order of the store.
    """
    shards = list(enumerate(scorer.store.shards))
    work = partial(_decode_shard, scorer, graph, words, tuple(weights), config, out)
    decoded: list[Decoded] = []
    results = map_in_processes(work, shards, jobs)
    for done, path in enumerate(tqdm(results, "decode", len(shards), disable=None), 1):
        for line in path.read_text(encoding="utf-8").splitlines():
            plain = json.loads(line)
            decoded.append(Decoded(**{**plain, "hypotheses": tuple(plain["hypotheses"])}))
        progress(done, len(shards))
    return decoded


@lru_cache(maxsize=1)
def _graph(path: Path) -> Fsa:
    """The graph, loaded once per process."""
    return load_graph(path)


def _decode_shard(
    scorer: Scorer,
    graph_path: Path,
    words: Path,
    weights: Sequence[Weights],
    config: DecodeConfig,
    out: Path,
    shard: tuple[int, Sequence[str]],
) -> Path:
    number, ids = shard
    path = out / f"decoded.{number:06d}.jsonl"
    if path.exists():
        return path
    graph = _graph(graph_path)
    table = SymbolTable.read(words)
    lines = []
    for utterance in ids:
        start = time.perf_counter()
        scores = scorer.log_likelihoods(utterance) * config.acoustic_scale
        lattice, beam = None, config.beam
        for beam in (config.beam, *(config.beam.widened(f) for f in config.retries)):
            lattice = search_lattice(scores, graph, beam)
            if lattice is not None:
                break
        hypotheses = [""] * len(weights)
        if lattice is not None:
            for i, weight in enumerate(weights):
                best = reweighted_best_path(lattice, scores, config.acoustic_scale, weight)
                hypotheses[i] = " ".join(table.symbol(word) for word in best.words)
        seconds = time.perf_counter() - start
        plain = {
            "utterance": utterance,
            "audio_seconds": round(scorer.store.cut(utterance).duration, 4),
            "decode_seconds": round(seconds, 4),
            "beam": beam.search if lattice is not None else 0.0,
            "hypotheses": hypotheses,
        }
        lines.append(json.dumps(plain))
    write_atomically(path, "".join(line + "\n" for line in lines))
    return path


def real_time_factor(decoded: Sequence[Decoded]) -> float:
    """Seconds of one core per second of speech."""
    audio = sum(d.audio_seconds for d in decoded)
    return sum(d.decode_seconds for d in decoded) / audio if audio else float("nan")
