import pytest
import torch

from toolkit.hmm.topology import Topology

PHONES = ("SIL", "SPN", "A", "B")


def test_pdfs_are_numbered_phone_by_phone():
    topology = Topology(PHONES, states=3, silence_states=2)
    numbered = [
        topology.pdf(p, s) for p in topology.phone_ids() for s in range(topology.num_states(p))
    ]
    assert numbered == list(range(topology.num_pdfs)) == list(range(10))
    assert topology.phone_of_pdf() == [1, 1, 2, 2, 3, 3, 3, 4, 4, 4]


def test_at_the_low_rate_one_frame_is_enough():
    topology = Topology(PHONES, states=3, silence_states=2)
    low = topology.at_low_rate()
    assert low.num_pdfs == 8
    assert (list(topology.loops(3)), list(topology.exits(3))) == ([0, 1, 2], [2])
    assert (list(low.loops(3)), list(low.exits(3))) == ([1], [0, 1])
    assert (topology.min_frames(3), low.min_frames(3)) == (3, 1)


def test_low_rate_targets_mark_onsets():
    topology = Topology(PHONES, states=3, silence_states=3)
    first = topology.pdf(3, 0)
    twice = [first, first + 1, first + 2, first + 2, first, first, first, first + 1, first + 2]
    pdfs = torch.tensor([0, 0, 1, 1, 2, *twice])
    assert topology.low_rate_targets(pdfs).tolist() == [0, 0, 0, 1, 1, 4, 4, 4, 5, 4, 4, 4, 5, 5]


@pytest.mark.parametrize("offset", range(3))
def test_every_phone_has_one_onset_at_every_offset(offset):
    topology = Topology(PHONES)
    generator = torch.Generator().manual_seed(offset)
    phones = torch.randint(1, 5, (40,), generator=generator).tolist()
    lengths = torch.randint(1, 4, (40, 3), generator=generator).tolist()
    pdfs = [
        topology.pdf(p, i)
        for p, n in zip(phones, lengths, strict=True)
        for i in range(3)
        for _ in range(n[i])
    ]
    low = topology.low_rate_targets(torch.tensor(pdfs))[offset::3]
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


def test_an_onset_needs_a_rest():
    with pytest.raises(ValueError, match="two states"):
        Topology(PHONES, states=1, silence_states=1, onset=True)
