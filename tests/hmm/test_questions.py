import dataclasses

import pytest
import torch

from toolkit.hmm.config import TreeConfig
from toolkit.hmm.phone_sets import PhoneSetError
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Split
from toolkit.hmm.tree_growing import (
    TreeStatistics,
    automatic_questions,
    distinct,
    grow_tree,
    read_extra_questions,
    read_questions,
)


def statistics(topology, *places):
    """Statistics of two frames around the given means of each phone in its states."""
    result = TreeStatistics(1)
    sides = torch.ones(2, dtype=torch.int64)
    for phone, symbol in enumerate(topology.phones, 1):
        for state in range(topology.num_states(phone)):
            place = places[0] if state < topology.num_states(phone) - 1 else places[-1]
            if symbol in place:
                ids = torch.full((2,), topology.state_id(phone, state))
                x = place[symbol] + torch.tensor([[-0.1], [0.1]])
                result.accumulate(sides, ids, sides, x)
    return result


def phone_name_sets(questions, topology):
    return {frozenset(topology.phones[p - 1] for p in phones) for phones in questions}


def test_phones_that_sound_alike_make_questions():
    topology = Topology(("SIL", "SPN", "A", "B", "C", "D", "E"))
    place = {"SIL": 1.0, "SPN": 1.1, "A": 0.0, "D": 0.2, "B": 5.0, "E": 5.3, "C": 9.0}
    questions = automatic_questions(statistics(topology, place), topology)
    singles = [{"SIL"}, {"SPN"}, {"A"}, {"B"}, {"C"}, {"D"}, {"E"}]
    sets = [{"SIL", "SPN"}, {"A", "D"}, {"B", "E"}, {"B", "E", "C"}]
    assert phone_name_sets(questions, topology) == {frozenset(s) for s in singles + sets}
    assert len(questions) == 11


def test_first_and_last_states_are_clustered_apart():
    topology = Topology(("SIL", "A", "B", "C", "D"), silence_phones=("SIL",))
    first = {"SIL": 0.0, "A": 1.0, "B": 1.1, "C": 5.0, "D": 5.5}
    last = {"SIL": 0.0, "A": 1.0, "B": 5.0, "C": 1.1, "D": 5.5}
    question_sets = phone_name_sets(
        automatic_questions(statistics(topology, first, last), topology), topology
    )
    pairs = [{"A", "B"}, {"C", "D"}, {"A", "C"}, {"B", "D"}]
    assert {s for s in question_sets if len(s) == 2} == {frozenset(s) for s in pairs}


def test_marks_of_stress_and_position_make_questions():
    symbols = ("SIL", "A0_B", "A1_B", "A0_E", "T_B", "T_E", "K_S")
    topology = Topology(symbols, silence_phones=("SIL",))
    place = {"SIL": 0.0, "A0_B": 1.0, "A1_B": 1.5, "A0_E": 1.0, "T_B": 4.0, "T_E": 4.0, "K_S": 4.5}
    question_sets = phone_name_sets(
        automatic_questions(statistics(topology, place), topology), topology
    )
    expected = [
        {"SIL"},
        {"A0_B", "A1_B", "T_B"},
        {"A0_E", "T_E"},
        {"K_S"},
        {"A0_B", "A0_E"},
        {"A1_B"},
        {"A0_B", "A1_B", "A0_E"},
        {"T_B", "T_E"},
        {"T_B", "T_E", "K_S"},
    ]
    assert question_sets == {frozenset(s) for s in expected}


def test_an_unseen_phone_is_in_no_cluster():
    topology = Topology(("SIL", "A", "B", "C"), silence_phones=("SIL",))
    place = {"SIL": 0.0, "A": 1.0, "B": 2.0}
    question_sets = phone_name_sets(
        automatic_questions(statistics(topology, place), topology), topology
    )
    assert frozenset({"A", "B"}) in question_sets
    assert not any(len(s) > 1 and "C" in s for s in question_sets)


def test_without_any_frames_there_are_still_questions():
    topology = Topology(("SIL", "A", "B"), silence_phones=("SIL",))
    assert len(automatic_questions(TreeStatistics(1), topology)) == 3


def test_sets_that_ask_the_same_are_dropped():
    sets = [[1], [2, 3, 4], [], [1, 2, 3, 4], [2, 1], [1, 2], [4, 3], [1]]
    assert distinct(sets, 4) == (frozenset({1}), frozenset({1, 2}))


def test_questions_file(tmp_path):
    topology = Topology(("SIL", "SPN", "A", "B", "C"))
    path = tmp_path / "questions.txt"
    path.write_text("SIL SPN\n\nB A\nC\n")
    assert [sorted(s) for s in read_questions(path, topology)] == [[1, 2], [3, 4], [5]]
    path.write_text("SIL SPN\nA AB\n")
    with pytest.raises(PhoneSetError, match=r"questions.txt:2: no phone 'AB'; did you mean"):
        read_questions(path, topology)


def test_extra_questions_are_about_phones_in_all_positions(tmp_path):
    topology = Topology(("SIL", "A1_B", "A1_E", "A2_B", "T_B"), silence_phones=("SIL",))
    path = tmp_path / "extra_questions.txt"
    path.write_text("sil SPN\nA1 T gone\nA2_B\n\n")
    questions = read_extra_questions(path, topology)
    names = [{topology.phones[p - 1] for p in phones} for phones in questions]
    assert names == [set(), {"A1_B", "A1_E", "T_B"}, {"A2_B"}, set()]


def asked_phone_sets(tree):
    """The sets of phones that the splits of a tree ask about."""
    waiting, sets = [root.node for root in tree.roots], []
    while waiting:
        node = waiting.pop()
        if isinstance(node, Split):
            sets.append(node.phones)
            waiting += [node.yes, node.no]
    return sets


def test_extra_questions_are_asked_besides_those_from_the_data(tmp_path):
    """Two phones sound different and have the same effect on their neighbour."""
    topology = Topology(("SIL", "A", "B", "C", "D"), silence_phones=("SIL",))
    counts = TreeStatistics(1)
    sounds = dict(zip(topology.phones, (0.0, 1.0, 40.0, 2.0, 41.0), strict=True))
    for left, effect in {"A": 0.0, "B": 0.0, "C": 9.0, "D": 9.0}.items():
        for phone in ("A", "B", "C", "D"):
            states = [topology.state_id(topology.phones.index(phone) + 1, s) for s in range(3)]
            ids = torch.tensor(states).repeat_interleave(20)
            side = torch.full((60,), topology.phones.index(left) + 1)
            noise = torch.linspace(-0.1, 0.1, 60)[:, None]
            counts.accumulate(side, ids, side, sounds[phone] + effect + noise)
    path = tmp_path / "extra_questions.txt"
    path.write_text("A B\n")
    config = TreeConfig(max_leaves=25, min_gain=1.0, min_frames=5, cluster_threshold=0)
    tree = grow_tree(counts, topology, config)
    tree_with_extra = grow_tree(counts, topology, dataclasses.replace(config, extra_questions=path))
    assert {2, 3} not in asked_phone_sets(tree)
    assert {2, 3} in asked_phone_sets(tree_with_extra)
