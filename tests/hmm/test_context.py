import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.hmm.topology import Topology, phone_contexts

TOPOLOGY = Topology(("SIL", "SPN", "A", "B"))
SIL = 1


def path(topology, phones, lengths):
    """A path through phones; each state lasts the next number of frames of `lengths`."""
    lengths = itertools.cycle(lengths)
    return [
        topology.state_id(phone, state)
        for phone in phones
        for state in range(topology.num_states(phone))
        for _ in range(next(lengths))
    ]


@settings(deadline=None)
@given(
    phones=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=7),
)
def test_neighbours_are_those_of_the_phone_sequence(phones, lengths):
    states = path(TOPOLOGY, phones, lengths)
    left, right = phone_contexts(TOPOLOGY, torch.tensor(states))
    frames = itertools.cycle(lengths)
    around, expected = [SIL, *phones, SIL], []
    for i, phone in enumerate(phones):
        count = sum(next(frames) for _ in range(TOPOLOGY.num_states(phone)))
        expected += [(around[i], around[i + 2])] * count
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == expected


def test_several_states_of_a_pause_are_one_silence():
    a = TOPOLOGY.state_id(3, 0)
    pause = [0, 2, 1, 1, 3, 2, 4, 4]
    states = torch.tensor([a, a + 1, a + 2, *pause, a, a + 1, a + 2])
    left, right = phone_contexts(TOPOLOGY, states)
    assert left.tolist() == [SIL] * 3 + [3] * 8 + [SIL] * 3
    assert right.tolist() == [SIL] * 3 + [3] * 8 + [SIL] * 3


def test_edges_are_silence_even_next_to_silence():
    states = torch.tensor(path(TOPOLOGY, [1], [1]))
    assert [side.tolist() for side in phone_contexts(TOPOLOGY, states)] == [[SIL] * 5] * 2


def test_at_the_low_rate_each_onset_begins_a_phone():
    low = TOPOLOGY.at_low_rate()
    a = low.state_id(3, 0)
    left, right = phone_contexts(low, torch.tensor([a, a, a + 1, a + 1, a]))
    assert left.tolist() == [SIL, 3, 3, 3, 3]
    assert right.tolist() == [3, 3, 3, 3, SIL]


def test_silence_is_the_first_of_the_silence_phones():
    topology = Topology(("A", "NOISE", "PAUSE"), silence_phones=("PAUSE", "NOISE"))
    states = torch.tensor(path(topology, [1], [2]))
    assert phone_contexts(topology, states)[0].tolist() == [3] * 6
