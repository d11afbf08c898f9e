"""The lattice codec: stores which arcs of the decoding graph are in use in which frame (C8).

A state of a lattice from dense search is a state of the graph in a frame, so that an arc of the
lattice is an arc of the graph in a frame. Its destination, labels and graph score are in the graph,
its acoustic score comes from the network. What is left to store is the subset of the out-arcs of
each state that is in use. Which states there are follows from the arcs of the frame before.

The subsets are coded with chances that adapt to the lattices of a block
(`toolkit.fsa.lattice_codec_kernels`); half of the arcs in use were so a frame before. Measured at
10 arcs per frame of 30 ms: 0.31 MB/h with a graph of 2.3 M arcs of synthetic speech, 0.21 for the
demo's training data and graph of 0.06 M. The same numbers, compressed by lzma, take 0.46 and 0.40;
source, target, label and score of each arc, as k2 has them, take 2.8 with the first graph.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.lattice_codec_kernels import CONTEXTS, Codable, walk
from toolkit.fsa.range_coder import reader, writer, written

_NUMBER = np.dtype("<u4")


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
    """A graph as the codec sees it: the out-arcs of each state ranked by score.

    Args:
      first: [S + 1] the first out-arc of each state; state 0 starts, state S - 1 ends.
      destination: [A] the state that each arc leads to.
      scores: [A] the arcs' scores.
    """

    def __init__(self, first: np.ndarray, destination: np.ndarray, scores: np.ndarray) -> None:
        source = np.repeat(np.arange(len(first) - 1), np.diff(first))
        self.arc = np.lexsort((-scores, source)).astype(np.int32)
        """[A] the graph's arc at each position."""
        self.codable = Codable(
            np.asarray(first, np.int64), destination[self.arc].astype(np.int32), len(first) - 2
        )
        """What the kernels see of it."""

    def positions(self, arcs: np.ndarray) -> np.ndarray:
        """[n] the position of each arc of the graph."""
        place = np.empty(len(self.arc), np.int32)
        place[self.arc] = np.arange(len(self.arc), dtype=np.int32)
        return place[arcs]


def encode(lattices: Sequence[LatticeArcs], graph: GraphIndex) -> bytes:
    """Compress the lattices of a block of utterances.

    Args:
      lattices: each with an arc on a path from the start to the end wherever it has an arc.
      graph: the graph that they were searched in.

    Raises:
      LatticeError: a lattice has an arc without predecessor or successor, or twice.
    """
    frames = np.array([lattice.frames for lattice in lattices], np.int64)
    rows = np.cumsum(frames + 1)
    first = np.repeat(rows - frames - 1, [len(x.arc) for x in lattices])
    row = _joined([lattice.frame for lattice in lattices]) + first
    place = graph.positions(_joined([lattice.arc for lattice in lattices]))
    order = np.lexsort((place, row))
    row, place = row[order], place[order]
    if ((np.diff(row) == 0) & (np.diff(place) == 0)).any():
        raise LatticeError("a lattice has an arc of its graph twice in a frame")
    starts = np.searchsorted(row, np.arange(frames.sum() + len(frames) + 1))
    sources = np.searchsorted(graph.codable.first, place, side="right") - 1
    halvings = np.frexp(np.diff(graph.codable.first)[sources])[1]
    coder = writer(2 * int(halvings.sum()), CONTEXTS)
    if not walk(graph.codable, frames, starts, place, coder, reading=False):
        raise LatticeError("a lattice has arcs on no path from the start to the end of its graph")
    coded = np.append(len(place), frames).astype(_NUMBER).tobytes() + written(coder)
    return _checksum(coded) + coded


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
        checksum, coded = data[: _NUMBER.itemsize], data[_NUMBER.itemsize :]
        head = (size + 1) * _NUMBER.itemsize
        if len(coded) < head or checksum != _checksum(coded):
            raise LatticeError("damaged lattices (another checksum)")
        arcs, *frames = np.frombuffer(coded[:head], _NUMBER).astype(np.int64).tolist()
        self._frames = np.array(frames, np.int64)
        rows = int(self._frames.sum()) + size
        if not rows <= arcs <= rows * len(graph.arc):
            raise LatticeError("damaged lattices (as many arcs as there cannot be)")
        self._starts = np.zeros(rows + 1, np.int64)
        self._places = np.zeros(arcs, np.int32)
        coder = reader(coded[head:], CONTEXTS)
        if not walk(graph.codable, self._frames, self._starts, self._places, coder, reading=True):
            raise LatticeError("damaged lattices (not of this graph)")
        self._ends = np.cumsum(self._frames + 1)
        self._graph = graph

    def decode(self, number: int) -> LatticeArcs:
        """Read the lattice of the utterance with this number in the block."""
        frames, end = int(self._frames[number]), self._ends[number]
        starts = self._starts[end - frames - 1 : end + 1]
        arc = self._graph.arc[self._places[starts[0] : starts[-1]]]
        frame = np.repeat(np.arange(frames + 1, dtype=np.int32), np.diff(starts))
        order = np.lexsort((arc, frame))
        return LatticeArcs(frames, frame, arc[order])


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, np.int64)


def _checksum(data: bytes) -> bytes:
    return np.array(zlib.crc32(data), _NUMBER).tobytes()
