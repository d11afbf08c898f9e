"""Lattices on disk: those of a search, arcs of a graph in use, and lattices of words.

Shards of scored lattices are plain arrays: a search writes them and weights are tuned on them.
Shards of graph arcs are compressed (C8): a state of a lattice from dense search is a state of the
graph in a frame, so that an arc of the lattice is an arc of the graph in a frame. Its destination,
labels and graph score are in the graph, its acoustic score comes from the network. What is left to
store is which out-arcs of each state are in use, by their ranks among its out-arcs sorted by score:
states are reached by the arcs of the frame before, so that they need not be stored.

Measured at 10 arcs per frame of 30 ms with a trigram graph of 0.7 M arcs of synthetic speech: 0.45
MB/h with lzma, 0.49 with zlib; 2 ms to decompress 3.5 minutes of speech. An adaptive range coder
with contexts took 0.28 MB/h, 24 ms and 250 lines.
"""

import hashlib
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

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


class LatticeError(ToolkitError):
    """A lattice that does not belong to its graph, or bytes that do not hold lattices."""


class GraphIndex:
    """A graph as the codec sees it: the out-arcs of each state ranked by score.

    A position is the place of an arc among all arcs by source state and falling score.

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
        """[n] the position of each arc of the graph."""
        position = np.empty(len(self.arc), np.int32)
        position[self.arc] = np.arange(len(self.arc), dtype=np.int32)
        return position[arcs]


_NUMBER = np.dtype("<u4")


def encode(lattices: Sequence[LatticeArcs], graph: GraphIndex) -> bytes:
    """Compress the lattices of a block of utterances.

    An arc is coded as 2 (rank - rank of the arc before - 1) + (1 if it is the last of its state),
    in the order of frames, states and ranks.

    Args:
      lattices: each with an arc on a path from the start to the end wherever it has an arc.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: a lattice has an arc without predecessor or successor, or twice.
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
        raise LatticeError("a lattice has an arc of its graph twice in a frame")
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
        raise LatticeError("a lattice has arcs on no path from the start to the end of its graph")
    numbers = np.concatenate([[len(codes)], frames, codes]).astype(_NUMBER)
    # All low bytes, then all second ones, ...: the high ones are nearly all 0.
    return lzma.compress(numbers.view(np.uint8).reshape(-1, _NUMBER.itemsize).T.tobytes())


class LatticeBlock:
    """A block that `encode` compressed, decompressed; `decode` reads single lattices.

    Args:
      data: the bytes.
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
            raise LatticeError("damaged lattices (not as many lattices and arcs as stored)")
        decoded = _decode_positions(graph, self._frames, codes)
        if decoded is None:
            raise LatticeError("damaged lattices (not of this graph)")
        self._positions, self._starts = decoded
        self._ends = np.cumsum(self._frames + 1)
        self._graph = graph

    def decode(self, number: int) -> LatticeArcs:
        """Read the lattice of the utterance with this number in the block."""
        frames, end = int(self._frames[number]), self._ends[number]
        starts = self._starts[end - frames - 1 : end + 1]
        arc = self._graph.arc[self._positions[starts[0] : starts[-1]]]
        frame = np.repeat(np.arange(frames + 1, dtype=np.int32), np.diff(starts))
        order = np.lexsort((arc, frame))
        return LatticeArcs(frames, frame, arc[order])


MEMORY = 64 << 20
"""Bytes that decompression may take."""


def _decode_positions(
    graph: GraphIndex, frames: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions of arcs from their codes; None unless these are whole lattices of so many frames.

    Args:
      graph: that the lattices were searched in.
      frames: [N] of each lattice.
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
    """Follow the states that the arcs of each frame reach; empty arrays for None."""
    nothing = np.empty(0, np.int64)
    starts = np.zeros(int(frames.sum()) + len(frames) + 1, np.int64)
    positions = np.empty(len(codes), np.int64)
    end = row = 0
    for lattice in range(len(frames)):
        states = np.zeros(1, np.int32)  # the start
        for _ in range(frames[lattice] + 1):
            begin = end
            # Each state of this frame has one arc in use or more, of which the last is marked.
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
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, np.int64)


FORMAT = 3
"""Of compressed shards; 2: a range coder in place of lzma."""
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
                fields = json.loads(file.metadata()["lattices"])
            if validated(fields, {"format": int})["format"] != FORMAT:
                raise ValueError(f"format {fields['format']}, this version reads {FORMAT}")
            header = from_plain(cls, fields)
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
    arcs_of_lattices = list(lattices.values())
    header_fields = ShardHeader(
        graph=digest,
        ids=tuple(lattices),
        frames=sum(x.frames for x in arcs_of_lattices),
        arcs=sum(x.num_emitting for x in arcs_of_lattices),
        retried=retried,
        failed=tuple(failed),
        lengths=tuple(int(x.frames) for x in arcs_of_lattices),
    )
    data = np.frombuffer(encode(arcs_of_lattices, index), np.uint8)
    # A single entry: the order of several would be random.
    header = {"lattices": json.dumps(asdict(header_fields))}
    write_atomically(path, save({"data": data}, header))


def graph_index(graph: Fst) -> GraphIndex:
    """The codec's tables of a graph."""
    return GraphIndex(graph.first, graph.target, graph.scores)


