"""Kaldi's transition ids, and its transition model in text form."""

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from toolkit.hmm.senones import Senones
from toolkit.hmm.tree import Leaf, Node
from toolkit.kaldi.topology import topology_text, transitions_of


class Transitions:
    """The transition states and transition ids that Kaldi makes of a tree and a topology.

    A transition state is a phone, one of its HMM states and a pdf that the tree may give it; they
    are numbered from 1. A transition id is one of its transitions, numbered from 1 likewise.

    Args:
      senones: tree and topology.
    """

    def __init__(self, senones: Senones) -> None:
        self.senones = senones
        found = {
            (phone, root.state, pdf)
            for root in senones.tree.roots
            for phone in root.phones
            for pdf in _pdfs(root.node, phone)
        }
        self.phone, self.state, self.pdf = np.array(sorted(found)).T
        """[N] each: of the transition states."""
        counts = [len(targets) for targets in self._targets]
        self.first = 1 + np.append(0, np.cumsum(counts))
        """[N + 1] the first transition id of each transition state."""

    @cached_property
    def _targets(self) -> list[list[int]]:
        """The HMM states to which the transitions of each transition state lead."""
        topology = self.senones.topology
        pairs = zip(self.phone.tolist(), self.state.tolist(), strict=True)
        return [transitions_of(topology, phone, state) for phone, state in pairs]

    @property
    def pdf_of_id(self) -> np.ndarray:
        """[ids] the pdf of each transition id; that of id 1 comes first."""
        return np.repeat(self.pdf, np.diff(self.first))

    @cached_property
    def _index(self) -> np.ndarray:
        """[N, S + 1] the position of the transition to each HMM state, -1 for none; S ends."""
        sizes = map(self.senones.topology.num_states, self.senones.topology.phone_ids())
        width = 1 + max(sizes)
        index = np.full((len(self.phone), width), -1)
        for row, (phone, targets) in enumerate(
            zip(self.phone.tolist(), self._targets, strict=True)
        ):
            ends = self.senones.topology.num_states(phone)
            index[row, [-1 if to == ends else to for to in targets]] = range(len(targets))
        return index

    def ids(self, origin: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The ids [n] of transitions.

        Args:
          origin: [n] transition states, from 1.
          target: [n] the HMM states to which they lead; -1: out of the phone, as to a state
            to which the HMM has no transition.
        """
        inside, leaving = self._index[origin - 1, target], self._index[origin - 1, -1]
        return self.first[origin - 1] + np.where(inside < 0, leaving, inside)

    @cached_property
    def states(self) -> Senones:
        """Senones in which transition states stand for pdfs, counted from 0.

        A graph expanded with them is that of the senones with other labels.
        """
        return _TransitionStates(self)

    def text(self) -> str:
        """The model as `copy-transition-model --binary=false` prints it; see `topology_text`."""
        rows = zip(self.phone.tolist(), self.state.tolist(), self.pdf.tolist(), strict=True)
        triples = "".join(f"{phone} {state} {pdf}\n" for phone, state, pdf in rows)
        scores = [-math.log(len(targets)) for targets in self._targets for _ in targets]
        numbers = " ".join(f"{score:.7g}" for score in (0.0, *scores))
        topology = topology_text(self.senones.topology)
        return (
            f"<TransitionModel>\n{topology}<Triples> {len(self.phone)}\n{triples}</Triples>\n"
            f"<LogProbs>\n [ {numbers} ]\n</LogProbs>\n</TransitionModel>\n"
        )


def _pdfs(node: Node, phone: int) -> set[int]:
    """The pdfs below a node that a phone may have, whatever its neighbours."""
    if isinstance(node, Leaf):
        return {node.pdf}
    if node.ask == "centre":
        return _pdfs(node.yes if phone in node.phones else node.no, phone)
    return _pdfs(node.yes, phone) | _pdfs(node.no, phone)


class _TransitionStates(Senones):
    """See `Transitions.states`."""

    def __init__(self, transitions: Transitions) -> None:
        super().__init__(transitions.senones.topology, transitions.senones.tree)
        self._transitions = transitions

    @property
    def num_pdfs(self) -> int:
        """The number of transition states."""
        return len(self._transitions.pdf)

    @cached_property
    def table(self) -> Tensor:
        """[S, P+1, P+1] int32: the transition state of a state id between two phones, from 0."""
        owner = self._transitions
        pdfs = self.tree.table().numpy()
        first = np.array([0, *self.topology.first_state_ids])
        state_id = first[owner.phone] + owner.state
        width = self.tree.num_pdfs
        rows = np.arange(len(pdfs))[:, None, None]
        found = np.searchsorted(state_id * width + owner.pdf, rows * width + pdfs)
        return torch.from_numpy(found.astype(np.int32))
