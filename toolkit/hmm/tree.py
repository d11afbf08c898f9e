"""Phonetic decision trees: map a phone's state and its neighbours to a pdf."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.hmm.phone_sets import default_roots
from toolkit.hmm.topology import Topology
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading

POSITIONS = ("left", "centre", "right")
"""The positions in a triphone that a question may ask about."""


class TreeError(ToolkitError):
    """Raised for a tree that cannot be read, or does not fit its topology or statistics."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of a tree; leaves of one root that were clustered share a pdf."""

    pdf: int
    """Index of the pdf, counted from 0 in the order of the tree."""
    frames: int
    """Training frames that reached this leaf."""


@dataclass(frozen=True)
class Split:
    """An inner node: a question about neighbouring phones, and its two branches."""

    ask: str
    """The position in question: one of `POSITIONS`."""
    phones: frozenset[int]
    """Phone ids for which the answer is yes."""
    gain: float
    """Log-likelihood gained in training, in nats."""
    frames: int
    """Training frames that reached this node."""
    yes: "Node"
    """The branch for these phones."""
    no: "Node"
    """The branch for all other phones, and for no phone (id 0)."""


Node = Union[Leaf, Split]  # noqa: UP007 (a forward reference cannot be or-ed)


@dataclass(frozen=True)
class Root:
    """The root of a tree for one HMM state of one or more phones."""

    phones: tuple[int, ...]
    """Phone ids, ascending."""
    state: int
    """The HMM state, counted from 0 within the phone."""
    node: Node
    """The first question, or the only leaf."""


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the leaves below a node, the yes branch first."""
    if isinstance(node, Leaf):
        yield node
    else:
        yield from leaves(node.yes)
        yield from leaves(node.no)


def to_json(phones: tuple[str, ...], roots: tuple[Root, ...]) -> str:
    """Format a tree as JSON, with one line per question and leaf.

    Args:
      phones: all phone symbols, in id order.
      roots: the roots of the tree.
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
    """Parse a tree that `to_json` wrote.

    Returns:
      All phone symbols, in id order, and the roots.

    Raises:
      TreeError: the text is not a tree; says what is wrong, and where in the tree.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise TreeError(f"line {error.lineno}: not JSON: {error.msg}") from error
    phones = tuple(_get(data, "phones", str, "the file").split())
    ids = {symbol: phone for phone, symbol in enumerate(phones, 1)}
    if len(ids) < len(phones):
        raise TreeError("a phone is listed twice")

    def phone_ids(data: Any, place: str) -> tuple[int, ...]:
        named = _get(data, "phones", str, place).split()
        unknown = [symbol for symbol in named if symbol not in ids]
        if unknown or not named:
            raise TreeError(f"{place}: {f'no phone {unknown[0]!r}' if unknown else 'no phones'}")
        return tuple(sorted({ids[symbol] for symbol in named}))

    def node(data: Any, place: str) -> Node:
        if isinstance(data, dict) and "pdf" in data:
            return Leaf(_get(data, "pdf", int, place), _get(data, "frames", int, place))
        ask = _get(data, "ask", str, place)
        if ask not in POSITIONS:
            raise TreeError(f"{place}: asks about {ask!r}, which is none of {', '.join(POSITIONS)}")
        return Split(
            ask,
            frozenset(phone_ids(data, place)),
            float(_get(data, "gain", (int, float), place)),
            _get(data, "frames", int, place),
            node(_get(data, "yes", dict, place), f"{place}, yes"),
            node(_get(data, "no", dict, place), f"{place}, no"),
        )

    roots = []
    for number, root in enumerate(_get(data, "roots", list, "the file"), 1):
        place = f"root {number}"
        members, state = phone_ids(root, place), _get(root, "state", int, place)
        place = f"root {number} ({root['phones']}, state {state})"
        roots.append(Root(members, state, node(_get(root, "tree", dict, place), place)))
    return phones, tuple(roots)


def _get(data: Any, key: str, kind: type | tuple[type, ...], place: str) -> Any:
    """Return an item of parsed JSON after checking its type."""
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        fault = "is missing" if value is None else "is of the wrong type"
        raise TreeError(f"{place}: {key!r} {fault}")
    return value


ADVICE = "is it the tree.json of a model?"


@dataclass(frozen=True)
class Tree:
    """Maps (left phone, state id, right phone) to pdfs.

    Each state of each phone has exactly one root, and a pdf belongs to only one root, so that
    states at different positions in a phone never share a pdf.

    Raises:
      TreeError: the parts do not form a tree.
    """

    phones: tuple[str, ...]
    """Phone symbols in id order, as in `Topology`."""
    roots: tuple[Root, ...]
    """In the order of their first state ids."""

    def __post_init__(self) -> None:
        last_state: dict[int, int] = {}
        for root in sorted(self.roots, key=lambda root: root.state):
            for phone in root.phones:
                expected = last_state.get(phone, -1) + 1
                if root.state != expected:
                    raise TreeError(
                        f"phone {self.phones[phone - 1]} needs exactly one root for each of its "
                        f"states; found state {root.state} where state {expected} was expected"
                    )
                last_state[phone] = root.state
        bare = [s for p, s in enumerate(self.phones, 1) if p not in last_state]
        if bare:
            raise TreeError(f"no root for {' '.join(bare)}")
        owner: dict[int, Root] = {}
        for root in self.roots:
            for leaf in leaves(root.node):
                if owner.setdefault(leaf.pdf, root) is not root:
                    raise TreeError(f"pdf {leaf.pdf} belongs to two roots")
        if sorted(owner) != list(range(len(owner))):
            raise TreeError(f"pdfs are not numbered 0 to {len(owner) - 1}")

    @classmethod
    def monophone(cls, topology: Topology) -> "Tree":
        """Make a tree with one pdf per state, whatever its context; phone variants share pdfs."""
        roots = [
            (group.phones, state)
            for group in default_roots(topology)
            for state in range(topology.num_states(group.phones[0]))
        ]
        return cls(
            topology.phones,
            tuple(Root(phones, state, Leaf(pdf, 0)) for pdf, (phones, state) in enumerate(roots)),
        )

    @cached_property
    def num_pdfs(self) -> int:
        """Number of different pdfs."""
        return 1 + max(leaf.pdf for root in self.roots for leaf in leaves(root.node))

    @cached_property
    def _root_of_state_id(self) -> list[tuple[int, Root]]:
        """Phone and root of each state id."""
        pairs = [(phone, root) for root in self.roots for phone in root.phones]
        return sorted(pairs, key=lambda pair: (pair[0], pair[1].state))

    def pdf(self, left: int, state_id: int, right: int) -> int:
        """Return the pdf of a phone's state between the phones `left` and `right`."""
        centre, root = self._root_of_state_id[state_id]
        answered = {"left": left, "centre": centre, "right": right}
        node = root.node
        while isinstance(node, Split):
            node = node.yes if answered[node.ask] in node.phones else node.no
        return node.pdf

    def table(self) -> Tensor:
        """Return the pdf of every state in every context: [S, P+1, P+1] int32.

        The axes are state id, left phone and right phone. For phone id 0, which stands for no
        phone, the answer to every question is no.
        """
        phones = np.arange(len(self.phones) + 1)
        root_of_state = self._root_of_state_id
        table = np.empty((len(root_of_state), len(phones), len(phones)), dtype=np.int32)
        for root in self.roots:
            # The rows of the states that share the root.
            state_ids = np.array([i for i, (_, r) in enumerate(root_of_state) if r is root])
            centres = np.array([root_of_state[i][0] for i in state_ids])
            # A branch is reached by a box of contexts: some rows, some left, some right phones.
            branches = [(root.node, state_ids, centres, phones, phones)]
            while branches:
                node, rows, centre, left, right = branches.pop()
                if isinstance(node, Leaf):
                    table[np.ix_(rows, left, right)] = node.pdf
                    continue
                phones_at = {"left": left, "centre": centre, "right": right}
                answer = np.isin(phones_at[node.ask], list(node.phones))
                for branch, answered in ((node.yes, answer), (node.no, ~answer)):
                    if node.ask == "left":
                        branches.append((branch, rows, centre, left[answered], right))
                    elif node.ask == "right":
                        branches.append((branch, rows, centre, left, right[answered]))
                    else:
                        branches.append((branch, rows[answered], centre[answered], left, right))
        return torch.from_numpy(table)

    def save(self, path: Path) -> None:
        """Write the tree as readable JSON, with phone symbols in place of ids."""
        write_atomically(path, to_json(self.phones, self.roots))

    @classmethod
    def load(cls, path: Path) -> "Tree":
        """Read a tree that `save` wrote.

        Raises:
          TreeError: the file cannot be read, or holds no tree; says where the fault is.
        """
        with reading(path, TreeError, ADVICE, "not a tree"):
            try:
                return cls(*from_json(Path(path).read_text(encoding="utf-8")))
            except TreeError as error:
                raise TreeError(f"{path}: {error}; {ADVICE}") from error
