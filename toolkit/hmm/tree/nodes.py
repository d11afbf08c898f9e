"""The nodes of phonetic trees, and their form in JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

from toolkit.errors import ToolkitError

POSITIONS = ("left", "centre", "right")
"""The positions in a triphone that a question may ask about."""


class TreeError(ToolkitError):
    """A tree that cannot be read, or does not fit what it is used with."""


@dataclass(frozen=True)
class Leaf:
    """The end of a branch. Leaves of one root that were clustered have the same pdf."""

    pdf: int
    """Counted from 0 in the order of the tree."""
    frames: int
    """Training frames that reached this leaf."""


@dataclass(frozen=True)
class Split:
    """An inner node: a phonetic question and its two branches."""

    ask: str
    """The position that it asks about: one of `POSITIONS`."""
    phones: frozenset[int]
    """Phone ids for which the answer is yes."""
    gain: float
    """Log-likelihood gained in training, in nats."""
    frames: int
    """Training frames that reached this node."""
    yes: "Node"
    """The branch of these phones."""
    no: "Node"
    """The branch of all others, and of no phone (id 0)."""


Node = Union[Leaf, Split]  # noqa: UP007 (a forward reference cannot be or-ed)


@dataclass(frozen=True)
class Root:
    """The root of the tree of one HMM state of one or more phones."""

    phones: tuple[int, ...]
    """Phone ids, ascending."""
    state: int
    """The HMM state, counted from 0 within the phone."""
    node: Node
    """The first question, or the only leaf."""


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves below a node, yes before no."""
    if isinstance(node, Leaf):
        yield node
    else:
        yield from leaves(node.yes)
        yield from leaves(node.no)


def to_json(phones: tuple[str, ...], roots: tuple[Root, ...]) -> str:
    """Write a tree with a line for each question and each leaf.

    Args:
      phones: all phone symbols, in id order.
      roots: the roots.
    """

    def symbols(ids: frozenset[int] | tuple[int, ...]) -> str:
        return json.dumps(" ".join(phones[p - 1] for p in sorted(ids)), ensure_ascii=False)

    def written(node: Node, indent: str) -> str:
        if isinstance(node, Leaf):
            return f'{{"pdf": {node.pdf}, "frames": {node.frames}}}'
        inner = indent + " "
        return (
            f'{{"ask": "{node.ask}", "phones": {symbols(node.phones)}, '
            f'"gain": {node.gain!r}, "frames": {node.frames},\n'
            f'{inner}"yes": {written(node.yes, inner)},\n'
            f'{inner}"no": {written(node.no, inner)}}}'
        )

    lines = [
        f'  {{"phones": {symbols(root.phones)}, "state": {root.state}, "tree":\n'
        f"   {written(root.node, '   ')}}}"
        for root in roots
    ]
    everyone = symbols(tuple(range(1, len(phones) + 1)))
    return f'{{\n "phones": {everyone},\n "roots": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def from_json(text: str) -> tuple[tuple[str, ...], tuple[Root, ...]]:
    """Read what `to_json` wrote.

    Returns:
      All phone symbols, in id order, and the roots.

    Raises:
      TreeError: what is wrong, and where in the tree.
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise TreeError(f"line {error.lineno}: not JSON: {error.msg}") from error
    phones = tuple(_get(plain, "phones", str, "the file").split())
    ids = {symbol: phone for phone, symbol in enumerate(phones, 1)}
    if len(ids) < len(phones):
        raise TreeError("a phone is listed twice")

    def known(plain: Any, place: str) -> tuple[int, ...]:
        named = _get(plain, "phones", str, place).split()
        unknown = [symbol for symbol in named if symbol not in ids]
        if unknown or not named:
            raise TreeError(f"{place}: {f'no phone {unknown[0]!r}' if unknown else 'no phones'}")
        return tuple(sorted({ids[symbol] for symbol in named}))

    def node(plain: Any, place: str) -> Node:
        if isinstance(plain, dict) and "pdf" in plain:
            return Leaf(_get(plain, "pdf", int, place), _get(plain, "frames", int, place))
        ask = _get(plain, "ask", str, place)
        if ask not in POSITIONS:
            raise TreeError(f"{place}: asks about {ask!r}, which is none of {', '.join(POSITIONS)}")
        return Split(
            ask,
            frozenset(known(plain, place)),
            float(_get(plain, "gain", (int, float), place)),
            _get(plain, "frames", int, place),
            node(_get(plain, "yes", dict, place), f"{place}, yes"),
            node(_get(plain, "no", dict, place), f"{place}, no"),
        )

    roots = []
    for number, root in enumerate(_get(plain, "roots", list, "the file"), 1):
        place = f"root {number}"
        members, state = known(root, place), _get(root, "state", int, place)
        place = f"root {number} ({root['phones']}, state {state})"
        roots.append(Root(members, state, node(_get(root, "tree", dict, place), place)))
    return phones, tuple(roots)


def _get(plain: Any, key: str, kind: type | tuple[type, ...], place: str) -> Any:
    value = plain.get(key) if isinstance(plain, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        fault = "is missing" if value is None else "is of the wrong type"
        raise TreeError(f"{place}: {key!r} {fault}")
    return value
