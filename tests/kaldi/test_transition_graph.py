import pytest

from tests.fsa.transducers import agree, silent, transductions
from toolkit.fsa.fst import fst_from_arcs
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Split, Tree
from toolkit.kaldi.topology import transitions_of
from toolkit.kaldi.transition_graph import with_transition_ids
from toolkit.kaldi.transitions import Transitions

PHONES = ("SIL", "A", "B")
# Any words, by a unigram; words are 1 to 3, of two phones, one or two, and one.
GRAMMAR = fst_from_arcs([(0, 0, word, word, -word / 2) for word in (1, 2, 3)], {0: -1.0})
TOPOLOGIES = {
    "two states": Topology(PHONES, ("SIL",), states=2, silence_states=1),
    "one state": Topology(PHONES, ("SIL",), states=1, silence_states=1),
    "Kaldi's": Topology(PHONES, ("SIL",), states=2, silence_states=5),
    "onset": Topology(PHONES, ("SIL",)).at_low_rate(),
}


def senones(topology):
    """Pdfs that depend on the neighbours, some of them those of both A and B."""
    roots, pdf = [], 0
    for state in range(topology.num_states(1)):
        roots.append(Root((1,), state, Leaf(pdf, 0)))
        pdf += 1
    for state in range(topology.num_states(2)):
        no = Split("centre", frozenset({3}), 1.0, 1, Leaf(pdf + 1, 0), Leaf(pdf + 2, 0))
        yes = Split("right", frozenset({2}), 1.0, 1, Leaf(pdf, 0), Leaf(pdf + 1, 0))
        roots.append(Root((2, 3), state, Split("left", frozenset({1, 3}), 1.0, 1, yes, no)))
        pdf += 3
    return Senones(topology, Tree(PHONES, tuple(roots)))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_transition_ids_are_walks_through_hmms_with_the_pdfs_and_words_of_the_graph(toy, name):
    hmms = senones(TOPOLOGIES[name])
    transitions = Transitions(hmms)
    own = toy.decoding_graph(hmms, GRAMMAR)
    graph = with_transition_ids(toy.decoding_graph(transitions.states, GRAMMAR), transitions)
    length = 6 if name == "Kaldi's" else 5
    expected = transductions(own, length + 1)
    found = silent(transductions(graph, length + 2), 0)  # the first arc reads nothing
    assert expected
    best = {}
    for (read, wrote), score in found.items():
        key = tuple(1 + int(transitions.pdf_of_id[id - 1]) for id in read), wrote
        best[key] = max(best.get(key, score), score)
        assert is_walk(read, transitions)
    agree(best, expected)


def is_walk(read, transitions):
    """Whether each transition leads to the state that the next one leaves."""
    topology, reached = transitions.senones.topology, 0
    row = {}
    for state, (first, last) in enumerate(
        zip(transitions.first, transitions.first[1:], strict=False)
    ):
        row |= {number: (state, number - first) for number in range(first, last)}
    phone = None
    for number in read:
        state, position = row[number]
        if transitions.state[state] != reached or phone not in (None, transitions.phone[state]):
            return False
        targets = transitions_of(topology, int(transitions.phone[state]), int(reached))
        reached, phone = targets[position], transitions.phone[state]
        if reached == topology.num_states(int(phone)):
            reached, phone = 0, None
    return phone is None
