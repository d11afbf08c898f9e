import pytest

from toolkit.hmm.topology import Topology

PHONES = ("SIL", "SPN", "A", "B")


def test_pdfs_are_numbered_phone_by_phone():
    topology = Topology(PHONES, states=3, silence_states=2)
    numbered = [
        topology.pdf(p, s) for p in topology.phone_ids() for s in range(topology.num_states(p))
    ]
    assert numbered == list(range(topology.num_pdfs)) == list(range(10))
    assert topology.phone_of_pdf() == [1, 1, 2, 2, 3, 3, 3, 4, 4, 4]


def test_without_skips_a_phone_passes_through_all_its_states():
    topology = Topology(PHONES, states=3)
    assert list(topology.entries(3)) == [0]
    assert list(topology.exits(3)) == [2]
    assert list(topology.advances(3)) == [(0, 1), (1, 2)]
    assert topology.min_frames(3) == 3


def test_at_the_low_rate_one_frame_is_enough():
    topology = Topology(PHONES, states=3).at_low_rate()
    assert list(topology.entries(3)) == [0, 1, 2] == list(topology.exits(3))
    assert list(topology.advances(3)) == [(0, 1), (0, 2), (1, 2)]
    assert topology.min_frames(3) == 1
    assert topology.num_pdfs == 12


def test_file_round_trip(tmp_path):
    topology = Topology(PHONES, skips=True)
    topology.save(tmp_path / "topology.json")
    assert Topology.load(tmp_path / "topology.json") == topology


def test_silence_phones_must_exist():
    with pytest.raises(ValueError, match="NSN"):
        Topology(PHONES, silence_phones=("NSN",))
