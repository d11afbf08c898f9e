"""The lattice codec: stores which arcs of the decoding graph are in use in which frame (C8).

A state of a lattice from dense search is a state of the graph in a frame, so that an arc of the
lattice is an arc of the graph in a frame. Its destination, labels and graph score are in the graph,
its acoustic score comes from the network. What is left to store is the subset of the out-arcs of
each state that is in use: how many, and the gaps between their ranks when out-arcs are ranked by
score. Which states there are follows from the arcs of the frame before.

Numbers are kept in streams by the states' out-degree (1, 2, 3-4, 5-8, ...), each stream of all
utterances of a block together, and lzma compresses the block. Measured on read speech at 10 arcs
per frame of 30 ms: 0.38 MB/h with a graph of 0.13 M arcs, 0.57 with one of 4.9 M. In a single
stream it was a tenth more, and k2's arrays with lzma take five times that.
"""

import lzma
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.errors import ToolkitError

# No literal contexts: neighbours in a stream are not parts of one number.
FILTERS = (
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": 1 << 22,
        "lc": 0,
        "lp": 0,
        "pb": 0,
    },
)


class LatticeError(ToolkitError):
    """A lattice that does not belong to its graph, or bytes that do not hold lattices."""


@dataclass(frozen=True)
class LatticeArcs:
    """A lattice in terms of its graph, in order of frame and arc."""

    frames: int
    """T, the emitting frames."""
    frame: np.ndarray
    """[A] int32: the frame of each arc, T for arcs to the final state."""
    arc: np.ndarray
    """[A] int32: the graph's arc."""

    @property
    def num_emitting(self) -> int:
        """The number of arcs, without those to the final state."""
        return int(np.count_nonzero(self.frame < self.frames))


class GraphIndex:
    """A graph as the codec sees it: states by out-degree, the out-arcs of each ranked by score.

    Args:
      first: [S + 1] the first out-arc of each state; state 0 starts, state S - 1 ends.
      destination: [A] the state that each arc leads to.
      scores: [A] the arcs' scores.
    """

    def __init__(self, first: np.ndarray, destination: np.ndarray, scores: np.ndarray) -> None:
        degree = np.diff(first).astype(np.int64)
        bucket = np.frexp(np.maximum(degree - 1, 0))[1]  # bits of the largest rank
        states = np.argsort(bucket, kind="stable")
        ordinal = np.empty(len(degree), np.int32)
        ordinal[states] = np.arange(len(degree), dtype=np.int32)
        self.num_buckets = int(bucket.max()) + 1
        self.bucket = bucket[states]
        """[S] the bucket of each state; here and below, states are in the order of out-degrees."""
        self.first = np.append(0, degree[states].cumsum())
        """[S + 1] the first position of each state's arcs."""
        self.arc = np.lexsort((-scores, np.repeat(ordinal, degree))).astype(np.int32)
        """[A] the graph's arc at each position."""
        self.destination = ordinal[destination[self.arc]]
        """[A] the state that the arc at each position leads to."""
        self.start, self.final = int(ordinal[0]), int(ordinal[-1])

    def positions(self, arcs: np.ndarray) -> np.ndarray:
        """[n] the position of each arc of the graph."""
        place = np.empty(len(self.arc), np.int32)
        place[self.arc] = np.arange(len(self.arc), dtype=np.int32)
        return place[arcs].astype(np.int64)


