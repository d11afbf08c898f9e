"""Encoding of lattices of random graphs."""

import lzma
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.fsa.lattice import LatticeArcs
from toolkit.fsa.lattice_store import GraphIndex, LatticeBlock, LatticeError, encode


class Graph:
    """A graph with random arcs and a final arc from each state."""

    def __init__(self, rng, degrees):
        states = len(degrees) + 1
        self.first = np.concatenate([[0], np.cumsum([d + 1 for d in degrees])])
        self.first = np.append(self.first, self.first[-1])  # the final state has no arcs
        self.source = np.repeat(np.arange(states), np.diff(self.first))
        self.destination = rng.integers(0, states - 1, self.first[-1])
        self.final_arcs = self.first[1:-1] - 1  # the last of each state
        self.destination[self.final_arcs] = states - 1
        scores = rng.choice(np.float32([-0.5, -1.5, -2.5]), self.first[-1])  # many are equal
        self.index = GraphIndex(self.first, self.destination, scores)

    def lattice(self, rng, frames, paths):
        """The union of random paths."""
        places = set()
        for _ in range(paths):
            state = 0
            for frame in range(frames):
                arc = int(rng.integers(self.first[state], self.first[state + 1] - 1))
                places.add((frame, arc))
                state = self.destination[arc]
            places.add((frames, int(self.final_arcs[state])))
        frame, arc = np.array(sorted(places), np.int32).T
        return LatticeArcs(frames, frame, arc)


def assert_same_arcs(decoded, original):
    assert decoded.frames == original.frames
    assert decoded.arc.dtype == original.arc.dtype == np.int32
    assert np.array_equal(decoded.frame, original.frame)
    assert np.array_equal(decoded.arc, original.arc)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    degrees=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=4),
)
def test_encoded_lattices_round_trip(seed, degrees, sizes):
    rng = np.random.default_rng(seed)
    graph = Graph(rng, degrees)
    lattices = [graph.lattice(rng, frames, paths) for frames, paths in sizes]
    block = LatticeBlock(encode(lattices, graph.index), len(lattices), graph.index)
    for number in rng.permutation(len(lattices)):  # in any order, each by itself
        assert_same_arcs(block.decode(number), lattices[number])


