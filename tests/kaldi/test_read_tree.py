import pytest
from hypothesis import HealthCheck, given, settings

from tests.hmm.test_tree import PHONES, TOPOLOGY, trees
from tests.interop.kaldi_worker import binary_tree
from toolkit.hmm.tree import Tree
from toolkit.kaldi.model import KaldiModelError
from toolkit.kaldi.read_tree import read_tree
from toolkit.kaldi.tree import tree_text

SAME = {phone: phone for phone in TOPOLOGY.phone_ids()}


def pdfs(tree):
    """The pdfs of all states between all phones."""
    return tree.table()[:, 1:, 1:].tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees())
def test_what_was_written_is_read_in_both_forms(tmp_path, tree):
    text = tree_text(tree, TOPOLOGY)
    for content in (text.encode(), b"\0B" + binary_tree(text)):
        (tmp_path / "tree").write_bytes(content)
        assert pdfs(read_tree(tmp_path / "tree", TOPOLOGY, SAME)) == pdfs(tree)


def written(tmp_path, text):
    (tmp_path / "tree").write_text(f"ContextDependency 3 1 ToPdf {text} EndContextDependency\n")
    return tmp_path / "tree"


# Of SIL with a state, and of A0, A1 and ʃ with two; Kaldi's ids are 3, 5, 6 and 7.
KALDI = {3: 1, 5: 2, 6: 3, 7: 4}
OTHERS = "TE -1 2 ( CE 5 CE 6 )"


def test_a_table_of_phones_as_build_tree_makes_it(tmp_path):
    """A0 and A1 share the trees of their states, which ask about the right and the middle."""
    shared = (
        "SE -1 [ 0 ] { SE 2 [ 0 3 5 ] { CE 1 SE 1 [ 5 ] { CE 2 CE 3 } } SE 0 [ 7 ] { CE 4 CE 0 } }"
    )
    table = f"TE 1 8 ( NULL NULL NULL CE 7 NULL {shared} {shared} {OTHERS} )"
    tree = read_tree(written(tmp_path, table), TOPOLOGY, KALDI)
    first, second = TOPOLOGY.state_id(2, 0), TOPOLOGY.state_id(3, 0)
    assert [tree.pdf(1, first, right) for right in (1, 2, 3, 4)] == [1, 1, 2, 2]
    assert [tree.pdf(1, second, right) for right in (1, 2, 3, 4)] == [1, 1, 3, 3]
    assert [tree.pdf(left, first + 1, 1) for left in (1, 2, 3, 4)] == [0, 0, 0, 4]
    assert [tree.pdf(1, TOPOLOGY.state_id(4, state), 1) for state in (0, 1)] == [5, 6]
    assert [root.phones for root in tree.roots] == [(1,), (2, 3), (2, 3), (4,), (4,)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("TE 1 5 ( NULL CE 0 CE 1 CE 1 CE 2 )", "pdf 1 belongs to the states 0 and 1"),
        ("TE 1 2 ( NULL CE 0 )", "no pdf for state 0 of the phone 2"),
        ("XE 1", "'XE' in the place of CE or TE or SE or NULL"),
        ("SE 0 [ 1 ", "EndContextDependency"),
        ("CE x", "invalid literal"),
        ("SE 0 [ 1 ] { " * 5000, "nested too deeply"),
    ],
)
def test_other_trees_are_refused(tmp_path, text, reason):
    path = written(tmp_path, text)
    with pytest.raises(KaldiModelError, match=reason) as error:
        read_tree(path, TOPOLOGY, SAME)
    assert str(path) in str(error.value)


def test_wider_contexts_are_refused(tmp_path):
    path = written(tmp_path, "CE 0")
    path.write_text(path.read_text().replace("3 1 ToPdf", "5 2 ToPdf"))
    with pytest.raises(KaldiModelError, match="contexts of 5 phones"):
        read_tree(path, TOPOLOGY, SAME)


def test_a_tree_of_monophones(tmp_path):
    text = "TE 0 5 ( NULL CE 0 TE -1 2 ( CE 1 CE 2 ) TE -1 2 ( CE 3 CE 4 ) TE -1 2 ( CE 5 CE 6 ) )"
    path = written(tmp_path, text)
    path.write_text(path.read_text().replace("3 1 ToPdf", "1 0 ToPdf"))
    tree = read_tree(path, TOPOLOGY, SAME)
    assert isinstance(tree, Tree)
    assert tree.phones == PHONES
    assert [tree.pdf(1, state, 1) for state in range(7)] == list(range(7))
