"""Lattices on disk: shards of compressed lattices by utterance, bound to their graph."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.files import load_fst
from toolkit.fsa.fst import Fst, Lattice
from toolkit.fsa.lattice_codec import (
    GraphIndex,
    LatticeArcs,
    LatticeBlock,
    LatticeError,
    encode,
)
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated

FORMAT = 2  # 1: lzma instead of a range coder
# Unpacked shards that a store keeps: about 6 MB per hour of speech each.
BLOCKS = 32
CHUNK = 1 << 20  # bytes
ADVICE = "remove it and make the lattices again"


class LatticeStoreError(ToolkitError):
    """A folder of lattices that is damaged, lacks an utterance or belongs to another graph."""


def graph_digest(path: Path) -> str:
    """The BLAKE2b digest (16 bytes, in hexadecimal) of a graph's file."""
    hasher = hashlib.blake2b(digest_size=16)
    advice = "give the graph that the lattices were made with"
    with reading(path, LatticeStoreError, advice), open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


@dataclass(frozen=True)
class ShardHeader:
    """The header of a shard: what can be read without decompressing the lattices."""

    graph: str
    """Digest of the graph's file."""
    ids: tuple[str, ...]
    """Its utterances."""
    frames: int
    """Emitting frames of all lattices."""
    arcs: int
    """Arcs of all lattices, without those to final states."""
    retried: int
    """Utterances that needed a wider beam."""
    failed: tuple[tuple[str, str], ...]
    """Utterances without a lattice, and why."""
    lengths: tuple[int, ...]
    """Emitting frames of each lattice, in the order of `ids`."""
    format: int = FORMAT

    @classmethod
    def read(cls, path: Path) -> "ShardHeader":
        """Read the header of a shard.

        Raises:
          LatticeStoreError: the file is not a shard of this format.
        """
        with reading(path, LatticeStoreError, ADVICE, "damaged"):
            with safe_open(path, framework="np") as file:
                plain = json.loads(file.metadata()["lattices"])
            if validated(plain, {"format": int})["format"] != FORMAT:
                raise ValueError(f"format {plain['format']}, this version reads {FORMAT}")
            header = from_plain(cls, plain)
            lengths = header.lengths
            if len(lengths) != len(header.ids) or sum(lengths) != header.frames:
                raise ValueError("its lengths do not fit")
            return header


def shard_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"lattices.{number:06d}.safetensors"


def write_shard(
    path: Path,
    lattices: dict[str, LatticeArcs],
    index: GraphIndex,
    digest: str,
    retried: int = 0,
    failed: Sequence[tuple[str, str]] = (),
) -> None:
    """Write one shard.

    Args:
      path: see `shard_path`.
      lattices: by utterance.
      index: of the graph.
      digest: of the graph's file, see `graph_digest`.
      retried: utterances that needed a wider beam.
      failed: utterances without a lattice, and why.
    """
    found = list(lattices.values())
    facts = ShardHeader(
        graph=digest,
        ids=tuple(lattices),
        frames=sum(x.frames for x in found),
        arcs=sum(x.num_emitting for x in found),
        retried=retried,
        failed=tuple(failed),
        lengths=tuple(int(x.frames) for x in found),
    )
    data = np.frombuffer(encode(found, index), np.uint8).copy()
    header = {"lattices": json.dumps(asdict(facts))}  # a single entry: their order would be random
    write_atomically(path, save({"data": torch.from_numpy(data)}, header))


def graph_index(graph: Fst) -> GraphIndex:
    """The codec's tables of a graph."""
    return GraphIndex(graph.first, graph.target, graph.scores)


