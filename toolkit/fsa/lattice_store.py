"""Stores lattices on disk: scored lattices, lattices as arcs of a graph, and word lattices.

`write_lattices` writes a shard and `LatticeStore` reads a folder of them; a codec says how a file
holds lattices of one kind:

- `ScoredCodec`: plain arrays; a search writes them and weights are tuned on them.
- `WordCodec`: lattices of words with their times, and the words themselves.
- `GraphCodec`: arcs of a graph, compressed (C8). In a lattice from dense search, a state is a state
  of the graph in a frame, and an arc is an arc of the graph in a frame. Its destination, labels and
  graph score are in the graph, its acoustic score comes from the network. What is stored for each
  state is only which of its out-arcs are used, as ranks among its out-arcs sorted by score. States
  follow from the arcs of the previous frame.

Measured on synthetic speech with a trigram graph of 0.7 M arcs, at 10 arcs per frame of 30 ms: 0.45
MB/h with lzma, 0.49 with zlib; 2 ms to decompress 3.5 minutes of speech. An adaptive range coder
with contexts took 0.28 MB/h, 24 ms and 250 lines.
"""

import hashlib
import json
import lzma
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.fst import Fst, Lattice, load_fst
from toolkit.fsa.lattice import LatticeArcs, ScoredLattice, in_order
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.kernels import njit
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated

BLOCKS = 32
"""Largest number of shards that a store keeps in memory. A compressed shard takes about 6 MB per
hour of speech."""
CHUNK = 1 << 20  # bytes
Written = TypeVar("Written")
Read = TypeVar("Read")
Info = TypeVar("Info")
Tensors = dict[str, np.ndarray]


class LatticeStoreError(ToolkitError):
    """Raised when stored lattices are damaged or missing, or belong to another graph."""


@dataclass(frozen=True)
class ShardHeader(Generic[Info]):
    """The header of a shard, which can be read without its lattices."""

    ids: tuple[str, ...]
    """The shard's utterances with a lattice, in the order of the lattices."""
    failed: tuple[str, ...]
    """Utterances without a lattice."""
    info: Info
    """The codec's extra information."""
    lengths: tuple[int, ...] | None = None
    """Emitting frames of each lattice, where the codec stores them."""


class LatticeCodec(ABC, Generic[Written, Read, Info]):
    """Base of codecs, which define how a file holds lattices of one kind.

    `Written` is the type of lattices when written, `Read` their type when read, and `Info` is extra
    information in a file.
    """

    name: ClassVar[str]
    """Files are called NAME.NNNNNN.safetensors."""
    advice: ClassVar[str]
    """What the user can do about a damaged file."""
    absent: ClassVar[str]
    """Message that a folder has no lattices, with advice."""

    def path(self, folder: Path, number: int) -> Path:
        """Return the path of a shard."""
        return folder / f"{self.name}.{number:06d}.safetensors"

    @property
    def pattern(self) -> str:
        """Glob pattern for the names of all shard files."""
        return f"{self.name}.*.safetensors"

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all shards in order."""
        return sorted(folder.glob(self.pattern))

    def remove_from(self, folder: Path, number: int) -> None:
        """Remove shard `number` and later ones, left by an earlier call with more shards."""
        current = {self.path(folder, n) for n in range(number)}
        for path in self.files(folder):
            if path not in current:
                path.unlink()

    def read_header(self, path: Path) -> ShardHeader[Info]:
        """Read the header of a shard.

        Raises:
          LatticeStoreError: the file is not a shard of this format, or belongs to another graph.
        """
        with reading(path, LatticeStoreError, self.advice, "damaged"):
            with safe_open(path, framework="np") as file:
                metadata = file.metadata()
            return self.header(path, metadata)

    @abstractmethod
    def encode(
        self, lattices: Mapping[str, Written | None], info: Info
    ) -> tuple[Tensors, dict[str, str]]:
        """Return a shard's arrays and metadata; None marks an utterance without a lattice."""

    @abstractmethod
    def header(self, path: Path, metadata: dict[str, str]) -> ShardHeader[Info]:
        """Parse a file's metadata to a header."""

    @abstractmethod
    def decode(self, path: Path, header: ShardHeader[Info]) -> Callable[[int], Read]:
        """Read a shard; return a function from a lattice's position in `ids` to the lattice.

        Raises:
          ValueError: damaged content; or another of `toolkit.storage.reading.DAMAGE_ERRORS`.
        """


