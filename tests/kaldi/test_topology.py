import pytest

from tests.kaldi.forms import read_topology
from toolkit.hmm.topology import Topology
from toolkit.kaldi.topology import topology_text

PLAIN = Topology(("SIL", "SPN", "A", "B"))


def test_silence_and_speech_have_kaldis_topologies():
    found = read_topology(topology_text(PLAIN))
    speech = [[(0, 0.5), (1, 0.5)], [(1, 0.5), (2, 0.5)], [(2, 0.5), (3, 0.5)], []]
    assert found[3] == found[4] == speech
    within = [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]
    silence = [[(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)], within, within, within]
    assert found[1] == found[2] == [*silence, [(4, 0.5), (5, 0.5)], []]


@pytest.mark.parametrize(
    "topology",
    [PLAIN, PLAIN.at_low_rate(), Topology(("SIL", "A"), ("SIL",), 1, 1), Topology(("A",), ())],
)
def test_transitions_are_those_of_the_topology(topology):
    found = read_topology(topology_text(topology))
    assert sorted(found) == list(topology.phone_ids())
    for phone, rows in found.items():
        states = topology.num_states(phone)
        assert len(rows) == states + 1
        for state, arcs in enumerate(rows[:-1]):
            targets = {target for target, _ in arcs}
            assert targets - {states} == set(topology.successors(phone, state))
            assert (states in targets) == (state in topology.exit_states(phone))
            assert sum(share for _, share in arcs) == pytest.approx(1, abs=1e-5)
