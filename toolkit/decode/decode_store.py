"""Decoding of a feature store with the best paths of a grid of weights; lattices are kept."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from toolkit.align.scored import Scored, map_scored, map_scored_shards
from toolkit.align.scorer import Scorer
from toolkit.decode.first_pass import Decoded, Decoder, load_once, search
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.scored_lattices import read_scored, write_scored
from toolkit.lang.tables import SymbolTable
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import write_atomically

LATTICES = "searched.*.safetensors"
"""Files of lattices, which are removed when no more is to be found in them."""


@dataclass(frozen=True)
class Searched:
    """What the search of an utterance has left."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    seconds: tuple[float, ...]
    """See `toolkit.decode.first_pass.SearchResult`."""
    beam: float
    """See `Decoded.beam`."""
    cut: bool
    """See `Decoded.cut`."""
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
) -> list[list[Decoded]]:
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
    decoded: list[list[Decoded]] = [[] for _ in range(decoder.passes)]
    for path in map_scored_shards(work, scorer, jobs, "decode", progress):
        for line in path.read_text(encoding="utf-8").splitlines():
            for found, plain in zip(decoded, json.loads(line), strict=True):
                found.append(Decoded(**{**plain, "hypotheses": tuple(plain["hypotheses"])}))
    for found, pairs in zip(decoded, weights, strict=True):
        nothing = ("",) * len(pairs)
        found += [
            Decoded(cut.id, cut.duration, 0.0, 0.0, nothing) for cut in scorer.store.failed_cuts
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
        found = searched_shard(decoder, out, scorer, threads, shard)
        lines = [json.dumps(_best_paths(one, weights, table)) + "\n" for one in found]
        write_atomically(path, "".join(lines))
    return path


def searched_shard(
    decoder: Decoder, folder: Path, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]
) -> list[Searched]:
    """The lattices of a shard: those in a folder, or of a search that leaves them there.

    Args:
      decoder: graph and search.
      folder: of lattices made with the same scorer and decoder, see `search_folder`.
      scorer, threads, shard: see `toolkit.align.scored.Work`.
    """
    number, ids = shard
    path = folder / LATTICES.replace("*", f"{number:06d}")
    if not path.exists():
        _search_shard(decoder, path, scorer, threads, ids)
    kept, described = read_scored(path)
    lattices = iter(kept)
    found = []
    for plain in json.loads(described):
        mine = tuple(next(lattices) for _ in range(decoder.passes if plain["beam"] else 0))
        found.append(Searched(**plain | {"seconds": tuple(plain["seconds"])}, lattices=mine))
    return found


def _search_shard(
    decoder: Decoder, path: Path, scorer: Scorer, threads: int, ids: Sequence[str]
) -> None:
    """Write the lattices of a shard, and what else is known of its utterances."""
    load_once(decoder)
    scale = decoder.config.acoustic_scale

    def searched(scored: Scored) -> Searched:
        found = search(scored, decoder)
        return Searched(
            scored.utterance,
            round(scorer.store.cut(scored.utterance).duration, 4),
            found.seconds,
            found.beam,
            found.cut,
            tuple(ScoredLattice.of(x, found.scores, scale) for x in found.lattices),
        )

    described, lattices = [], []
    for one in map_scored(searched, scorer, ids, threads):
        described.append({k: v for k, v in vars(one).items() if k != "lattices"})
        lattices += one.lattices
    write_scored(path, lattices, json.dumps(described))


def _best_paths(
    searched: Searched, weights: Sequence[Sequence[Weights]], table: SymbolTable
) -> list[dict]:
    """The fields of `Decoded` for each pass."""
    plain = []
    for pass_number, pairs in enumerate(weights):
        start = time.process_time()
        hypotheses = [""] * len(pairs)
        if searched.lattices:
            paths = [searched.lattices[pass_number].best_words(pair) for pair in pairs]
            hypotheses = [" ".join(map(table.symbol, path)) for path in paths]
        spent = (time.process_time() - start) / len(pairs)
        plain.append(
            {
                "utterance": searched.utterance,
                "audio_seconds": searched.audio_seconds,
                "decode_seconds": round(searched.seconds[pass_number] + spent, 6),
                "beam": searched.beam,
                "hypotheses": hypotheses,
                "cut": searched.cut and pass_number > 0,
            }
        )
    return plain