def write_lattices(
    path: Path,
    lattices: Mapping[str, Written | None],
    codec: LatticeCodec[Written, Any, Info],
    info: Info,
) -> None:
    """Write a shard that `LatticeStore` can read.

    Args:
      path: see `LatticeCodec.path`.
      lattices: by utterance; None where the search failed.
      codec: how the lattices are stored.
      info: extra information to store.
    """
    tensors, metadata = codec.encode(lattices, info)
    write_atomically(path, save(tensors, metadata))


class LatticeStore(Generic[Read, Info]):
    """Lattices by utterance, from a folder of shards that are read on demand.

    Args:
      folder: the folder, or the file of one shard.
      codec: how the lattices are stored.

    Raises:
      LatticeStoreError: the folder has no lattices, damaged ones, or lattices of another graph.
    """

    def __init__(self, folder: Path, codec: LatticeCodec[Any, Read, Info]) -> None:
        self._folder, self._codec = Path(folder), codec
        shards = [self._folder] if self._folder.is_file() else codec.files(self._folder)
        if not shards:
            raise LatticeStoreError(f"{folder}: {codec.absent}")
        self.headers = {shard: codec.read_header(shard) for shard in shards}
        """The header of each shard, by file."""
        self._where = {
            utterance: (shard, number)
            for shard, header in self.headers.items()
            for number, utterance in enumerate(header.ids)
        }
        self._blocks: dict[Path, Callable[[int], Read]] = {}

    @property
    def ids(self) -> list[str]:
        """Ids of the utterances with a lattice, in the order of the shards."""
        return list(self._where)

    @property
    def failed(self) -> list[str]:
        """Ids of the utterances without a lattice, in the order of the shards."""
        return [utterance for header in self.headers.values() for utterance in header.failed]

    def num_frames(self, utterance: str) -> int:
        """Return a lattice's number of emitting frames from its header (only with `GraphCodec`)."""
        shard, number = self._place(utterance)
        lengths = self.headers[shard].lengths
        if lengths is None:
            raise LatticeStoreError(
                f"{shard}: {self._codec.name} files do not store the lengths of their lattices"
            )
        return lengths[number]

    def info(self, utterance: str) -> Info:
        """Return the codec's extra information on an utterance's shard."""
        return self.headers[self._place(utterance)[0]].info

    def load(self, utterance: str) -> Read:
        """Read the lattice of an utterance."""
        shard, number = self._place(utterance)
        with reading(shard, LatticeStoreError, self._codec.advice, f"{utterance} is damaged"):
            return self._block(shard)(number)

    def _place(self, utterance: str) -> tuple[Path, int]:
        """Return the shard of an utterance's lattice and its number there."""
        if utterance not in self._where:
            raise LatticeStoreError(
                f"{utterance} has no lattice in {self._folder}; failed.tsv there may list the "
                "reason"
            )
        return self._where[utterance]

    def _block(self, shard: Path) -> Callable[[int], Read]:
        """Return the function that reads a lattice of a shard by number; it is cached."""
        block = self._blocks.pop(shard, None)
        if block is None:
            with reading(shard, LatticeStoreError, self._codec.advice, "damaged"):
                block = self._codec.decode(shard, self.headers[shard])
        self._blocks[shard] = block  # the last used comes last
        if len(self._blocks) > BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return block

    def __getstate__(self) -> dict:
        """Pickle the headers, without loaded lattices."""
        return {**self.__dict__, "_blocks": {}}


class LatticeError(ToolkitError):
    """Raised for a lattice that does not fit its graph, or bytes that do not hold lattices."""


