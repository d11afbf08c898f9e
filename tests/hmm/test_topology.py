import pytest
import torch

from toolkit.hmm.topology import Topology

PHONES = ("SIL", "SPN", "A", "B")


def test_states_are_numbered_phone_by_phone():
    topology = Topology(PHONES, states=3, silence_states=2)
    numbered = [
        topology.state_id(p, s) for p in topology.phone_ids() for s in range(topology.num_states(p))
    ]
    assert numbered == list(range(topology.num_state_ids)) == list(range(10))
    assert topology.phone_of_state_id == [1, 1, 2, 2, 3, 3, 3, 4, 4, 4]


def test_at_the_low_rate_one_frame_is_enough():
    topology = Topology(PHONES, states=3, silence_states=2)
    low = topology.at_low_rate()
    assert low.num_state_ids == 8
    assert [list(topology.successors(3, s)) for s in range(3)] == [[0, 1], [1, 2], [2]]
    assert [list(low.successors(3, s)) for s in range(2)] == [[1], [1]]
    assert (list(topology.exit_states(3)), list(low.exit_states(3))) == ([2], [0, 1])
    assert (topology.min_frames(3), low.min_frames(3)) == (3, 1)


def test_silence_has_the_topology_of_kaldi():
    topology = Topology(PHONES)
    successors = [list(topology.successors(1, s)) for s in range(5)]
    assert successors == [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [4]]
    assert (list(topology.exit_states(1)), topology.min_frames(1)) == ([4], 3)
    wandering = torch.tensor([0, 0, 3, 1, 2, 2, 1, 4, 4])
    assert topology.phone_starts(wandering).tolist() == [True] + [False] * 8


def test_low_rate_targets_mark_onsets():
    topology = Topology(PHONES, states=3, silence_states=3)
    first = topology.state_id(3, 0)
    twice = [first, first + 1, first + 2, first + 2, first, first, first, first + 1, first + 2]
    states = torch.tensor([0, 0, 1, 1, 2, *twice])
    assert topology.low_rate_targets(states).tolist() == [0, 0, 0, 1, 1, 4, 4, 4, 5, 4, 4, 4, 5, 5]


@pytest.mark.parametrize("offset", range(3))
def test_every_phone_has_one_onset_at_every_offset(offset):
    topology = Topology(PHONES)
    generator = torch.Generator().manual_seed(offset)
    phones = torch.randint(1, 5, (40,), generator=generator).tolist()
    lengths = torch.randint(1, 4, (40, 3), generator=generator).tolist()
    states = [
        topology.state_id(p, i)
        for p, n in zip(phones, lengths, strict=True)
        for i in range(3)
        for _ in range(n[i])
    ]
    low = topology.low_rate_targets(torch.tensor(states))[offset::3]
    onsets = low[low % 2 == 0]
    assert (onsets // 2 + 1).tolist() == phones[: len(onsets)]
    assert len(onsets) >= 39  # the last phone may have fewer frames left than an offset skips


def test_file_round_trip(tmp_path):
    topology = Topology(PHONES).at_low_rate()
    topology.save(tmp_path / "topology.json")
    assert Topology.load(tmp_path / "topology.json") == topology


def test_silence_phones_must_exist():
    with pytest.raises(ValueError, match="NSN"):
        Topology(PHONES, silence_phones=("NSN",))


def test_a_topology_with_onsets_needs_two_states():
    with pytest.raises(ValueError, match="must be 2"):
        Topology(PHONES, states=1, silence_states=1, onset=True)


@pytest.mark.parametrize("silence_states", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("low_rate", [False, True])
def test_shortest_paths_have_as_many_frames_as_the_topology_says(silence_states, low_rate):
    topology = Topology(PHONES, silence_states=silence_states)
    topology = topology.at_low_rate() if low_rate else topology
    for phone in topology.phone_ids():
        reached, frames = {0}, 1
        while not reached & {*topology.exit_states(phone)}:
            reached = {t for s in reached for t in topology.successors(phone, s)}
            frames += 1
        assert frames == topology.min_frames(phone)
        everywhere = {0}
        for _ in range(topology.num_states(phone)):
            everywhere |= {t for s in everywhere for t in topology.successors(phone, s)}
        assert everywhere == {*range(topology.num_states(phone))}


def test_silence_is_the_first_silence_phone():
    assert Topology(PHONES).silence == 1
    assert Topology(PHONES, silence_phones=("SPN", "SIL")).silence == 2
