"""What was said in the training utterances: phones, as aligned or as recognised."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from toolkit.fsa.numerator import PhoneTimes, Spoken
from toolkit.hmm.topology import Topology
from toolkit.train.corpus import Alignments


class Phones(Protocol):
    """The phones of a store's utterances, such as `AlignedPhones`."""

    @property
    def ids(self) -> Sequence[str]:
        """The utterances whose phones are known."""

    def load(self, name: str) -> Spoken:
        """Read the phones of an utterance."""


class AlignedPhones:
    """The phones of transcribed utterances that were aligned.

    Args:
      states: the state id of every raw frame.
      topology: of `states`.
    """

    def __init__(self, states: Alignments, topology: Topology) -> None:
        self._states = states
        self._topology = topology

    @property
    def ids(self) -> Sequence[str]:
        """The aligned utterances."""
        return self._states.ids

    def load(self, name: str) -> PhoneTimes:
        """Read an utterance's alignment."""
        return PhoneTimes.of(self._states.load(name), self._topology)


class NumeratorsInstead:
    """Stands for the targets of a `Corpus` whose utterances have numerators: as many, all 0.

    Args:
      spoken: phones by utterance.
    """

    def __init__(self, spoken: Mapping[str, Spoken]) -> None:
        self._spoken = spoken

    @property
    def ids(self) -> Sequence[str]:
        """The utterances whose phones are known."""
        return list(self._spoken)

    def num_frames(self, name: str) -> int:
        """Count the raw frames that the phones are of."""
        return self._spoken[name].frames

    def load(self, name: str) -> Tensor:
        """[T] zeros."""
        return torch.zeros(self.num_frames(name), dtype=torch.int64)