class GraphIndex:
    """Index of a graph for the codec: each state's out-arcs ranked by score.

    A position is the place of an arc among all arcs, sorted by source state, then by falling score.

    Args:
      first: [S + 1] the first out-arc of each state; state 0 starts, state S - 1 ends.
      destination: [A] the state that each arc leads to.
      scores: [A] the arcs' scores.
    """

    def __init__(self, first: np.ndarray, destination: np.ndarray, scores: np.ndarray) -> None:
        source = np.repeat(np.arange(len(first) - 1), np.diff(first))
        self.first = np.asarray(first, np.int64)
        """[S + 1] the first position of each state's arcs."""
        self.arc = np.lexsort((-scores, source)).astype(np.int32)
        """[A] the graph's arc at each position."""
        self.destination = destination[self.arc].astype(np.int32)
        """[A] the state that the arc at each position leads to."""

    def positions(self, arcs: np.ndarray) -> np.ndarray:
        """Return the position of each of some graph arcs: [n]."""
        position = np.empty(len(self.arc), np.int32)
        position[self.arc] = np.arange(len(self.arc), dtype=np.int32)
        return position[arcs]


_NUMBER = np.dtype("<u4")


def encode(lattices: Sequence[LatticeArcs], graph: GraphIndex) -> bytes:
    """Compress the lattices of a block of utterances.

    An arc is coded as 2 (rank - rank of the arc before - 1) + (1 if it is the last of its state),
    in the order of frames, states and ranks. Before a state's first arc the rank is -1.

    Args:
      lattices: every arc must be on a path from the start to the end.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: an arc of a lattice has no predecessor or no successor, or occurs twice.
    """
    # 1. All arcs by row (a frame of a lattice) and position.
    frames = np.array([lattice.frames for lattice in lattices], np.int64)
    rows = np.cumsum(frames + 1)
    first_row = np.repeat(rows - frames - 1, [len(lattice.arc) for lattice in lattices])
    row = _concatenate([lattice.frame for lattice in lattices]) + first_row
    position = graph.positions(_concatenate([lattice.arc for lattice in lattices]))
    order = np.lexsort((position, row))
    row, position = row[order], position[order].astype(np.int64)
    if ((np.diff(row) == 0) & (np.diff(position) == 0)).any():
        raise LatticeError("a lattice contains the same graph arc twice in one frame")
    # 2. Ranks within the states of each row, as differences.
    source = np.searchsorted(graph.first, position, side="right") - 1
    begins_state = (np.diff(row, prepend=-1) != 0) | (np.diff(source, prepend=-1) != 0)
    rank = position - graph.first[source]
    step = np.where(begins_state, rank, np.diff(rank, prepend=0) - 1)
    ends_state = np.append(begins_state[1:], np.ones(min(1, len(step)), bool))
    codes = 2 * step + ends_state
    # 3. Only arcs on paths can be read back.
    decoded = _decode_positions(graph, frames, codes)
    if decoded is None or not np.array_equal(decoded[0], position):
        raise LatticeError(
            "a lattice contains arcs that are on no path from the start to the end of the graph"
        )
    numbers = np.concatenate([[len(codes)], frames, codes]).astype(_NUMBER)
    # All low bytes, then all second ones, ...: the high ones are nearly all 0.
    return lzma.compress(numbers.view(np.uint8).reshape(-1, _NUMBER.itemsize).T.tobytes())


