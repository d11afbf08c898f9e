"""LF-MMI's denominator: a phone language model as one HMM over pdfs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.fsa.fst import FINAL, Fst
from toolkit.fsa.hmm import expand_phones
from toolkit.hmm.senones import Senones
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading

STEPS = 100
"""Frames over which the initial probabilities are averaged, as in Kaldi."""


class DenominatorError(ToolkitError):
    """A file that holds no denominator."""


@dataclass(frozen=True, eq=False)
class Denominator:
    """An HMM of S states and A transitions, of which each state reads one pdf when it is entered.

    It has no end: a chunk may stop anywhere.
    """

    source: np.ndarray
    """[A] int32, ascending."""
    target: np.ndarray
    """[A] int32; ascending in each source, no pair of states twice."""
    weight: np.ndarray
    """[A] float64, above 0: the language model's probability, 1 within a phone. The weights of a
    state's transitions add up to more than 1; what all frames share cancels in the criterion."""
    pdf: np.ndarray
    """[S] int32."""
    initial: np.ndarray
    """[S] float64, adds up to 1: where a chunk begins."""

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.pdf)

    @cached_property
    def begin(self) -> np.ndarray:
        """[S] float64: the weight with which a chunk's first frame is read by each state."""
        moved = np.zeros(self.num_states)
        np.add.at(moved, self.target, self.initial[self.source] * self.weight)
        return moved

    def save(self, path: Path) -> None:
        """Write as safetensors."""
        write_atomically(path, save({name: vars(self)[name] for name in _SHAPES}))

    @classmethod
    def load(cls, path: Path) -> "Denominator":
        """Read what `save` wrote.

        Raises:
          DenominatorError: naming the file.
        """
        with reading(path, DenominatorError, "make it again", "no denominator"):
            tensors, _ = read_tensors(path, _SHAPES, "np")
            found = cls(**{name: tensors[name] for name in _SHAPES})
            found._check()
            return found

    def _check(self) -> None:
        """Check what the recursions rely on: given an ill-formed HMM they read out of bounds."""
        arcs, states = len(self.source), self.num_states
        if {len(self.target), len(self.weight)} != {arcs} or len(self.initial) != states:
            raise ValueError("its tensors do not belong together")
        ends = np.concatenate([self.source, self.target])
        if not arcs or ends.min() < 0 or ends.max() >= states or self.pdf.min(initial=0) < 0:
            raise ValueError("transitions between states that there are not")
        if (np.diff(self.source.astype(np.int64) * states + self.target) <= 0).any():
            raise ValueError("transitions that are not sorted")
        if not (self.weight > 0).all() or not (self.initial >= 0).all():
            raise ValueError("weights that are not positive")


_SHAPES = {
    "source": ("I32", 1),
    "target": ("I32", 1),
    "weight": ("F64", 1),
    "pdf": ("I32", 1),
    "initial": ("F64", 1),
}


def make_denominator(phones: Fst, senones: Senones) -> Denominator:
    """Compose a phone language model with context and topology.

    As Kaldi's chain-make-den-fst: the initial probabilities are those of the HMM's states averaged
    over its first 100 frames, each state's transitions scaled to add up to 1 and what ends on the
    way left out. Kaldi's transition probabilities are 1/2 all over, which cancels; here they are 1.
    The graph is not minimised: `expand_phones` makes equal units of contexts one.

    Args:
      phones: from `phone_ngram`.
      senones: topology and tree.
    """
    graph = expand_phones(phones, senones)
    states = graph.num_states - 1  # without the final one
    weight = np.exp(graph.scores.astype(np.float64))
    leaving = np.bincount(graph.source, weight, states)
    inside = graph.labels != FINAL
    key, arc = np.unique(
        graph.source[inside].astype(np.int64) * states + graph.target[inside], return_inverse=True
    )
    source, target = (key // states).astype(np.int32), (key % states).astype(np.int32)
    weight = np.bincount(arc.reshape(-1), weight[inside])
    pdf = np.zeros(states, np.int32)  # that of state 0, which is never entered, means nothing
    pdf[graph.target[inside]] = graph.labels[inside] - 1
    return Denominator(
        source, target, weight, pdf, _initial(source, target, weight / leaving[source], states)
    )


def _initial(
    source: np.ndarray, target: np.ndarray, probability: np.ndarray, states: int
) -> np.ndarray:
    here, total = np.zeros(states), np.zeros(states)
    here[0] = 1.0
    for _ in range(STEPS):
        total += here / STEPS
        here = np.bincount(target, here[source] * probability, states)
        here /= here.sum()
    return total / total.sum()