@pytest.mark.parametrize("fan_out", [256, 257, 300, 70_000])
def test_states_of_any_out_degree(fan_out):
    rng = np.random.default_rng(fan_out)
    graph = Graph(rng, [fan_out, 3, fan_out // 2, 1, 2])
    lattices = [graph.lattice(rng, 6, 40) for _ in range(3)]
    # The last out-arc of the state with the most is in use, and alone.
    worst = int(graph.index.arc[graph.first[1] - 1])
    end = graph.destination[worst]
    final = worst if end == len(graph.first) - 2 else int(graph.final_arcs[end])
    lattices.append(LatticeArcs(1, np.int32([0, 1]), np.int32([worst, final])))
    if final == worst:
        lattices.pop()
    block = LatticeBlock(encode(lattices, graph.index), len(lattices), graph.index)
    for number, lattice in enumerate(lattices):
        assert_same_arcs(block.decode(number), lattice)


def test_a_shard_without_lattices():
    graph = Graph(np.random.default_rng(0), [2, 2])
    LatticeBlock(encode([], graph.index), 0, graph.index)


def test_arcs_on_no_path_are_refused():
    rng = np.random.default_rng(3)
    graph = Graph(rng, [6, 6, 6, 6])
    whole = graph.lattice(rng, 5, 3)
    for dropped in range(len(whole.arc)):
        left = np.arange(len(whole.arc)) != dropped
        cut = LatticeArcs(5, whole.frame[left], whole.arc[left])
        entered = {(f + 1, graph.destination[a]) for f, a in zip(cut.frame, cut.arc, strict=True)}
        leaving = {(f, graph.source[a]) for f, a in zip(cut.frame, cut.arc, strict=True)}
        if entered - {(6, 4)} | {(0, 0)} == leaving:
            continue  # a parallel arc was dropped, the lattice is still whole
        with pytest.raises(LatticeError, match="on no path"):
            encode([whole, cut], graph.index)


def test_an_arc_twice_in_a_frame_is_refused():
    # As after composition with a language model, which splits the states of the graph.
    rng = np.random.default_rng(3)
    graph = Graph(rng, [6, 6, 6, 6])
    whole = graph.lattice(rng, 5, 3)
    twice = LatticeArcs(
        5, np.append(whole.frame, whole.frame[4]), np.append(whole.arc, whole.arc[4])
    )
    with pytest.raises(LatticeError, match="twice"):
        encode([twice], graph.index)


def test_a_lattice_of_another_length_is_refused():
    rng = np.random.default_rng(3)
    graph = Graph(rng, [6, 6, 6, 6])
    whole = graph.lattice(rng, 5, 3)
    for frames in (4, 6):
        with pytest.raises(LatticeError, match="on no path"):
            encode([whole, replace(whole, frames=frames), whole], graph.index)


def test_damaged_shards_are_an_error():
    rng = np.random.default_rng(4)
    graph = Graph(rng, [5, 4, 3])
    data = encode([graph.lattice(rng, 8, 4)], graph.index)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for bad in (bytes(flipped), data[:-10], b"", b"no lattices"):
        with pytest.raises(LatticeError, match="damaged"):
            LatticeBlock(bad, 1, graph.index)
    for size in (0, 2):  # there is one
        with pytest.raises(LatticeError, match="damaged"):
            LatticeBlock(data, size, graph.index)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 12) | st.integers(0, 2**32 - 1), max_size=40),
    st.integers(0, 20),
    st.integers(0, 3),
)
def test_damage_that_a_checksum_misses_is_an_error_or_a_valid_lattice(seed, codes, frames, missing):
    rng = np.random.default_rng(seed)
    graph = Graph(rng, rng.integers(1, 9, 5))
    numbers = np.array([max(0, len(codes) - missing), frames, 3, *codes], "<u4")
    data = lzma.compress(numbers.view(np.uint8).reshape(-1, 4).T.tobytes())
    try:
        block = LatticeBlock(data, 2, graph.index)
    except LatticeError:
        return
    for number in range(2):  # by chance, lattices of this graph
        lattice = block.decode(number)
        reencoded = LatticeBlock(encode([lattice], graph.index), 1, graph.index)
        assert_same_arcs(reencoded.decode(0), lattice)


def test_bytes_that_grow_beyond_memory_are_refused():
    graph = Graph(np.random.default_rng(4), [5, 4, 3])
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 256 << 20}]
    data = lzma.compress(bytes(4000), filters=filters)
    with pytest.raises(LatticeError, match="damaged"):
        LatticeBlock(data, 1, graph.index)


def test_arcs_take_as_many_bits_as_their_information():
    rng = np.random.default_rng(5)
    graph = Graph(rng, [1 << 6] * 100)
    lattices = [graph.lattice(rng, 200, 1) for _ in range(50)]
    arcs = sum(lattice.frames for lattice in lattices)
    data = encode(lattices, graph.index)
    assert 6 * arcs / 8 < len(data) < 1.2 * 6 * arcs / 8  # one of 64 arcs drawn at random


def test_repeated_arcs_take_few_bytes():
    rng = np.random.default_rng(5)
    graph = Graph(rng, rng.integers(30, 40, 50))
    self_loop, *_ = np.flatnonzero(graph.destination[: graph.first[1]] == 0)
    frame = np.arange(1001, dtype=np.int32)
    arc = np.append(np.full(1000, self_loop), graph.final_arcs[0]).astype(np.int32)
    assert len(encode([LatticeArcs(1000, frame, arc)], graph.index)) < 200
