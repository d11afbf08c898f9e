import re

import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Split, Tree, TreeError
from toolkit.hmm.tree_drawing import dot, draw, roots_of

PHONES = ("SIL", "AH0", "AH1", "M", "N", "T")


def leaf_per_state(topology):
    """The tree in which no two states share a pdf."""
    states = [(p, s) for p in topology.phone_ids() for s in range(topology.num_states(p))]
    roots = [Root((p,), s, Leaf(pdf, 0)) for pdf, (p, s) in enumerate(states)]
    return Tree(topology.phones, tuple(roots))


@pytest.fixture
def tree():
    question = Split("centre", frozenset({2}), 20.0, 60, Leaf(2, 25), Leaf(1, 35))
    node = Split("left", frozenset({2, 3, 4, 5, 6}), 300.5, 100, Leaf(1, 40), question)
    later_roots = [Root((p,), 0, Leaf(p, 9)) for p in (4, 5, 6)]
    roots = (Root((1,), 0, Leaf(0, 50)), Root((2, 3), 0, node), *later_roots)
    return Tree(PHONES, (*roots[:2], Root((2, 3), 1, Leaf(3, 80)), *roots[2:]))


def show(*arguments):
    return CliRunner().invoke(cli.main, ["hmm", "show-tree", *map(str, arguments)])


def test_text_shows_questions_gains_frames_and_pdfs(tree):
    assert draw(tree, roots_of(tree, "AH")) == (
        "AH0 AH1, state 0: 100 frames, 2 pdfs\n"
        "left: not SIL? (gain 300.5)\n"
        "├─ yes, 40 frames: pdf 1\n"
        "└─ no, 60 frames: centre: AH0? (gain 20.0)\n"
        "   ├─ yes, 25 frames: pdf 2\n"
        "   └─ no, 35 frames: pdf 1\n"
        "AH0 AH1, state 1: 80 frames, 1 pdf\n"
        "pdf 3"
    )


def test_variants_of_a_phone_are_written_together_and_long_lists_cut():
    phones = ("SIL", *(f"{chr(65 + i)}{j}" for i in range(40) for j in (0, 1)))
    topology = Topology(phones, silence_phones=("SIL",), states=1, silence_states=1)
    monophone = leaf_per_state(topology)
    node = Split("right", frozenset(range(2, 42)), 1.0, 2, Leaf(1, 1), Leaf(1, 1))
    roots = (monophone.roots[0], Root((2,), 0, node), *monophone.roots[2:])
    tree = Tree(phones, roots)
    line = draw(tree, roots_of(tree, "A0")).split("\n")[1]
    names = " ".join(f"{chr(65 + i)}*" for i in range(16))
    assert line == f"right: {names} and 4 more? (gain 1.0)"


def test_roots_are_found_by_phone_base_phone_and_state(tree):
    assert roots_of(tree, "AH0") == roots_of(tree, "AH") == list(tree.roots[1:3])
    assert roots_of(tree, "AH1", 1) == [tree.roots[2]]
    with pytest.raises(TreeError, match="no state 2, only 0, 1"):
        roots_of(tree, "AH", 2)
    with pytest.raises(TreeError, match="no phone 'ah'; did you mean AH"):
        roots_of(tree, "ah")
    with pytest.raises(TreeError, match=r"no phone 'XYZ'; it has SIL AH M N T$"):
        roots_of(tree, "XYZ")


def test_dot_has_a_node_for_each_node_and_an_arrow_for_each_answer(tree):
    text = dot(tree, roots_of(tree, "AH", 0))
    assert text.startswith("digraph tree {\n")
    assert text.endswith("}\n")
    assert len(re.findall(r"shape=box", text)) == 3
    assert '"left: not SIL?\\ngain 300.5"' in text
    arrows = re.findall(r"(n\d+) -> (n\d+)(?: \[label=(\w+)\])?;", text)
    assert [label for *_, label in arrows].count("yes") == 2
    assert len({target for _, target, _ in arrows}) == len(arrows) == 5


def test_dot_escapes_symbols():
    topology = Topology(("SIL", '"', "\\"), silence_phones=("SIL",), states=1)
    tree = leaf_per_state(topology)
    assert 'label="\\", state 0"' in dot(tree, roots_of(tree, '"'))
    assert 'label="\\\\, state 0"' in dot(tree, roots_of(tree, "\\"))


def test_command_draws_a_model_or_its_tree(tree, tmp_path):
    tree.save(tmp_path / "tree.json")
    result = show(tmp_path, "--phone", "AH", "--state", 1)
    assert result.stdout == "AH0 AH1, state 1: 80 frames, 1 pdf\npdf 3\n"
    result = show(tmp_path / "tree.json", "--phone", "M", "--dot", tmp_path / "m.dot")
    assert result.stdout == "M, state 0: 9 frames, 1 pdf\npdf 4\n"
    assert (tmp_path / "m.dot").read_text() == dot(tree, roots_of(tree, "M"))


def test_command_names_what_is_wrong(tree, tmp_path):
    tree.save(tmp_path / "tree.json")
    result = show(tmp_path, "--phone", "AHH")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no phone 'AHH'; did you mean AH" in result.stderr
    result = show(tmp_path / "absent", "--phone", "AH")
    assert result.exit_code == 1
    assert "absent: not a tree" in result.stderr


def test_command_has_help_with_an_example():
    assert "Example:\n    toolkit hmm show-tree" in show("--help").stdout