class LatticeBlock:
    """A decompressed block of lattices; `decode` returns single lattices.

    Args:
      data: the compressed bytes, see `encode`.
      size: the number of lattices.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: damaged bytes.
    """

    def __init__(self, data: bytes, size: int, graph: GraphIndex) -> None:
        try:
            planes = np.frombuffer(lzma.decompress(data, lzma.FORMAT_XZ, MEMORY), np.uint8)
            # [4, n] bytes -> [n] numbers
            numbers = planes.reshape(_NUMBER.itemsize, -1).T.copy().view(_NUMBER)[:, 0]
        except (lzma.LZMAError, ValueError) as error:
            raise LatticeError(f"damaged lattices ({error})") from error
        numbers = numbers.astype(np.int64)
        self._frames, codes = numbers[1 : size + 1], numbers[size + 1 :]
        if len(self._frames) != size or numbers[0] != len(codes):
            raise LatticeError("damaged lattices (the stored number of lattices or arcs is wrong)")
        decoded = _decode_positions(graph, self._frames, codes)
        if decoded is None:
            raise LatticeError("damaged lattices (they do not fit this graph)")
        self._positions, self._starts = decoded
        self._ends = np.cumsum(self._frames + 1)
        self._graph = graph

    def decode(self, number: int) -> LatticeArcs:
        """Return the arcs of the lattice with this number in the block."""
        frames, end = int(self._frames[number]), self._ends[number]
        starts = self._starts[end - frames - 1 : end + 1]
        arc = self._graph.arc[self._positions[starts[0] : starts[-1]]]
        frame = np.repeat(np.arange(frames + 1, dtype=np.int32), np.diff(starts))
        order = np.lexsort((arc, frame))
        return LatticeArcs(frames, frame, arc[order])


MEMORY = 64 << 20
"""Largest memory of a decompression, in bytes."""


