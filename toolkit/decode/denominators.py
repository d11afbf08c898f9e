"""Makes the denominator lattices of a corpus for sequence-discriminative training (C8)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.decode.config import LatticeConfig
from toolkit.errors import ToolkitError
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import LatticeArcs, prune_to_density
from toolkit.fsa.lattice_store import (
    GraphCodec,
    GraphInfo,
    LatticeStoreError,
    ShardHeader,
    write_lattices,
)
from toolkit.fsa.search import search_with_retries
from toolkit.storage.files import write_atomically


class LatticeFailuresError(ToolkitError):
    """Raised when too many utterances have no lattice."""


@dataclass(frozen=True)
class _ShardResult:
    """The size of a finished lattice shard and the time it took."""

    header: ShardHeader[GraphInfo]
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
    """Make the lattices of all utterances of a feature store; `GraphCodec` reads them.

    Writes to `out` a file per feature shard and `failed.tsv` (utterance, reason). Called again, it
    keeps the shards that were made with the same graph. The files do not depend on `jobs`.

    Args:
      scorer: the acoustic model with its features.
      graph: the decoding graph's file.
      config: search, density and limits.
      out: the folder to write.
      jobs: worker processes, or threads if the network runs on a GPU.
      progress: called with (shards done, shards).

    Returns:
      utterances, failed, retried, density (arcs per frame), MB_per_hour (of the files) and, for
      the shards made by this call, RTF (CPU seconds per second of speech).

    Raises:
      LatticeFailuresError: the share of utterances without a lattice is above `max_failed`.
    """
    make_shard = partial(_make_shard, graph, config, out)
    shards = list(map_scored_shards(make_shard, scorer, jobs, "lattices", progress))
    _codec(graph).remove_from(out, len(shards))  # shards of an earlier run that had more of them
    failed = [line for shard in shards for line in shard.header.info.failed]
    write_atomically(out / "failed.tsv", "".join(f"{name}\t{why}\n" for name, why in failed))
    total = len(scorer.store.ids)
    if len(failed) > config.max_failed * total:
        raise LatticeFailuresError(
            f"{len(failed)} of {total} utterances have no lattice, but `max_failed` allows a share"
            f" of only {config.max_failed:g}: "
            + "; ".join(f"{name} ({why})" for name, why in failed[:5])
            + f"; all of them are listed in {out / 'failed.tsv'}"
        )
    return _headline(shards, len(failed))


def _headline(shards: Sequence[_ShardResult], failed: int) -> dict[str, float]:
    """Return figures on the finished lattices: their number, density, size per hour and RTF."""
    frames = max(1, sum(sum(shard.header.lengths or ()) for shard in shards))
    hours = sum(shard.audio_seconds for shard in shards) / 3600
    headline = {
        "utterances": sum(len(shard.header.ids) for shard in shards),
        "failed": failed,
        "retried": sum(shard.header.info.retried for shard in shards),
        "density": round(sum(shard.header.info.arcs for shard in shards) / frames, 2),
        "MB_per_hour": round(sum(shard.bytes for shard in shards) / 1e6 / hours, 3),
    }
    timed = [shard for shard in shards if shard.seconds is not None]
    audio = sum(shard.audio_seconds for shard in timed)
    if audio:
        headline["RTF"] = round(sum(shard.seconds for shard in timed) / audio, 4)
    return headline


@lru_cache(maxsize=1)
def _codec(graph: Path) -> GraphCodec:
    """Return the lattice codec, which loads its graph once per process."""
    return GraphCodec(graph)


def _make_shard(
    graph_path: Path,
    config: LatticeConfig,
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> _ShardResult:
    """Make the lattices of one feature shard, unless an earlier run has made them."""
    number, ids = shard
    codec = _codec(graph_path)
    path = codec.path(out, number)
    audio = sum(scorer.store.cut(utterance).duration for utterance in ids)
    finished = _finished(path, codec, ids)
    if finished is not None:
        return _ShardResult(finished, audio, None, path.stat().st_size)

    graph = codec.graph  # loaded before threads search

    def make(scored: ScoredUtterance) -> tuple[LatticeArcs | None, Beam, float]:
        start = scored.clock() - scored.seconds
        scores = scored.log_likelihoods * config.acoustic_scale  # [T, P]
        lattice = search(scores, graph, config)
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
    write_lattices(path, lattices, codec, GraphInfo(retried, tuple(failed)))
    return _ShardResult(codec.read_header(path), audio, seconds, path.stat().st_size)


def search(scores: Tensor, graph: Fst, config: LatticeConfig) -> tuple[LatticeArcs | None, Beam]:
    """Make the denominator lattice of one utterance.

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


def _finished(path: Path, codec: GraphCodec, ids: Sequence[str]) -> ShardHeader[GraphInfo] | None:
    """Return the header of a lattice shard from an earlier run; None if there is none."""
    if not path.exists():
        return None
    try:
        header = codec.read_header(path)
    except LatticeStoreError:  # also if the shard was made with another graph
        return None
    # The shard must have the same utterances, with or without lattices.
    return header if {*header.ids, *header.failed} == set(ids) else None