def encode(lattices: Sequence[LatticeArcs], graph: GraphIndex) -> bytes:
    """Compress the lattices of a block of utterances.

    Args:
      lattices: each with an arc on a path from the start to the end wherever it has an arc.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: a lattice has an arc without predecessor or successor, or twice.
    """
    frames = np.array([lattice.frames for lattice in lattices], np.int64)
    utterance = np.repeat(np.arange(len(lattices)), [len(x.arc) for x in lattices])
    level = (
        _joined([lattice.frame for lattice in lattices])
        + (np.cumsum(frames + 2) - frames - 2)[utterance]
    )  # frames of all utterances in a row, one more than there are for each
    place = graph.positions(_joined([lattice.arc for lattice in lattices]))
    order = np.lexsort((place, level))
    level, place = level[order], place[order]
    state = np.searchsorted(graph.first, place, side="right") - 1
    # The first arc of each state in each frame.
    begins = np.flatnonzero(np.diff(level, prepend=-1) | np.diff(state, prepend=-1))
    _check(lattices, graph, level, state[begins], level[begins], place)

    counts = np.diff(begins, append=len(place))
    gaps = np.diff(place, prepend=-1) - 1
    gaps[begins] = place[begins] - graph.first[state[begins]]
    if (gaps < 0).any():
        raise LatticeError("a lattice has an arc of its graph twice in a frame")
    buckets = graph.bucket[state[begins]]
    arc_buckets = np.repeat(buckets, counts)
    sizes = [
        _counted(utterance[begins] * graph.num_buckets + buckets, len(lattices), graph),
        _counted(utterance * graph.num_buckets + arc_buckets, len(lattices), graph),
    ]
    parts = [_planes(np.concatenate([frames, *(size.ravel() for size in sizes)]), 4)]
    for values, bucket in ((counts - 1, buckets), (gaps, arc_buckets)):
        for b in range(graph.num_buckets):
            parts.append(_planes(values[bucket == b], _width(b)))
    return lzma.compress(b"".join(parts), format=lzma.FORMAT_XZ, filters=FILTERS)


def frames_of(data: bytes, size: int, graph: GraphIndex) -> np.ndarray:
    """[N] the emitting frames of the lattices of a block, without decompressing the lattices.

    Args:
      data: the bytes.
      size: N, the number of lattices.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: damaged bytes.
    """
    try:
        return _head(lzma.LZMADecompressor(format=lzma.FORMAT_XZ), data, size, graph)[0]
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise LatticeError(f"damaged lattices ({error})") from error


def _head(
    unpacking: lzma.LZMADecompressor, data: bytes, size: int, graph: GraphIndex
) -> tuple[np.ndarray, np.ndarray]:
    """[N] the frames, and [2, N, B] the numbers in each stream, from the beginning of a block."""
    columns = 1 + 2 * graph.num_buckets
    raw = unpacking.decompress(data, 4 * size * columns)
    head = _unplaned(np.frombuffer(raw, np.uint8), 4)
    return head[:size], head[size:].reshape(2, size, graph.num_buckets).astype(np.int64)


