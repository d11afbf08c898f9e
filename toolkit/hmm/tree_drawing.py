"""Draws a phone's trees as text or for Graphviz."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import count

from toolkit.hmm.phone_sets import split_phone
from toolkit.hmm.tree import Leaf, Node, Root, Tree, TreeError, leaves

MAX_NAMES = 16
"""Largest number of phones listed in a question; the others are only counted."""


def roots_of(tree: Tree, phone: str, state: int | None = None) -> list[Root]:
    """Return the roots of a phone, or of all variants of a base phone (AH for AH0, AH1, AH2).

    Args:
      tree: the tree to search.
      phone: a phone symbol or a base phone.
      state: an HMM state counted from 0, or None for all of them.

    Raises:
      TreeError: there is no such phone or state; names similar phones, or the states.
    """
    bases = [split_phone(symbol).base for symbol in tree.phones]
    exact = phone in tree.phones
    names = tree.phones if exact else bases
    phones = {p for p, name in enumerate(names, 1) if name == phone}
    if not phones:
        all_names = list(dict.fromkeys([*bases, *tree.phones]))
        upper = {name.upper(): name for name in reversed(all_names)}
        near = [upper[match] for match in get_close_matches(phone.upper(), upper, n=4)]
        everything = f"it has {' '.join(dict.fromkeys(bases))}"
        hint = f"did you mean {' or '.join(near)}?" if near else everything
        raise TreeError(f"the tree has no phone {phone!r}; {hint}")
    roots = [root for root in tree.roots if phones & set(root.phones)]
    if state is None:
        return roots
    states = sorted({root.state for root in roots})
    if state not in states:
        raise TreeError(f"{phone} has no state {state}, only {', '.join(map(str, states))}")
    return [root for root in roots if root.state == state]


def draw(tree: Tree, roots: Iterable[Root]) -> str:
    """Draw roots as text: questions with gains, frames per branch, pdfs at the leaves."""
    return "\n".join(line for root in roots for line in _drawn_root(tree, root))


def dot(tree: Tree, roots: Iterable[Root]) -> str:
    """Draw roots in Graphviz's dot language."""
    lines = ["digraph tree {", ' node [shape=ellipse, fontname="sans-serif"];']
    number = count()

    def add(node: Node) -> str:
        name = f"n{next(number)}"
        if isinstance(node, Leaf):
            label = f"pdf {node.pdf}\n{node.frames} frames"
            lines.append(f" {name} [shape=box, label={_quoted(label)}];")
            return name
        label = f"{_question(tree, node.ask, node.phones)}\ngain {node.gain}"
        lines.append(f" {name} [label={_quoted(label)}];")
        lines.append(f" {name} -> {add(node.yes)} [label=yes];")
        lines.append(f" {name} -> {add(node.no)} [label=no];")
        return name

    for root in roots:
        name = f"n{next(number)}"
        lines.append(f" {name} [shape=plaintext, label={_quoted(_title(tree, root))}];")
        lines.append(f" {name} -> {add(root.node)};")
    return "\n".join([*lines, "}"]) + "\n"


def _drawn_root(tree: Tree, root: Root) -> Iterator[str]:
    """Yield the lines that draw a root."""
    below = list(leaves(root.node))
    pdfs = len({leaf.pdf for leaf in below})
    frames = sum(leaf.frames for leaf in below)
    yield f"{_title(tree, root)}: {frames} frames, {pdfs} pdf{'s' if pdfs > 1 else ''}"
    yield from _drawn(tree, root.node, "", "")


def _drawn(tree: Tree, node: Node, start: str, indent: str) -> Iterator[str]:
    """Yield the lines that draw a node and the nodes below it."""
    if isinstance(node, Leaf):
        yield f"{start}pdf {node.pdf}"
        return
    yield f"{start}{_question(tree, node.ask, node.phones)} (gain {node.gain})"
    for branch, answer, tick, bar in ((node.yes, "yes", "├─", "│  "), (node.no, "no", "└─", "   ")):
        label = f"{indent}{tick} {answer}, {branch.frames} frames: "
        yield from _drawn(tree, branch, label, indent + bar)


def _title(tree: Tree, root: Root) -> str:
    """Return the title of a root: its phones and state."""
    return f"{' '.join(_names(tree, root.phones))}, state {root.state}"


def _question(tree: Tree, ask: str, phones: frozenset[int]) -> str:
    """Return a question in short form: its phones or their complement, AH* for all variants."""
    complement = frozenset(range(1, len(tree.phones) + 1)) - phones
    yes, no = _shortest(tree, phones), _shortest(tree, complement)
    names, negation = (no, "not ") if complement and len(no) < len(yes) else (yes, "")
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{ask}: {negation}{' '.join(names[:MAX_NAMES])}{more}?"


def _shortest(tree: Tree, phones: frozenset[int]) -> list[str]:
    """Return the shortest list of names for some phones."""
    members: dict[str, list[int]] = {}
    for phone, symbol in enumerate(tree.phones, 1):
        members.setdefault(split_phone(symbol).base, []).append(phone)
    names = []
    for base, variants in members.items():
        inside = [phone for phone in variants if phone in phones]
        whole = len(inside) == len(variants) > 1
        names += [f"{base}*"] if whole else _names(tree, inside)
    return names


def _names(tree: Tree, phones: Iterable[int]) -> list[str]:
    """Return the symbols of phones."""
    return [tree.phones[phone - 1] for phone in phones]


def _quoted(text: str) -> str:
    """Quote a text for Graphviz."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
