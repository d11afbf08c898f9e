import math

import numpy as np
import pytest
from hypothesis import given, settings

from tests.hmm.test_tree import TOPOLOGY, trees
from tests.kaldi.forms import read_transitions
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kaldi.topology import transitions_of
from toolkit.kaldi.transitions import Transitions


@settings(max_examples=60, deadline=None)
@given(trees())
def test_the_text_has_every_state_with_every_pdf_and_numbers_its_transitions(tree):
    senones = Senones(TOPOLOGY, tree)
    transitions = Transitions(senones)
    topology, triples, scores = read_transitions(transitions.text())
    assert triples == sorted(set(triples))
    needed = {
        (phone, state, tree.pdf(left, TOPOLOGY.state_id(phone, state), right))
        for phone in TOPOLOGY.phone_ids()
        for state in range(TOPOLOGY.num_states(phone))
        for left in TOPOLOGY.phone_ids()
        for right in TOPOLOGY.phone_ids()
    }
    assert needed <= {*triples}
    numbered = [
        (row, target, pdf)
        for row, (phone, state, pdf) in enumerate(triples, 1)
        for target, _ in topology[phone][state]
    ]
    assert transitions.pdf_of_id.tolist() == [pdf for *_, pdf in numbered]
    assert len(scores) == len(numbered)
    for number, (row, target, _) in enumerate(numbered, 1):
        phone, state, _ = triples[row - 1]
        counted = len(transitions_of(TOPOLOGY, phone, state))
        assert scores[number - 1] == pytest.approx(-math.log(counted), abs=1e-5)
        ends = target == TOPOLOGY.num_states(phone)
        found = transitions.ids(np.array([row]), np.array([-1 if ends else target]))
        assert found.tolist() == [number]


@settings(max_examples=60, deadline=None)
@given(trees())
def test_transition_states_stand_for_pdfs(tree):
    senones = Senones(TOPOLOGY, tree)
    transitions = Transitions(senones)
    states = transitions.states
    real = slice(1, None)
    found = states.table[:, real, real].numpy()
    assert (transitions.pdf[found] == senones.table[:, real, real].numpy()).all()
    rows = np.arange(len(found))[:, None, None]
    phones = np.array(TOPOLOGY.phone_of_state_id)[rows]
    assert (transitions.phone[found] == phones).all()
    assert found.max() < states.num_pdfs
    ours, theirs = senones.context_units, states.context_units
    np.testing.assert_array_equal(ours.index, theirs.index)
    np.testing.assert_array_equal(ours.right, theirs.right)


def test_a_transition_that_the_hmm_lacks_leads_out_of_the_phone():
    transitions = Transitions(Senones.monophone(Topology(("SIL", "A"), ("SIL",)).at_low_rate()))
    onset, rest = np.array([3]), np.array([4])  # of A
    assert (transitions.phone[2], transitions.state[2]) == (2, 0)
    out = transitions.ids(onset, np.array([-1]))
    assert transitions.ids(onset, np.array([0])) == out
    assert transitions.ids(onset, np.array([1])) == out - 1
    assert transitions.ids(rest, np.array([0])) == transitions.ids(rest, np.array([-1]))