class LatticeBlock:
    """A block that `encode` compressed, decompressed to bytes; `decode` reads single lattices.

    Args:
      data: the bytes.
      size: the number of lattices.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: damaged bytes.
    """

    def __init__(self, data: bytes, size: int, graph: GraphIndex) -> None:
        try:
            unpacking = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
            self._frames, tables = _head(unpacking, data, size, graph)
            # Decompress no more than the tables ask for, however much data there is.
            raw = b"" if unpacking.eof else unpacking.decompress(b"", _bytes_of(tables) + 1)
            if not unpacking.eof:
                raise ValueError("cut short, or more than the tables say")
            rest = np.frombuffer(raw, np.uint8)
            self._counts, rest = _streams(rest, tables[0].sum(axis=0))
            self._gaps, rest = _streams(rest, tables[1].sum(axis=0))
        except (lzma.LZMAError, EOFError, ValueError) as error:
            raise LatticeError(f"damaged lattices ({error})") from error
        if len(rest):
            raise LatticeError("damaged lattices (of another size than their tables say)")
        if (tables[0].sum(axis=1) <= self._frames).any():
            raise LatticeError("damaged lattices (more frames than states)")
        # [2, N, B] where each lattice begins in each stream.
        flat = tables.transpose(0, 2, 1).reshape(2, -1)
        before = flat.cumsum(axis=1) - flat
        self._begins = before.reshape(2, graph.num_buckets, size).transpose(0, 2, 1)
        self._graph = graph
        most = int(tables.sum(axis=2).max(initial=0))  # more than a frame can have
        self._range, self._true = np.arange(most), np.ones(most, bool)

    def decode(self, number: int) -> LatticeArcs:
        """Read the lattice of the utterance with this number in the block."""
        graph = self._graph
        frames = int(self._frames[number])
        states = np.array([graph.start])
        at_counts, at_gaps = self._begins[:, number].copy()
        places = []
        for _ in range(frames + 1):
            buckets = graph.bucket[states]  # ascending, as the states are
            counts = self._take(self._counts, at_counts, buckets)
            steps = self._take(self._gaps, at_gaps, buckets.repeat(counts))
            place = steps.cumsum()
            ends = counts.cumsum() - 1
            base = graph.first[states] - 1
            base[1:] -= place[ends[:-1]]
            place += base.repeat(counts)
            places.append(place)
            reached = graph.destination[place]
            reached.sort()
            new = self._true[: len(reached)].copy()
            np.not_equal(reached[1:], reached[:-1], out=new[1:])
            states = reached[new]
        every = np.concatenate(places)
        arc = graph.arc[every]
        frame = np.repeat(np.arange(frames + 1, dtype=np.int32), [len(x) for x in places])
        if not np.array_equal(graph.destination[every] == graph.final, frame == frames):
            raise LatticeError("a damaged lattice (it does not end where its frames do)")
        order = np.lexsort((arc, frame))
        return LatticeArcs(frames, frame[order], arc[order])

    def _take(self, stream: np.ndarray, at: np.ndarray, buckets: np.ndarray) -> np.ndarray:
        """Read the next numbers of concatenated streams, each plus one, and advance in the streams.

        Args:
          stream: the numbers of all buckets.
          at: [B] the next number of each bucket, advanced.
          buckets: [n] ascending.
        """
        taken = np.bincount(buckets, minlength=len(at))
        at += taken
        where = (at - taken.cumsum())[buckets]
        where += self._range[: len(buckets)]
        return np.add(stream[where], 1, dtype=np.int64)


def _check(
    lattices: Sequence[LatticeArcs],
    graph: GraphIndex,
    level: np.ndarray,
    states: np.ndarray,
    levels: np.ndarray,
    place: np.ndarray,
) -> None:
    """Arcs must leave exactly the states that arcs enter, and all end in the last frame."""
    size = len(graph.first)
    starts = np.cumsum([0] + [lattice.frames + 2 for lattice in lattices])
    entered = np.unique((level + 1) * size + graph.destination[place])
    ends = (starts[1:] - 1) * size + graph.final
    begins = starts[:-1] * size + graph.start
    expected = np.union1d(entered, begins)
    if not np.isin(ends, entered).all() or not np.array_equal(
        np.setdiff1d(expected, ends), levels * size + states
    ):
        raise LatticeError("a lattice has arcs on no path from the start to the end of its graph")


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, np.int64)


def _counted(keys: np.ndarray, size: int, graph: GraphIndex) -> np.ndarray:
    return np.bincount(keys, minlength=size * graph.num_buckets)


def _width(bucket: int) -> int:
    """Bytes of a number of `bucket` bits."""
    return 1 if bucket <= 8 else 2 if bucket <= 16 else 4


def _planes(values: np.ndarray, width: int) -> bytes:
    """The lowest bytes of all values, then the second, and so on."""
    return values.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T.tobytes()


def _unplaned(data: np.ndarray, width: int) -> np.ndarray:
    return data.reshape(width, -1).T.copy().view(f"<u{width}")[:, 0]


def _bytes_of(tables: np.ndarray) -> int:
    """[2, N, B] numbers in each stream -> the bytes of all."""
    widths = np.array([_width(bucket) for bucket in range(tables.shape[2])])
    return int((tables.sum(axis=(0, 1)) * widths).sum())


def _streams(data: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all buckets, in the smallest type that has room, and the bytes behind them."""
    parts = []
    for bucket, size in enumerate(sizes):
        length = int(size) * _width(bucket)
        part = _unplaned(data[:length], _width(bucket))
        if len(part) != size or (part >> bucket).any():
            raise ValueError("numbers that are missing or too large")
        parts.append(part)
        data = data[length:]
    widest = max((_width(b) for b, size in enumerate(sizes) if size), default=1)
    return np.concatenate([part.astype(f"u{widest}") for part in parts]), data
