"""Senones: HMM states in phonetic context, tied by a decision tree."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.hmm.topology import Topology, phone_contexts
from toolkit.hmm.tree import Tree


@dataclass(frozen=True)
class ContextUnits:
    """Context-dependent phones (units), merged if their pdfs and possible next phones are equal."""

    index: np.ndarray
    """[P+1, P+1, P+1] int32: the unit of (left, phone, right) phone ids."""
    phone: np.ndarray
    """[U] phone ids."""
    pdfs: np.ndarray
    """[U, S] the pdf of each state; -1 where the phone has fewer states than S."""
    right: np.ndarray
    """[U, P+1] bool: the right neighbours with which a phone is this unit."""


class Senones:
    """Maps HMM states in phonetic context to pdfs (Kaldi's ContextDependency).

    Args:
      topology: the phones and their states.
      tree: ties (left phone, state, right phone) to pdfs.
    """

    def __init__(self, topology: Topology, tree: Tree) -> None:
        self.topology = topology
        self.tree = tree

    @classmethod
    def monophone(cls, topology: Topology) -> "Senones":
        """Return senones with a pdf for every state in any context; see `Tree.monophone`."""
        return cls(topology, Tree.monophone(topology))

    def __reduce__(self) -> tuple:
        """Pickle without the tables, which each process computes once."""
        return _unpickled, (self.topology, self.tree)

    @property
    def num_pdfs(self) -> int:
        """Number of senones."""
        return self.tree.num_pdfs

    @cached_property
    def table(self) -> Tensor:
        """Pdf by state id, left phone and right phone: [S, P+1, P+1] int32."""
        return self.tree.table()

    @cached_property
    def phone_of_pdf(self) -> Tensor:
        """First phone that uses each pdf: [pdfs]."""
        first_phones = torch.zeros(self.num_pdfs, dtype=torch.int64)
        phones = self.topology.phone_of_state_id
        for state in reversed(range(len(phones))):
            first_phones[self.table[state].unique().long()] = phones[state]
        return first_phones

    @cached_property
    def state_of_pdf(self) -> Tensor:
        """Position within its phone (0, 1, ...) of the state that uses each pdf: [pdfs]."""
        first_states = torch.zeros(self.num_pdfs, dtype=torch.int64)
        for phone in self.topology.phone_ids():
            for state in range(self.topology.num_states(phone)):
                row = self.table[self.topology.state_id(phone, state)]
                first_states[row.unique().long()] = state
        return first_states

    def pdfs(self, states: Tensor) -> Tensor:
        """Convert an alignment's state ids to pdfs: [T] to [T] int64."""
        if not len(states):
            return states.long()
        left, right = phone_contexts(self.topology, states)
        return self.table[states, left, right].long()

    @cached_property
    def context_units(self) -> ContextUnits:
        """The context-dependent phones from which graphs are built."""
        topology, table = self.topology, self.table.numpy()
        size, width = table.shape[1], max(map(topology.num_states, topology.phone_ids()))
        index = np.zeros((size, size, size), dtype=np.int32)
        number: dict[tuple[int, bytes, bytes], int] = {}
        phones, pdfs, rights = [], [], []
        for phone in topology.phone_ids():
            first, states = topology.state_id(phone, 0), topology.num_states(phone)
            contexts = table[first : first + states].copy()  # [states, left, right]
            # Id 0 is not a phone: it gets silence's pdfs, so that it does not make separate units.
            contexts[:, 0] = contexts[:, topology.silence]
            contexts[:, :, 0] = contexts[:, :, topology.silence]
            contexts = contexts.reshape(states, -1)
            pdf_tuple = np.zeros(contexts.shape[1], dtype=np.int64)
            for pdf in contexts:
                pdf_tuple = np.unique(pdf_tuple * self.num_pdfs + pdf, return_inverse=True)[
                    1
                ].reshape(-1)
            distinct_tuples = contexts[:, np.unique(pdf_tuple, return_index=True)[1]]
            rows, row_of_left = np.unique(
                pdf_tuple.reshape(size, size), axis=0, return_inverse=True
            )
            units = np.empty_like(rows)
            for i, row in enumerate(rows):
                for k in np.unique(row):
                    right_phones = row == k
                    key = (phone, distinct_tuples[:, k].tobytes(), right_phones.tobytes())
                    if key not in number:
                        number[key] = len(phones)
                        phones.append(phone)
                        pdfs.append([*distinct_tuples[:, k], *[-1] * (width - states)])
                        rights.append(right_phones)
                    units[i, right_phones] = number[key]
            index[:, phone] = units[row_of_left.reshape(-1)]
        return ContextUnits(index, np.array(phones), np.array(pdfs), np.array(rights))

    def save(self, folder: Path) -> None:
        """Write `topology.json` and `tree.json`."""
        self.topology.save(folder / "topology.json")
        self.tree.save(folder / "tree.json")

    @classmethod
    def load(cls, folder: Path) -> "Senones":
        """Read the senones that `save` wrote."""
        return cls(Topology.load(folder / "topology.json"), Tree.load(folder / "tree.json"))


@lru_cache(maxsize=4)
def _unpickled(topology: Topology, tree: Tree) -> Senones:
    """Make senones from their pickled parts; cached for equal senones."""
    return Senones(topology, tree)