class LatticeStore:
    """A folder of lattices and the graph that they were searched in.

    Args:
      path: the folder that `toolkit.decode.denominators.make_lattices` wrote.
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
            header = ShardHeader.read(shard)
            if header.graph != digest:
                raise LatticeStoreError(
                    f"{shard}: made with another graph ({header.graph}) than {graph} ({digest});"
                    " give that graph, or make the lattices again with this one"
                )
            self._lengths[shard] = np.array(header.lengths, np.int32)
            self._where |= {name: (shard, n) for n, name in enumerate(header.ids)}
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
        loaded = {"_graph", "_index"}
        state = {key: value for key, value in self.__dict__.items() if key not in loaded}
        return {**state, "_blocks": {}}


def build_lattice(arcs: LatticeArcs, graph: Fst) -> Lattice:
    """Build a lattice from arcs of the graph (see `LatticeStore.load`)."""
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


class ScoredLatticesError(ToolkitError):
    """Lattices on disk that cannot be read."""


def write_scored(path: Path, lattices: Sequence[ScoredLattice], description: str) -> None:
    """Write lattices.

    Args:
      path: the file.
      lattices: in any order; with `lm_scores`, as those of a decoding graph have them.
      description: text that is kept with them.
    """
    columns = {
        name: [getattr(scored.lattice, name) for scored in lattices] for name in INTEGER_COLUMNS
    }
    columns["scores"] = [scored.lattice.scores for scored in lattices]
    columns["lm"] = [scored.lattice.lm_scores for scored in lattices]
    columns |= {
        name: [getattr(scored, name) for scored in lattices] for name in ("acoustic", "graph")
    }
    columns["words"] = [scored.lattice.words for scored in lattices]
    columns["word_counts"] = [scored.lattice.word_counts for scored in lattices]
    columns["arcs"] = [np.array([len(scored.lattice.source) for scored in lattices])]
    kinds = {name: np.float32 if name in SCORE_COLUMNS else np.int32 for name in columns}
    empty = [np.zeros(0)]
    tensors = {
        name: np.concatenate([*empty, *values]).astype(kinds[name])
        for name, values in columns.items()
    }
    write_atomically(path, save(tensors, {"described": description}))


def read_scored(path: Path) -> tuple[list[ScoredLattice], str]:
    """Read what `write_scored` wrote.

    Returns:
      The lattices, and the text that was kept with them.

    Raises:
      ScoredLatticesError: naming the file.
    """
    with reading(path, ScoredLatticesError, "delete it and decode again"):
        tensors, metadata = read_tensors(path, _SCORED_COLUMNS, "np")
        arcs = np.append(0, np.cumsum(tensors["arcs"]))
        words = np.append(0, np.cumsum(tensors["word_counts"]))
        if {len(tensors[name]) for name in (*INTEGER_COLUMNS, *SCORE_COLUMNS, "word_counts")} != {
            arcs[-1]
        }:
            raise ValueError("columns of different lengths")
        if tensors["word_counts"].min(initial=0) < 0 or words[-1] != len(tensors["words"]):
            raise ValueError("arcs whose words are not there")
        lattices = [
            _scored_lattice(tensors, slice(begin, end), slice(words[begin], words[end]))
            for begin, end in zip(arcs[:-1].tolist(), arcs[1:].tolist(), strict=True)
        ]
        return lattices, metadata.get("described", "")


def _scored_lattice(tensors: dict[str, np.ndarray], arcs: slice, words: slice) -> ScoredLattice:
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
        raise ValueError("no lattice")
    return ScoredLattice(lattice, tensors["acoustic"][arcs], tensors["graph"][arcs])


def _by_frame(lattice: Lattice) -> bool:
    """Whether arcs, but for those to the end, lead from one frame to the next."""
    if not lattice.num_arcs:
        return True
    frames, inner = lattice.state_frames, lattice.target < lattice.num_states - 1
    ahead = frames[lattice.target] - frames[lattice.source]
    return bool((ahead[inner] == 1).all())


WORD_FORMAT = 1
DECODE_AGAIN = "remove it and decode again"
NO_SYMBOL = "<eps>"
_BY_ARC = {"source": "I32", "target": "I32", "words": "I32", "graph": "F64", "acoustic": "F64"}
_COLUMNS = _BY_ARC | {"times": "F64"}
_SPLITS = {"arc_splits": ("I64", 1), "state_splits": ("I64", 1)}


class WordLatticeError(ToolkitError):
    """Word lattices that are damaged or not there."""


@dataclass(frozen=True)
class WordLatticeHeader:
    """What a shard holds beside the arrays."""

    ids: tuple[str, ...]
    """Its utterances."""
    failed: tuple[str, ...]
    """Utterances of which no path survived the search."""
    symbols: tuple[str, ...]
    """The words by their ids in the shard; the first is that of no word."""
    acoustic_scale: float
    """The scale of the best path, see `toolkit.fsa.lattice.Weights`."""
    word_penalty: float
    """The penalty of the best path."""
    frame_shift: float
    """Seconds per frame."""
    format: int = WORD_FORMAT


class WordTable:
    """Ids for the words of several shards, as they come; 0 is no word."""

    def __init__(self) -> None:
        self.symbols = [NO_SYMBOL]
        self._ids = {NO_SYMBOL: NO_WORD}

    def id_of(self, word: str) -> int:
        """The id of a word, which may be a new one."""
        number = self._ids.setdefault(word, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(word)
        return number

    def ids(self, words: Sequence[str]) -> list[int]:
        """The ids of words."""
        return [self.id_of(word) for word in words]


@dataclass(frozen=True)
class WeightsUsed:
    """How lattices were made."""

    acoustic_scale: float
    word_penalty: float
    frame_shift: float
    """Seconds per frame."""


def word_lattice_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"words.{number:06d}.safetensors"


def remove_word_lattices(folder: Path, number: int) -> None:
    """Remove the shards from `number` on, which another decode has left."""
    current = {word_lattice_path(folder, n) for n in range(number)}
    for path in folder.glob("words.*.safetensors"):
        if path not in current:
            path.unlink()


def write_word_lattices(
    path: Path,
    lattices: Mapping[str, WordLattice | None],
    symbol: Callable[[int], str],
    decoding: WeightsUsed,
) -> None:
    """Write one shard.

    Args:
      path: see `word_lattice_path`.
      lattices: by utterance; None where the search failed.
      symbol: gives the word of an id.
      decoding: how they were made.
    """
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
    header = WordLatticeHeader(
        ids=tuple(with_path),
        failed=tuple(name for name, lattice in lattices.items() if lattice is None),
        symbols=(NO_SYMBOL, *map(symbol, used[1:].tolist())),
        **asdict(decoding),
    )
    write_atomically(path, save(tensors, {"lattices": json.dumps(asdict(header))}))


class WordLatticeStore:
    """A folder of word lattices; all are kept in memory.

    Args:
      folder: with the shards of `write_word_lattices`.
      words: gives their words common ids with those of other stores.

    Raises:
      WordLatticeError: no lattices there, or damaged ones.
    """

    def __init__(self, folder: Path, words: WordTable) -> None:
        self.decodings: dict[str, WeightsUsed] = {}
        self.failed: list[str] = []
        self._lattices: dict[str, WordLattice] = {}
        shards = sorted(Path(folder).glob("words.*.safetensors"))
        if not shards:
            raise WordLatticeError(
                f"{folder}: there are no word lattices; decode with n-best lists"
            )
        for path in shards:
            with reading(path, WordLatticeError, DECODE_AGAIN, "damaged"):
                self._read(path, words)

    def _read(self, path: Path, words: WordTable) -> None:
        kinds = {name: (kind, 1) for name, kind in _COLUMNS.items()} | _SPLITS
        tensors, metadata = read_tensors(path, kinds, "np")
        fields = json.loads(metadata["lattices"])
        if validated(fields, {"format": int})["format"] != WORD_FORMAT:
            raise ValueError(f"format {fields['format']}, this version reads {WORD_FORMAT}")
        header = from_plain(WordLatticeHeader, fields)
        if (tensors["words"] < 0).any():
            raise ValueError("a word below 0")
        tensors["words"] = np.int32(words.ids(header.symbols))[tensors["words"]]
        decoding = WeightsUsed(header.acoustic_scale, header.word_penalty, header.frame_shift)
        self.failed += header.failed
        arcs, states = (_slices(tensors[name], len(header.ids)) for name in _SPLITS)
        for name, of_arcs, of_states in zip(header.ids, arcs, states, strict=True):
            columns = {column: tensors[column][of_arcs] for column in _BY_ARC}
            lattice = WordLattice(**columns, times=tensors["times"][of_states])
            _check_word_lattice(name, lattice)
            self._lattices[name], self.decodings[name] = lattice, decoding

    def __iter__(self) -> Iterator[str]:
        return iter(self._lattices)

    def __getitem__(self, utterance: str) -> WordLattice:
        return self._lattices[utterance]

    def scores(self, utterance: str) -> np.ndarray:
        """[A] the scores of a lattice's arcs with the weights of its best path."""
        used = self.decodings[utterance]
        return self[utterance].scores(used.acoustic_scale, used.word_penalty)


def _slices(splits: np.ndarray, count: int) -> list[slice]:
    if len(splits) != count + 1:
        raise ValueError(f"{len(splits)} splits for {count} utterances")
    return [slice(a, b) for a, b in pairwise(splits)]


def _check_word_lattice(name: str, lattice: WordLattice) -> None:
    """Compiled loops would read beyond the arrays of damaged lattices."""
    source, target, scores = lattice.source, lattice.target, (lattice.graph, lattice.acoustic)
    whole = all(len(x) == len(source) for x in (target, lattice.words, *scores))
    if not whole or not all(np.isfinite(x).all() for x in scores):
        raise ValueError(f"{name} lacks words or scores")
    if not (len(source) and in_order(source, target, lattice.num_states)):
        raise ValueError(f"{name} is no lattice")
