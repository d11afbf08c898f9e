"""Phonetic decision trees: which pdf a state of a phone has between its neighbours."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.hmm.phone_sets import default_roots
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree.nodes import Leaf, Root, Split, TreeError, from_json, leaves, to_json
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading

ADVICE = "is it the tree.json of a model?"


@dataclass(frozen=True)
class Tree:
    """Ties (left phone, state id, right phone) to pdfs.

    Each state of each phone has exactly one root, and a pdf belongs to one root only: states at
    different places in a phone never share a pdf.

    Raises:
      TreeError: the parts do not make a tree.
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
        """A pdf for every state, whatever the context; variants of a base phone share theirs."""
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
        """The number of different pdfs."""
        return 1 + max(leaf.pdf for root in self.roots for leaf in leaves(root.node))

    @cached_property
    def _root_of_state_id(self) -> list[tuple[int, Root]]:
        """For each state id its phone and its root."""
        pairs = [(phone, root) for root in self.roots for phone in root.phones]
        return sorted(pairs, key=lambda pair: (pair[0], pair[1].state))

    def pdf(self, left: int, state_id: int, right: int) -> int:
        """The pdf of a state of the phone between the phones with ids `left` and `right`."""
        centre, root = self._root_of_state_id[state_id]
        answered = {"left": left, "centre": centre, "right": right}
        node = root.node
        while isinstance(node, Split):
            node = node.yes if answered[node.ask] in node.phones else node.no
        return node.pdf

    def table(self) -> Tensor:
        """The pdf of every state in every context, [S, P+1, P+1] int32: (state id, left, right).

        Id 0, no phone, answers every question with no.
        """
        everyone = np.arange(len(self.phones) + 1)
        numbered = self._root_of_state_id
        table = np.empty((len(numbered), len(everyone), len(everyone)), dtype=np.int32)
        for root in self.roots:
            mine = np.array([i for i, (_, r) in enumerate(numbered) if r is root])
            centres = np.array([numbered[i][0] for i in mine])
            # A branch is reached by a box of contexts: some rows, some left, some right phones.
            branches = [(root.node, mine, centres, everyone, everyone)]
            while branches:
                node, rows, centre, left, right = branches.pop()
                if isinstance(node, Leaf):
                    table[np.ix_(rows, left, right)] = node.pdf
                    continue
                of = {"left": left, "centre": centre, "right": right}
                answer = np.isin(of[node.ask], list(node.phones))
                for branch, taken in ((node.yes, answer), (node.no, ~answer)):
                    if node.ask == "left":
                        branches.append((branch, rows, centre, left[taken], right))
                    elif node.ask == "right":
                        branches.append((branch, rows, centre, left, right[taken]))
                    else:
                        branches.append((branch, rows[taken], centre[taken], left, right))
        return torch.from_numpy(table)

    def save(self, path: Path) -> None:
        """Write the tree as JSON that people can read, phones by their symbols."""
        write_atomically(path, to_json(self.phones, self.roots))

    @classmethod
    def load(cls, path: Path) -> "Tree":
        """Read a tree that `save` wrote.

        Raises:
          TreeError: the file holds no tree; says where.
        """
        with reading(path, TreeError, ADVICE, "no tree"):
            try:
                return cls(*from_json(Path(path).read_text(encoding="utf-8")))
            except TreeError as error:
                raise TreeError(f"{path}: {error}; {ADVICE}") from error
