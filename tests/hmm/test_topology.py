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


def test_at_the_low_rate_a_phone_has_one_state():
    topology = Topology(PHONES, states=3, silence_states=2)
    low = topology.at_low_rate()
    assert low.num_pdfs == 4
    assert topology.low_rate_pdfs().tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [low.pdf(phone, 0) for phone in low.phone_ids()] == [0, 1, 2, 3]


def test_file_round_trip(tmp_path):
    topology = Topology(PHONES, states=2)
    topology.save(tmp_path / "topology.json")
    assert Topology.load(tmp_path / "topology.json") == topology


def test_silence_phones_must_exist():
    with pytest.raises(ValueError, match="NSN"):
        Topology(PHONES, silence_phones=("NSN",))
