"""Decoding of a feature store with the best paths of a grid of weights; lattices are kept."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.align.scored import Scored, map_scored, map_scored_shards
from toolkit.align.scorer import Scorer
from toolkit.decode.first_pass import Decoded, Decoder, load_once, search
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.scored_lattices import read_scored, write_scored
from toolkit.lang.tables import SymbolTable
from toolkit.storage.digest import digest_bytes
from toolkit.storage.files import write_atomically

LATTICES = "lattices.*.safetensors"
"""Files of lattices, which are removed when no more weights are to be tried."""


def decode_store(
    scorer: Scorer,
    decoder: Decoder,
    weights: Sequence[Sequence[Weights]],
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Decoded]]:
    """Decode every utterance of the scorer's feature store.

    Lattices are made once, at the acoustic scale of the search, and kept in `out`; each pair of
    weights then takes its best path, also in later calls. An utterance of which no path survives
    even the widest beam gets empty hypotheses.

    Args:
      scorer: the acoustic model with its features.
      decoder: graph and search.
      weights: for each pass the pairs of scale and penalty to decode with.
      out: the folder that gets files per feature shard; those of an earlier call, with the same
        scorer and decoder, are kept.
      jobs: worker processes; threads beside a network on a GPU.
      progress: called with (shards done, shards).

    Returns:
      For each pass the utterances in the order of the store.
    """
    work = partial(_decode_shard, decoder, weights, out)
    decoded: list[list[Decoded]] = [[] for _ in range(decoder.passes)]
    for path in map_scored_shards(work, scorer, jobs, "decode", progress):
        for line in path.read_text(encoding="utf-8").splitlines():
            for found, plain in zip(decoded, json.loads(line), strict=True):
                found.append(Decoded(**{**plain, "hypotheses": tuple(plain["hypotheses"])}))
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
    number, ids = shard
    tried = [[asdict(pair) for pair in pairs] for pairs in weights]
    name = digest_bytes(json.dumps(tried).encode())[:8]
    path = out / f"passes-{name}.{number:06d}.jsonl"
    if not path.exists():
        table = SymbolTable.read(decoder.words)
        lattices = out / LATTICES.replace("*", f"{number:06d}")
        if not lattices.exists():
            _search_shard(decoder, lattices, scorer, threads, ids)
        kept, described = read_scored(lattices)
        found, lines = iter(kept), []
        for one in json.loads(described):
            mine = [next(found) for _ in weights] if one["beam"] else []
            lines.append(json.dumps(_best_paths(one, mine, weights, table)) + "\n")
        write_atomically(path, "".join(lines))
    return path


def _search_shard(
    decoder: Decoder, path: Path, scorer: Scorer, threads: int, ids: Sequence[str]
) -> None:
    """Write the lattices of a shard, and what else is known of its utterances."""
    load_once(decoder)
    scale = decoder.config.acoustic_scale

    def searched(scored: Scored) -> tuple[dict[str, Any], list[ScoredLattice]]:
        found = search(scored, decoder)
        plain = {
            "utterance": scored.utterance,
            "audio_seconds": round(scorer.store.cut(scored.utterance).duration, 4),
            "seconds": found.seconds,
            "beam": found.beam,
            "cut": found.cut,
        }
        return plain, [ScoredLattice.of(x, found.scores, scale) for x in found.lattices]

    described, lattices = [], []
    for plain, mine in map_scored(searched, scorer, ids, threads):
        described.append(plain)
        lattices += mine
    write_scored(path, lattices, json.dumps(described))


def _best_paths(
    searched: Mapping[str, Any],
    lattices: Sequence[ScoredLattice],
    weights: Sequence[Sequence[Weights]],
    table: SymbolTable,
) -> list[dict[str, Any]]:
    """The fields of `Decoded` for each pass."""
    plain = []
    for pass_number, pairs in enumerate(weights):
        start = time.process_time()
        hypotheses = [""] * len(pairs)
        if lattices:
            paths = [lattices[pass_number].best_words(pair) for pair in pairs]
            hypotheses = [" ".join(map(table.symbol, path)) for path in paths]
        spent = (time.process_time() - start) / len(pairs)
        plain.append(
            {
                "utterance": searched["utterance"],
                "audio_seconds": searched["audio_seconds"],
                "decode_seconds": round(searched["seconds"][pass_number] + spent, 4),
                "beam": searched["beam"],
                "hypotheses": hypotheses,
                "cut": searched["cut"] and pass_number > 0,
            }
        )
    return plain
