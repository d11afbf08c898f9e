"""Phonetic trees in Kaldi's text form (`tree`)."""

from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import POSITIONS, Leaf, Node, Root, Tree

_NOBODY = 0
"""What Kaldi has beside the first and the last phone of an utterance."""


def tree_text(tree: Tree, topology: Topology) -> str:
    """The tree as `copy-tree --binary=false` prints it: triphones, a table of HMM states.

    A question about a neighbour that is true of silence is true of the edges of an utterance too,
    as in this toolkit's graphs.

    Args:
      tree: the tree.
      topology: its phones' states.
    """
    states: dict[int, list[Root]] = {}
    for root in tree.roots:
        states.setdefault(root.state, []).append(root)
    tables = "".join(_of_state(states[state], topology.silence) for state in sorted(states))
    return f"ContextDependency 3 1 ToPdf TE -1 {len(states)} ( {tables})\nEndContextDependency\n"


def _of_state(roots: list[Root], silence: int) -> str:
    """The trees of one HMM state: asks which phone it is, until one root is left."""
    *others, last = roots
    text = _node(last.node, silence)
    for root in reversed(others):
        text = _split("centre", root.phones, _node(root.node, silence), text)
    return text


def _node(node: Node, silence: int) -> str:
    if isinstance(node, Leaf):
        return f"CE {node.pdf} "
    phones = sorted(node.phones)
    if node.ask != "centre" and silence in node.phones:
        phones = [_NOBODY, *phones]
    return _split(node.ask, phones, _node(node.yes, silence), _node(node.no, silence))


def _split(ask: str, phones: list[int] | tuple[int, ...], yes: str, no: str) -> str:
    numbers = " ".join(map(str, phones))
    return f"SE {POSITIONS.index(ask)} [ {numbers} ]\n{{ {yes}{no}}} \n"
