"""Lattices packed into one batch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.lattices import lattice_from_arcs
from toolkit.fsa.forward_backward import pack

CPU = torch.device("cpu")


def chain(length, pdf):
    arcs = [(t, t + 1, pdf + 1, 0, -float(t)) for t in range(length)]
    return lattice_from_arcs(arcs, [length], range(length + 1))


def test_lattices_are_packed_one_after_the_other():
    two = lattice_from_arcs(
        [(0, 1, 3, 0, -1.0), (0, 2, 1, 0, -2.0), (1, 3, 2, 0, -0.5), (2, 3, 2, 0, -4.0)],
        [3],
        [0, 1, 1, 2],
    )
    packed = pack([chain(1, 5), two], CPU)
    assert packed.num_states == 3 + 5
    assert packed.starts.tolist() == [0, 3]
    assert packed.ends.tolist() == [2, 7]
    assert packed.frames.tolist() == [1, 2]
    assert packed.source.tolist() == [0, 1, 3, 3, 4, 5, 6]
    assert packed.target.tolist() == [1, 2, 4, 5, 6, 6, 7]
    assert packed.utterance.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert packed.scores.tolist() == [0.0, 0.0, -1.0, -2.0, -0.5, -4.0, 0.0]
    assert packed.scores.dtype == torch.float64
    assert packed.emitting.tolist() == [0, 2, 3, 4, 5]
    assert packed.frame.tolist() == [0, 0, 0, 1, 1]
    assert packed.pdf.tolist() == [5, 2, 0, 1, 1]
    # arcs of frame 0 forward, and the last of each utterance backward, and so on
    assert packed.sizes == (5, 6, 3)
    assert packed.order.tolist() == [0, 2, 3, 8, 13, 1, 4, 5, 7, 11, 12, 6, 9, 10]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_steps_into_a_state_come_before_those_out_of_it(lengths):
    packed = pack([chain(length, n) for n, length in enumerate(lengths)], CPU)
    arcs, states = len(packed.source), packed.num_states
    assert sorted(packed.order.tolist()) == list(range(2 * arcs))
    reached = {*packed.starts.tolist(), *(packed.ends + states).tolist()}
    for group in packed.order.split(packed.sizes):
        backward = group >= arcs
        arc = group % arcs
        source = torch.where(backward, packed.target[arc] + states, packed.source[arc])
        target = torch.where(backward, packed.source[arc] + states, packed.target[arc])
        assert set(source.tolist()) <= reached
        reached |= set(target.tolist())
    assert len(reached) == 2 * states