class LatticeStore:
    """A folder of lattices and the graph that they were searched in.

    Args:
      path: the folder that `toolkit.decode.denominator_lattices.make_lattices` wrote.
      graph: the decoding graph's file.

    Raises:
      LatticeStoreError: no lattices there, damaged ones, or lattices of another graph.
    """

    def __init__(self, path: Path, graph: Path) -> None:
        self._path, self._graph_path = Path(path), Path(graph)
        shards = sorted(self._path.glob("lattices.*.safetensors"))
        if not shards:
            raise LatticeStoreError(f"{path}: there are no lattices; make them first")
        self._lengths: dict[Path, np.ndarray] = {}
        self._where: dict[str, tuple[Path, int]] = {}
        digest = graph_digest(self._graph_path)
        for shard in shards:
            facts = ShardHeader.read(shard)
            if facts.graph != digest:
                raise LatticeStoreError(
                    f"{shard}: made with another graph ({facts.graph}) than {graph} ({digest});"
                    " give that graph, or make the lattices again with this one"
                )
            self._lengths[shard] = np.array(facts.lengths, np.int32)
            self._where |= {name: (shard, n) for n, name in enumerate(facts.ids)}
        self._blocks: dict[Path, LatticeBlock] = {}

    @property
    def ids(self) -> list[str]:
        """The utterances, in the order of the shards."""
        return list(self._where)

    def num_frames(self, utterance: str) -> int:
        """The frames of an utterance's lattice, from the header of its shard."""
        shard, number = self._place(utterance)
        return int(self._lengths[shard][number])

    def _place(self, utterance: str) -> tuple[Path, int]:
        if utterance not in self._where:
            raise LatticeStoreError(
                f"{utterance} has no lattice in {self._path}; failed.tsv there may say why"
            )
        return self._where[utterance]

    def arcs(self, utterance: str) -> LatticeArcs:
        """Read the lattice of an utterance as arcs of the graph."""
        shard, number = self._place(utterance)
        with reading(shard, LatticeStoreError, ADVICE, f"{utterance} is damaged"):
            try:
                return self._block(shard).decode(number)
            except LatticeError as error:
                raise LatticeStoreError(f"{shard}: {utterance}: {error}; {ADVICE}") from error

    def load(self, utterance: str) -> Lattice:
        """Read the lattice of an utterance.

        Returns:
          A lattice with memory of its own; its `scores` are those of the graph alone, without
          acoustics.
        """
        return build_lattice(self.arcs(utterance), self._graph)

    @cached_property
    def _graph(self) -> Fst:
        return load_fst(self._graph_path)

    @cached_property
    def _index(self) -> GraphIndex:
        return graph_index(self._graph)

    def _block(self, shard: Path) -> LatticeBlock:
        block = self._blocks.pop(shard, None)
        if block is None:
            with reading(shard, LatticeStoreError, ADVICE, "damaged"):
                data = read_tensors(shard, {"data": ("U8", 1)}, "np")[0]["data"].tobytes()
                try:
                    block = LatticeBlock(data, len(self._lengths[shard]), self._index)
                except LatticeError as error:
                    raise LatticeStoreError(f"{shard}: {error}; {ADVICE}") from error
        self._blocks[shard] = block  # the last used comes last
        if len(self._blocks) > BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return block

    def __getstate__(self) -> dict:
        """Pickle the paths, without what was loaded from them."""
        left_out = {"_graph", "_index"}
        kept = {key: value for key, value in self.__dict__.items() if key not in left_out}
        return {**kept, "_blocks": {}}


def build_lattice(arcs: LatticeArcs, graph: Fst) -> Lattice:
    """Build a lattice from arcs of the graph (see `LatticeStore.load`)."""
    frame = arcs.frame.astype(np.int64)
    left = frame * graph.num_states + graph.source[arcs.arc]
    entered = (frame + 1) * graph.num_states + graph.target[arcs.arc]
    states = np.unique(np.append(left[:1], entered))
    source, target = np.searchsorted(states, left), np.searchsorted(states, entered)
    return Lattice.of(graph, arcs.arc, arcs.frame, source, target, graph.scores[arcs.arc])
