"""Denominator lattices of a corpus, for sequence-discriminative training (C8)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.decode.config import LatticeConfig
from toolkit.errors import ToolkitError
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst, load_fst
from toolkit.fsa.lattice import LatticeArcs, prune_to_density
from toolkit.fsa.lattice_store import (
    GraphIndex,
    LatticeStoreError,
    ShardHeader,
    graph_digest,
    graph_index,
    shard_path,
    write_shard,
)
from toolkit.fsa.search import search_with_retries
from toolkit.storage.files import write_atomically


class LatticeFailuresError(ToolkitError):
    """Too many utterances have no lattice."""


@dataclass(frozen=True)
class _ShardResult:
    """A finished shard and what it took."""

    facts: ShardHeader
    audio_seconds: float
    seconds: float | None
    """Time of scores and searches; None for a shard of an earlier run."""
    bytes: int


def make_lattices(
    scorer: Scorer,
    graph: Path,
    config: LatticeConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Make the lattices of every utterance of a feature store, for `LatticeStore` to read.

    Writes to `out` a file per feature shard and `failed.tsv` (utterance, reason). Called again, it
    keeps the shards that were made with the same graph. The files do not depend on `jobs`.

    Args:
      scorer: the acoustic model with its features.
      graph: the decoding graph's file.
      config: search, density and limits.
      out: the folder to write.
      jobs: worker processes; threads beside a network on a GPU.
      progress: called with (shards done, shards).

    Returns:
      utterances, failed, retried, density (arcs per frame), MB_per_hour (of the files) and, for
      the shards made by this call, RTF (seconds of one core per second of speech).

    Raises:
      LatticeFailuresError: more than `max_failed` of the utterances have no lattice.
    """
    make_shard = partial(_make_shard, graph, config, out)
    shards = list(map_scored_shards(make_shard, scorer, jobs, "lattices", progress))
    current = {shard_path(out, number) for number in range(len(shards))}
    # Shards of an earlier run with more of them.
    for leftover in set(out.glob("lattices.*.safetensors")) - current:
        leftover.unlink()
    failed = [line for shard in shards for line in shard.facts.failed]
    write_atomically(out / "failed.tsv", "".join(f"{name}\t{why}\n" for name, why in failed))
    total = len(scorer.store.ids)
    if len(failed) > config.max_failed * total:
        raise LatticeFailuresError(
            f"{len(failed)} of {total} utterances have no lattice, more than max_failed ="
            f" {config.max_failed:g}: "
            + "; ".join(f"{name} ({why})" for name, why in failed[:5])
            + f"; the full list is in {out / 'failed.tsv'}"
        )
    return _headline(shards, len(failed))


def _headline(shards: Sequence[_ShardResult], failed: int) -> dict[str, float]:
    frames = max(1, sum(shard.facts.frames for shard in shards))
    hours = sum(shard.audio_seconds for shard in shards) / 3600
    headline = {
        "utterances": sum(len(shard.facts.ids) for shard in shards),
        "failed": failed,
        "retried": sum(shard.facts.retried for shard in shards),
        "density": round(sum(shard.facts.arcs for shard in shards) / frames, 2),
        "MB_per_hour": round(sum(shard.bytes for shard in shards) / 1e6 / hours, 3),
    }
    timed = [shard for shard in shards if shard.seconds is not None]
    audio = sum(shard.audio_seconds for shard in timed)
    if audio:
        headline["RTF"] = round(sum(shard.seconds for shard in timed) / audio, 4)
    return headline


@dataclass(frozen=True)
class _Graph:
    """A decoding graph, loaded once per process, with its arc index and digest."""

    fst: Fst
    index: GraphIndex
    digest: str


@lru_cache(maxsize=1)
def _graph(path: Path) -> _Graph:
    fst = load_fst(path)
    return _Graph(fst, graph_index(fst), graph_digest(path))


def _make_shard(
    graph_path: Path,
    config: LatticeConfig,
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> _ShardResult:
    number, ids = shard
    path = shard_path(out, number)
    audio = sum(scorer.store.cut(utterance).duration for utterance in ids)
    graph = _graph(graph_path)
    finished = _finished(path, graph.digest, ids)
    if finished is not None:
        return _ShardResult(finished, audio, None, path.stat().st_size)

    def make(scored: ScoredUtterance) -> tuple[LatticeArcs | None, Beam, float]:
        start = scored.clock() - scored.seconds
        scores = scored.log_likelihoods * config.acoustic_scale  # [T, P]
        lattice = search(scores, graph.fst, config)
        return *lattice, scored.clock() - start

    lattices: dict[str, LatticeArcs] = {}
    failed, retried, seconds = [], 0, 0.0
    results = map_utterances(make, scorer, ids, threads)
    for utterance, (lattice, beam, search_seconds) in zip(ids, results, strict=True):
        seconds += search_seconds
        if lattice is None:
            num_frames = scorer.store.num_frames(utterance)
            reason = f"no path within beam {beam.search:g}" if num_frames else "no frames"
            failed.append((utterance, reason))
            continue
        retried += beam != config.beam
        lattices[utterance] = lattice
    write_shard(path, lattices, graph.index, graph.digest, retried, failed)
    return _ShardResult(ShardHeader.read(path), audio, seconds, path.stat().st_size)


def search(scores: Tensor, graph: Fst, config: LatticeConfig) -> tuple[LatticeArcs | None, Beam]:
    """Make the lattice of one utterance.

    Args:
      scores: [T, P] scaled log-likelihoods.
      graph: the decoding graph.
      config: search and density.

    Returns:
      The lattice, None if no path survives even the widest beam; and the beam that was used.
    """
    lattice, beam = search_with_retries(scores, graph, config.beam.with_retries(config.retries))
    if lattice is None:
        return None, beam
    # Pruned by arc posteriors until at most `density` arcs per frame are left (C8: about 10).
    return prune_to_density(lattice, len(scores), config.density, beam.output), beam


def _finished(path: Path, digest: str, ids: Sequence[str]) -> ShardHeader | None:
    """Return the contents of a shard that an earlier run has finished, None if there is none."""
    if not path.exists():
        return None
    try:
        header = ShardHeader.read(path)
    except LatticeStoreError:
        return None
    # Made with the same graph and for the same utterances, with a lattice or without.
    tried = {*header.ids, *(utterance for utterance, _ in header.failed)}
    return header if header.graph == digest and tried == set(ids) else None
