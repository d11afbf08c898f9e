import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Split, Tree

PHONES = ("SIL", "SPN", "A", "B", "C")
PLAIN = Topology(PHONES, states=2, silence_states=3)
TOPOLOGIES = (PLAIN, PLAIN.at_low_rate(), Topology(PHONES))


@st.composite
def trees(draw, topology):
    """Random trees: B and C share roots, leaves are sometimes clustered."""
    pdfs = itertools.count()

    def grow(ask, depth):
        if depth == 0 or draw(st.booleans()):
            return Leaf(next(pdfs), 0)
        phones = draw(st.frozensets(st.integers(1, 5), min_size=1, max_size=4))
        yes, no = grow(ask, depth - 1), grow(ask, depth - 1)
        return Split(draw(st.sampled_from(ask)), phones, 1.0, 0, yes, no)

    roots = []
    for phones in ((1,), (2,), (3,), (4, 5)):
        ask = ("left", "right") if len(phones) == 1 else ("left", "centre", "right")
        for state in range(topology.num_states(phones[0])):
            roots.append(Root(phones, state, grow(ask, 0 if phones[0] < 3 else 3)))
    return Tree(PHONES, tuple(roots))


@st.composite
def senones(draw):
    topology = draw(st.sampled_from(TOPOLOGIES))
    return Senones(topology, draw(trees(topology)))


@settings(deadline=None, max_examples=30)
@given(senones())
def test_the_table_equals_the_answers_of_the_tree(hmms):
    contexts = list(itertools.product(range(hmms.topology.num_state_ids), (1, 3, 5), (1, 2, 4)))
    for state, left, right in contexts:
        assert int(hmms.table[state, left, right]) == hmms.tree.pdf(left, state, right)


@settings(deadline=None, max_examples=30)
@given(senones(), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_pdfs_of_a_path_are_those_of_its_phones_in_context(hmms, phones):
    topology, around = hmms.topology, [1, *phones, 1]
    states, expected = [], []
    for i, phone in enumerate(phones):
        for state in range(topology.num_states(phone)):
            states.append(topology.state_id(phone, state))
            expected.append(hmms.tree.pdf(around[i], states[-1], around[i + 2]))
    assert hmms.pdfs(torch.tensor(states)).tolist() == expected


@settings(deadline=None, max_examples=30)
@given(senones())
def test_each_pdf_has_its_state_position_and_a_phone(hmms):
    owner = hmms.topology.phone_of_state_id
    for state_id, phone in enumerate(owner):
        place = state_id - hmms.topology.state_id(phone, 0)
        for pdf in hmms.table[state_id].unique().tolist():
            assert int(hmms.state_of_pdf[pdf]) == place
            sharing = {owner[s] for s in range(len(owner)) if bool((hmms.table[s] == pdf).any())}
            assert int(hmms.phone_of_pdf[pdf]) == min(sharing)


@settings(deadline=None, max_examples=30)
@given(senones())
def test_context_units_hold_the_pdfs_of_the_table(hmms):
    """Each phone in each context has a unit with its pdfs that allows that right phone."""
    units, topology, unit_ids = hmms.context_units, hmms.topology, set()
    for left, phone, right in itertools.product(range(1, 6), repeat=3):
        unit = int(units.index[left, phone, right])
        unit_ids.add(unit)
        assert units.phone[unit] == phone
        assert units.right[unit, right]
        states = topology.num_states(phone)
        pdfs = [int(hmms.table[topology.state_id(phone, s), left, right]) for s in range(states)]
        assert units.pdfs[unit].tolist() == pdfs + [-1] * (units.pdfs.shape[1] - states)
    assert unit_ids == set(range(len(units.phone)))  # and none besides


@settings(deadline=None, max_examples=30)
@given(senones())
def test_units_of_a_phone_partition_the_right_neighbours(hmms):
    """After one left phone, each right phone belongs to exactly one unit of a phone."""
    units = hmms.context_units
    for left, phone in itertools.product(range(1, 6), repeat=2):
        units_of_phone = set(units.index[left, phone, 1:].tolist())
        shared = sum(units.right[unit, 1:].astype(int) for unit in units_of_phone)
        assert shared.tolist() == [1] * 5


def test_monophones_have_a_pdf_for_every_state():
    hmms = Senones.monophone(PLAIN)
    states = torch.arange(PLAIN.num_state_ids)
    assert hmms.num_pdfs == PLAIN.num_state_ids
    assert hmms.pdfs(states).tolist() == states.tolist()
    assert hmms.phone_of_pdf.tolist() == PLAIN.phone_of_state_id
    assert len(hmms.context_units.phone) == len(PHONES)
    assert hmms.pdfs(states[:0]).tolist() == []


@settings(deadline=None, max_examples=30)
@given(senones())
def test_a_pickle_has_no_tables_and_a_process_builds_them_once(hmms):
    fresh = len(pickle.dumps(Senones(hmms.topology, Tree(hmms.tree.phones, hmms.tree.roots))))
    hmms.table, hmms.context_units  # noqa: B018 - made when first used
    pickled = pickle.dumps(hmms)
    assert len(pickled) < fresh + 1500
    first_copy, second_copy = pickle.loads(pickled), pickle.loads(pickled)
    assert torch.equal(first_copy.table, hmms.table)
    assert second_copy is first_copy  # as each item of work brings the senones along


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_files_round_trip(topology, tmp_path):
    senones = Senones.monophone(topology)
    senones.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"topology.json", "tree.json"}
    loaded = Senones.load(tmp_path)
    assert loaded.topology == topology
    assert loaded.tree == senones.tree