def _decode_positions(
    graph: GraphIndex, frames: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Decode arc positions; return None unless they form whole lattices.

    Args:
      graph: the graph that the lattices were searched in.
      frames: [N] number of frames of each lattice.
      codes: [P] int64, see `encode`.

    Returns:
      [P] int64 positions; [rows + 1] where each row begins, frames + 1 rows for each lattice.
    """
    if frames.sum() + len(frames) > len(codes):  # every row has an arc
        return None
    final = len(graph.first) - 2
    positions, starts = _walk(graph.first, graph.destination, final, frames, codes)
    return (positions, starts) if len(starts) else None


@njit(cache=True, nogil=True)
def _walk(
    first: np.ndarray,
    destination: np.ndarray,
    final: int,
    frames: np.ndarray,
    codes: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Decode the arcs frame by frame along the states that they reach; see `_decode_positions`.

    The arrays are empty if the arcs are invalid.
    """
    nothing = np.empty(0, np.int64)
    starts = np.zeros(int(frames.sum()) + len(frames) + 1, np.int64)
    positions = np.empty(len(codes), np.int64)
    end = row = 0
    for lattice in range(len(frames)):
        states = np.zeros(1, np.int32)  # the start
        for _ in range(frames[lattice] + 1):
            begin = end
            # Each state of this frame has at least one used arc; the last one of each state is
            # marked.
            for state in states:
                position, is_last = first[state] - 1, False
                while not is_last:
                    if end == len(codes):
                        return nothing, nothing
                    position += 1 + (codes[end] >> 1)
                    if position >= first[state + 1]:
                        return nothing, nothing
                    is_last = codes[end] & 1 == 1
                    positions[end] = position
                    end += 1
            # Their destinations are the states of the next frame, in ascending order.
            states = np.unique(destination[positions[begin:end]])
            row += 1
            starts[row] = end
        if len(states) != 1 or states[0] != final:
            return nothing, nothing
    if end != len(codes):
        return nothing, nothing
    return positions, starts


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenate arrays; no arrays give an empty one."""
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, np.int64)


FORMAT = 3
"""Version of compressed shards; version 2 had a range coder in place of lzma."""


def graph_digest(path: Path) -> str:
    """Return the BLAKE2b digest of a graph's file: 16 bytes in hexadecimal."""
    hasher = hashlib.blake2b(digest_size=16)
    advice = "give the graph that the lattices were made with"
    with reading(path, LatticeStoreError, advice), open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


@dataclass(frozen=True)
class GraphInfo:
    """Extra information in a shard of `GraphCodec`."""

    retried: int = 0
    """Utterances that needed a wider beam."""
    failed: tuple[tuple[str, str], ...] = ()
    """Utterances without a lattice, and why."""
    arcs: int = 0
    """Arcs of all lattices, without those to final states; counted when the shard is written."""


@dataclass(frozen=True)
class _GraphFields:
    """Metadata of a `GraphCodec` shard."""

    graph: str
    """Digest of the graph's file."""
    ids: tuple[str, ...]
    """The shard's utterances with a lattice."""
    frames: int
    """Emitting frames of all lattices."""
    arcs: int
    """See `GraphInfo`."""
    retried: int
    """See `GraphInfo`."""
    failed: tuple[tuple[str, str], ...]
    """See `GraphInfo`."""
    lengths: tuple[int, ...]
    """Emitting frames of each lattice, in the order of `ids`."""
    format: int = FORMAT


class GraphCodec(LatticeCodec[LatticeArcs, Lattice, GraphInfo]):
    """Stores lattices as compressed arcs of a graph, identified by its file's digest.

    Lattices that are read share no memory with the graph. Their scores are the graph's, without
    acoustic scores.

    Args:
      graph: the decoding graph's file; it is loaded with the first lattice.
    """

    name = "lattices"
    advice = "remove it and make the lattices again"
    absent = "there are no lattices; make them first"

    def __init__(self, graph: Path) -> None:
        self._path = Path(graph)

    @cached_property
    def graph(self) -> Fst:
        """The graph, loaded on first use."""
        return load_fst(self._path)

    @cached_property
    def index(self) -> GraphIndex:
        """The ranks of the graph's arcs."""
        return GraphIndex(self.graph.first, self.graph.target, self.graph.scores)

    @cached_property
    def digest(self) -> str:
        """Digest of the graph's file, by `graph_digest`."""
        return graph_digest(self._path)

    def encode(
        self, lattices: Mapping[str, LatticeArcs | None], info: GraphInfo
    ) -> tuple[Tensors, dict[str, str]]:
        """Compress lattices; see `LatticeCodec.encode`."""
        with_path = {name: arcs for name, arcs in lattices.items() if arcs is not None}
        fields = _GraphFields(
            graph=self.digest,
            ids=tuple(with_path),
            frames=sum(arcs.frames for arcs in with_path.values()),
            arcs=sum(arcs.num_emitting for arcs in with_path.values()),
            retried=info.retried,
            failed=tuple(info.failed),
            lengths=tuple(int(arcs.frames) for arcs in with_path.values()),
        )
        data = np.frombuffer(encode([*with_path.values()], self.index), np.uint8)
        # A single metadata entry: several would be written in random order.
        return {"data": data}, {"lattices": json.dumps(asdict(fields))}

    def header(self, path: Path, metadata: dict[str, str]) -> ShardHeader[GraphInfo]:
        """Check a shard's metadata; see `LatticeCodec.header`."""
        content = json.loads(metadata["lattices"])
        if validated(content, {"format": int})["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, but this version reads format {FORMAT}")
        fields = from_plain(_GraphFields, content)
        if len(fields.lengths) != len(fields.ids) or sum(fields.lengths) != fields.frames:
            raise ValueError(
                "its lattice lengths do not fit the numbers of its utterances and frames"
            )
        if fields.graph != self.digest:
            raise LatticeStoreError(
                f"{path}: its lattices were made with another graph (digest {fields.graph}) than "
                f"{self._path} (digest {self.digest}). Give the graph of these lattices, or make "
                "the lattices again with the given graph"
            )
        info = GraphInfo(fields.retried, fields.failed, fields.arcs)
        failed = tuple(utterance for utterance, _ in fields.failed)
        return ShardHeader(fields.ids, failed, info, fields.lengths)

    def decode(self, path: Path, header: ShardHeader[GraphInfo]) -> Callable[[int], Lattice]:
        """Decompress a shard; see `LatticeCodec.decode`."""
        data = read_tensors(path, {"data": ("U8", 1)}, "np")[0]["data"].tobytes()
        try:
            block = LatticeBlock(data, len(header.ids), self.index)
        except LatticeError as error:
            raise LatticeStoreError(f"{path}: {error}; {self.advice}") from error
        return lambda number: build_lattice(block.decode(number), self.graph)

    def __getstate__(self) -> dict:
        """Pickle path and digest, without the loaded graph."""
        loaded = {"graph", "index"}
        return {key: value for key, value in self.__dict__.items() if key not in loaded}


def build_lattice(arcs: LatticeArcs, graph: Fst) -> Lattice:
    """Build a lattice from arcs of the graph; see `GraphCodec`."""
    frame = arcs.frame.astype(np.int64)
    left_states = frame * graph.num_states + graph.source[arcs.arc]
    entered = (frame + 1) * graph.num_states + graph.target[arcs.arc]
    states = np.unique(np.append(left_states[:1], entered))
    source, target = np.searchsorted(states, left_states), np.searchsorted(states, entered)
    return Lattice.of(graph, arcs.arc, arcs.frame, source, target, graph.scores[arcs.arc])


INTEGER_COLUMNS = ("source", "target", "labels", "frame", "graph_arc")
SCORE_COLUMNS = ("scores", "lm", "acoustic", "graph")
_SCORED_COLUMNS = {
    **dict.fromkeys((*INTEGER_COLUMNS, "words", "word_counts", "arcs"), ("I32", 1)),
    **dict.fromkeys(SCORE_COLUMNS, ("F32", 1)),
}
ScoredLattices = tuple[ScoredLattice, ...]
"""The lattices of an utterance, one for each pass of its search."""
Searches = Sequence[Mapping[str, Any]]
"""Information on each utterance's search, for JSON: `utterance` (id), `beam` (the beam that gave
lattices; 0: none did), and `seconds` (a number for each pass)."""


class ScoredCodec(LatticeCodec[ScoredLattices, ScoredLattices, Searches]):
    """Stores scored lattices as plain arrays, concatenated.

    They have `lm_scores`, as lattices from a decoding graph do.
    """

    name = "searched"
    advice = "delete it and decode again"
    absent = "there are no lattices; decode again"

    def encode(
        self, lattices: Mapping[str, ScoredLattices | None], info: Searches
    ) -> tuple[Tensors, dict[str, str]]:
        """Concatenate the arrays of lattices; see `LatticeCodec.encode`."""
        all_scored = [scored for passes in lattices.values() for scored in passes or ()]
        all_lattices = [scored.lattice for scored in all_scored]
        columns = {
            name: [getattr(lattice, name) for lattice in all_lattices] for name in INTEGER_COLUMNS
        }
        columns["scores"] = [lattice.scores for lattice in all_lattices]
        columns["lm"] = [lattice.lm_scores for lattice in all_lattices]
        columns["acoustic"] = [scored.acoustic for scored in all_scored]
        columns["graph"] = [scored.graph for scored in all_scored]
        columns["words"] = [lattice.words for lattice in all_lattices]
        columns["word_counts"] = [lattice.word_counts for lattice in all_lattices]
        columns["arcs"] = [np.array([len(lattice.source) for lattice in all_lattices])]
        kinds = {name: np.float32 if name in SCORE_COLUMNS else np.int32 for name in columns}
        empty = [np.zeros(0)]
        tensors = {
            name: np.concatenate([*empty, *values]).astype(kinds[name])
            for name, values in columns.items()
        }
        return tensors, {"described": json.dumps(list(info))}

    def header(self, path: Path, metadata: dict[str, str]) -> ShardHeader[Searches]:
        """Return the header in a file's metadata; see `LatticeCodec.header`."""
        searches = json.loads(metadata["described"])
        return ShardHeader(
            tuple(search["utterance"] for search in searches if search["beam"]),
            tuple(search["utterance"] for search in searches if not search["beam"]),
            searches,
        )

    def decode(self, path: Path, header: ShardHeader[Searches]) -> Callable[[int], ScoredLattices]:
        """Read and check all lattices of a shard; see `LatticeCodec.decode`."""
        tensors, _ = read_tensors(path, _SCORED_COLUMNS, "np")
        arcs = np.append(0, np.cumsum(tensors["arcs"]))
        words = np.append(0, np.cumsum(tensors["word_counts"]))
        if {len(tensors[name]) for name in (*INTEGER_COLUMNS, *SCORE_COLUMNS, "word_counts")} != {
            arcs[-1]
        }:
            raise ValueError("columns of different lengths")
        if tensors["word_counts"].min(initial=0) < 0 or words[-1] != len(tensors["words"]):
            raise ValueError("the words of some arcs are missing")
        lattices = [
            _scored_lattice(tensors, slice(begin, end), slice(words[begin], words[end]))
            for begin, end in pairwise(arcs.tolist())
        ]
        passes = [len(search["seconds"]) for search in header.info if search["beam"]]
        ends = np.cumsum([0, *passes]).tolist()
        if ends[-1] != len(lattices):
            raise ValueError(
                f"it contains {len(lattices)} lattices, but its header lists {ends[-1]}"
            )
        return lambda number: tuple(lattices[ends[number] : ends[number + 1]])


def _scored_lattice(tensors: dict[str, np.ndarray], arcs: slice, words: slice) -> ScoredLattice:
    """Return one lattice from a shard's concatenated arrays."""
    counts = tensors["word_counts"][arcs]
    lattice = Lattice(
        **{name: tensors[name][arcs] for name in (*INTEGER_COLUMNS, "scores")},
        lm_scores=tensors["lm"][arcs],
        splits=np.append(0, np.cumsum(counts)).astype(np.int32),
        words=tensors["words"][words],
    )
    # Compiled loops would read and write beyond its arrays.
    if not lattice.num_arcs:
        raise ValueError("a lattice without arcs")
    if not in_order(lattice.source, lattice.target, lattice.num_states) or not _by_frame(lattice):
        raise ValueError("the arcs do not form a lattice")
    return ScoredLattice(lattice, tensors["acoustic"][arcs], tensors["graph"][arcs])


def _by_frame(lattice: Lattice) -> bool:
    """Whether all arcs, except those to the end, lead from one frame to the next."""
    if not lattice.num_arcs:
        return True
    frames, inner = lattice.state_frames, lattice.target < lattice.num_states - 1
    ahead = frames[lattice.target] - frames[lattice.source]
    return bool((ahead[inner] == 1).all())


WORD_FORMAT = 1
NO_SYMBOL = "<eps>"
_BY_ARC = {"source": "I32", "target": "I32", "words": "I32", "graph": "F64", "acoustic": "F64"}
_COLUMNS = _BY_ARC | {"times": "F64"}
_SPLITS = {"arc_splits": ("I64", 1), "state_splits": ("I64", 1)}


class WordTable:
    """Ids of the words of several shards, assigned as words occur; 0 means no word."""

    def __init__(self) -> None:
        self.symbols = [NO_SYMBOL]
        self._ids = {NO_SYMBOL: NO_WORD}

    def id_of(self, word: str) -> int:
        """Return a word's id, assigning a new id if necessary."""
        number = self._ids.setdefault(word, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(word)
        return number

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return the ids of words."""
        return [self.id_of(word) for word in words]


@dataclass(frozen=True)
class WeightsUsed:
    """The weights with which lattices were made."""

    acoustic_scale: float
    word_penalty: float
    frame_shift: float
    """Seconds per frame."""


@dataclass(frozen=True)
class _WordFields:
    """Metadata of a `WordCodec` shard."""

    ids: tuple[str, ...]
    """The shard's utterances with a lattice."""
    failed: tuple[str, ...]
    """Utterances for which no path survived the search."""
    symbols: tuple[str, ...]
    """The word of each id in the shard; id 0 stands for no word."""
    acoustic_scale: float
    """The scale of the best path, see `toolkit.fsa.lattice.Weights`."""
    word_penalty: float
    """The penalty of the best path."""
    frame_shift: float
    """Seconds per frame."""
    format: int = WORD_FORMAT

    @classmethod
    def of(cls, metadata: dict[str, str]) -> "_WordFields":
        content = json.loads(metadata["lattices"])
        if validated(content, {"format": int})["format"] != WORD_FORMAT:
            raise ValueError(
                f"format {content['format']}, but this version reads format {WORD_FORMAT}"
            )
        return from_plain(cls, content)


class WordCodec(LatticeCodec[WordLattice, WordLattice, WeightsUsed]):
    """Stores word lattices; each shard has its own word ids and their spellings.

    Args:
      words: ids for the words of lattices that are read; several stores may share it.
      symbol: returns the word of an id when lattices are written; None: `words` gives it.
    """

    name = "words"
    advice = "remove it and decode again"
    absent = "there are no word lattices; decode with n-best lists"

    def __init__(
        self, words: WordTable | None = None, symbol: Callable[[int], str] | None = None
    ) -> None:
        self._words = WordTable() if words is None else words
        self._symbol = self._words.symbols.__getitem__ if symbol is None else symbol

    def encode(
        self, lattices: Mapping[str, WordLattice | None], info: WeightsUsed
    ) -> tuple[Tensors, dict[str, str]]:
        """Concatenate the arrays of lattices; see `LatticeCodec.encode`."""
        with_path = {name: lattice for name, lattice in lattices.items() if lattice is not None}
        columns = {name: [getattr(x, name) for x in with_path.values()] for name in _COLUMNS}
        joined = {name: np.concatenate(x) if x else np.zeros(0) for name, x in columns.items()}
        used, numbers = np.unique(np.append(NO_WORD, joined["words"]), return_inverse=True)
        joined["words"] = numbers.reshape(-1)[1:]
        kinds = {"I32": np.int32, "F64": np.float64}
        tensors = {
            name: np.ascontiguousarray(joined[name], kinds[kind]) for name, kind in _COLUMNS.items()
        }
        for name, column in (("arc_splits", "source"), ("state_splits", "times")):
            tensors[name] = np.cumsum([0, *map(len, columns[column])])
        fields = _WordFields(
            ids=tuple(with_path),
            failed=tuple(name for name, lattice in lattices.items() if lattice is None),
            symbols=(NO_SYMBOL, *map(self._symbol, used[1:].tolist())),
            **asdict(info),
        )
        return tensors, {"lattices": json.dumps(asdict(fields))}

    def header(self, path: Path, metadata: dict[str, str]) -> ShardHeader[WeightsUsed]:
        """Parse the header and assign ids to its words; see `LatticeCodec.header`."""
        fields = _WordFields.of(metadata)
        self._words.ids(fields.symbols)
        used = WeightsUsed(fields.acoustic_scale, fields.word_penalty, fields.frame_shift)
        return ShardHeader(fields.ids, fields.failed, used)

    def decode(self, path: Path, header: ShardHeader[WeightsUsed]) -> Callable[[int], WordLattice]:
        """Read and check all lattices of a shard; see `LatticeCodec.decode`."""
        kinds = {name: (kind, 1) for name, kind in _COLUMNS.items()} | _SPLITS
        tensors, metadata = read_tensors(path, kinds, "np")
        if (tensors["words"] < 0).any():
            raise ValueError("a word below 0")
        ids = np.int32(self._words.ids(_WordFields.of(metadata).symbols))
        tensors["words"] = ids[tensors["words"]]
        arcs, states = (_slices(tensors[name], len(header.ids)) for name in _SPLITS)
        lattices = []
        for name, of_arcs, of_states in zip(header.ids, arcs, states, strict=True):
            columns = {column: tensors[column][of_arcs] for column in _BY_ARC}
            lattice = WordLattice(**columns, times=tensors["times"][of_states])
            _check_word_lattice(name, lattice)
            lattices.append(lattice)
        return lattices.__getitem__


def _slices(splits: np.ndarray, count: int) -> list[slice]:
    """Return the slices between consecutive splits."""
    if len(splits) != count + 1:
        raise ValueError(f"{len(splits)} boundaries do not divide it into {count} utterances")
    return [slice(a, b) for a, b in pairwise(splits)]


def _check_word_lattice(name: str, lattice: WordLattice) -> None:
    """Raise a ValueError for a damaged lattice, which compiled loops would read out of bounds."""
    source, target, scores = lattice.source, lattice.target, (lattice.graph, lattice.acoustic)
    whole = all(len(x) == len(source) for x in (target, lattice.words, *scores))
    if not whole or not all(np.isfinite(x).all() for x in scores):
        raise ValueError(f"{name} lacks words or scores")
    if not (len(source) and in_order(source, target, lattice.num_states)):
        raise ValueError(f"{name} is not a lattice")
