import pytest
from hypothesis import given, settings

from tests.hmm.test_tree import TOPOLOGY, trees
from tests.kaldi.forms import ReadTree
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Tree
from toolkit.kaldi.tree import tree_text


@settings(max_examples=60, deadline=None)
@given(trees())
def test_every_state_has_its_pdf_in_every_context(tree):
    """Where there is no neighbour, that of silence."""
    found = ReadTree(tree_text(tree, TOPOLOGY))
    for phone in TOPOLOGY.phone_ids():
        for state in range(TOPOLOGY.num_states(phone)):
            number = TOPOLOGY.state_id(phone, state)
            for left in range(5):
                for right in range(5):
                    beside = left or TOPOLOGY.silence, right or TOPOLOGY.silence
                    expected = tree.pdf(beside[0], number, beside[1])
                    assert found.pdf(left, phone, right, state) == expected


@pytest.mark.parametrize("low_rate", [False, True])
def test_a_tree_without_questions(low_rate):
    topology = Topology(("SIL", "SPN", "A", "B"))
    topology = topology.at_low_rate() if low_rate else topology
    tree = Tree.monophone(topology)
    found = ReadTree(tree_text(tree, topology))
    for phone in topology.phone_ids():
        for state in range(topology.num_states(phone)):
            expected = tree.pdf(1, topology.state_id(phone, state), 1)
            assert found.pdf(0, phone, 3, state) == expected
