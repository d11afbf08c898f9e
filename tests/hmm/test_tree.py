import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Split, Tree, TreeError, leaves

PHONES = ("SIL", "A0", "A1", "ʃ")
TOPOLOGY = Topology(PHONES, silence_phones=("SIL",), states=2, silence_states=1)


def leaf_per_state(topology):
    """The tree in which no two states share a pdf."""
    states = [(p, s) for p in topology.phone_ids() for s in range(topology.num_states(p))]
    roots = [Root((p,), s, Leaf(pdf, 0)) for pdf, (p, s) in enumerate(states)]
    return Tree(topology.phones, tuple(roots))


@st.composite
def trees(draw):
    """A random tree of TOPOLOGY with ordered pdfs; some leaves are clustered."""
    used = 0

    def node(depth, first):
        nonlocal used
        if depth == 0 or draw(st.booleans()):
            pdf = draw(st.integers(first, used)) if first < used else used
            used = max(used, pdf + 1)
            return Leaf(pdf, draw(st.integers(0, 99)))
        phones = draw(st.frozensets(st.integers(1, 4), min_size=1, max_size=3))
        ask = draw(st.sampled_from(["left", "centre", "right"]))
        gain = draw(st.floats(0, 1e6)).__round__(1)
        return Split(ask, phones, gain, 7, node(depth - 1, first), node(depth - 1, first))

    places = [((1,), 0), ((2, 3), 0), ((2, 3), 1), ((4,), 0), ((4,), 1)]
    return Tree(PHONES, tuple(Root(phones, s, node(3, used)) for phones, s in places))


@settings(max_examples=40)
@given(trees())
def test_the_table_equals_single_pdf_lookups(tree):
    table = tree.table()
    assert table.dtype == torch.int32
    expected = [[[tree.pdf(a, s, b) for b in range(5)] for a in range(5)] for s in range(7)]
    assert table.tolist() == expected


@settings(max_examples=40)
@given(trees())
def test_file_round_trip(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "tree.json"
    tree.save(path)
    assert Tree.load(path) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    json.loads(path.read_text(encoding="utf-8"))


def test_answers_lead_to_pdfs():
    node = Split(
        "left",
        frozenset({1, 4}),
        1.5,
        9,
        Leaf(1, 4),
        Split("centre", frozenset({3}), 1.0, 5, Leaf(2, 2), Leaf(1, 3)),
    )
    later_roots = [Root((2, 3), 1, Leaf(3, 1)), *(Root((4,), s, Leaf(4 + s, 1)) for s in (0, 1))]
    tree = Tree(PHONES, (Root((1,), 0, Leaf(0, 1)), Root((2, 3), 0, node), *later_roots))
    assert tree.num_pdfs == 6
    first, second = TOPOLOGY.state_id(2, 0), TOPOLOGY.state_id(3, 0)
    assert [tree.pdf(left, first, 1) for left in range(5)] == [1, 1, 1, 1, 1]
    assert [tree.pdf(left, second, 1) for left in range(5)] == [2, 1, 2, 2, 1]
    assert tree.pdf(2, TOPOLOGY.state_id(3, 1), 2) == 3


@pytest.mark.parametrize("topology", [Topology(("SIL", "SPN", "A")), Topology(("SIL", "SPN"))])
def test_monophones_have_a_pdf_for_each_state(topology):
    tree = Tree.monophone(topology)
    states = torch.arange(topology.num_state_ids)
    assert tree.num_pdfs == topology.num_state_ids
    assert torch.equal(tree.table(), states[:, None, None].int().expand_as(tree.table()))


def test_monophones_share_the_pdfs_of_variants():
    topology = Topology(("SIL", "AH0_B", "T_E", "AH1_I"), ("SIL",), states=2, silence_states=1)
    tree = Tree.monophone(topology)
    assert [tree.pdf(1, state, 1) for state in range(7)] == [0, 1, 2, 3, 4, 1, 2]


def text_of(tmp_path):
    leaf_per_state(TOPOLOGY).save(tmp_path / "whole.json")
    return (tmp_path / "whole.json").read_text(encoding="utf-8")


def test_file_shows_phones_by_symbol_and_a_line_for_each_node(tmp_path):
    text = text_of(tmp_path)
    assert '"phones": "SIL A0 A1 ʃ"' in text
    assert '  {"phones": "A1", "state": 1, "tree":\n   {"pdf": 4, "frames": 0}},\n' in text


@pytest.mark.parametrize(
    ("original", "replacement", "message"),
    [
        ('"roots": [', '"roots": [,', "line 3: not JSON"),
        ('"roots": [', '"root": [', "the file: 'roots' is missing"),
        ('"SIL A0 A1 ʃ"', '"SIL A0 A1 A1"', "a phone is listed twice"),
        ('"SIL A0 A1 ʃ"', '"SIL A0 A1 ʃ T"', "no root for T"),
        ('"phones": "A1", "state": 1', '"phones": "A2", "state": 1', "root 5: no phone 'A2'"),
        ('"phones": "A1", "state": 1', '"phones": "", "state": 1', "root 5: no phones"),
        ('"phones": "A1", "state": 1', '"phones": "A1", "state": 2', "phone A1 needs exactly one"),
        ('"phones": "A1", "state": 1', '"phones": "A1", "state": 0', "phone A1 needs exactly one"),
        ('"pdf": 4, "frames": 0', '"pdf": 4', "root 5 .A1, state 1.: 'frames' is missing"),
        ('"pdf": 4,', '"pdf": "4",', "root 5 .A1, state 1.: 'pdf' is of the wrong type"),
        ('"pdf": 4,', '"pdf": true,', "'pdf' is of the wrong type"),
        ('"pdf": 4,', '"pdf": 9,', "pdfs are not numbered 0 to 6"),
        ('"pdf": 4,', '"pdf": 3,', "pdf 3 belongs to two roots"),
        ('{"pdf": 4, "frames": 0}', "[]", "root 5 .A1, state 1.: 'tree' is of the wrong type"),
        (
            '{"pdf": 4, "frames": 0}',
            '{"ask": "up", "phones": "A1", "gain": 1, "frames": 1, "yes": {}, "no": {}}',
            "root 5 .A1, state 1.: asks about 'up'",
        ),
        (
            '{"pdf": 4, "frames": 0}',
            '{"ask": "left", "phones": "A1", "gain": 1, "frames": 1, "yes": {}, "no": {}}',
            "root 5 .A1, state 1., yes: 'ask' is missing",
        ),
    ],
)
def test_faults_in_a_file_are_located(tmp_path, original, replacement, message):
    text = text_of(tmp_path)
    assert original in text
    path = tmp_path / "tree.json"
    path.write_text(text.replace(original, replacement), encoding="utf-8")
    with pytest.raises(TreeError, match=message) as caught:
        Tree.load(path)
    assert str(path) in str(caught.value)


def test_leaves_come_in_the_order_of_the_answers():
    node = Split("left", frozenset({1}), 0.0, 2, Leaf(1, 1), Leaf(0, 1))
    assert [leaf.pdf for leaf in leaves(node)] == [1, 0]
