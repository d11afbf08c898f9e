"""HMM topologies: the states of a phone, their order, the pdf that each one emits."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from toolkit.stages.files import write_atomically

LOW_RATE_FACTOR = 3
"""Frames of 10 ms in one of the low rate (C5)."""


@dataclass(frozen=True)
class Topology:
    """Left-to-right phone HMMs without transition weights.

    At 10 ms every state loops on itself and is followed by the next; a phone is entered at its
    first state and left from its last, so that it lasts at least as many frames as it has states.
    At 30 ms (`at_low_rate`, C3) a phone is an onset of exactly one frame and a rest of any length,
    none included: the topology of Kaldi's chain models. The onset tells one long phone from two
    equal ones, which the paper's single-state phones cannot.

    Transitions carry no weight, so all paths of one length cost the same: durations follow from
    the acoustics alone, and training and decoding graphs cannot disagree about them. Kaldi trains
    transition probabilities; there they matter little too (its self-loop scale is 0.1).
    """

    phones: tuple[str, ...]
    """Phone symbols in id order: the phone at index i has id i + 1, as id 0 is epsilon."""
    silence_phones: tuple[str, ...] = ("SIL", "SPN")
    """Those of `phones` that are not speech."""
    states: int = 3
    """HMM states of a speech phone."""
    silence_states: int = 3
    """HMM states of a silence phone."""

    onset: bool = False
    """Whether each phone's first state lasts one frame and its second may be left out."""

    def __post_init__(self) -> None:
        if self.onset and (self.states, self.silence_states) != (2, 2):
            raise ValueError("a phone with an onset has two states")
        if self.states < 1 or self.silence_states < 1:
            raise ValueError("a phone needs at least one state")
        unknown = set(self.silence_phones) - set(self.phones)
        if unknown:
            raise ValueError(f"silence phones {sorted(unknown)} are not among the phones")

    def num_states(self, phone: int) -> int:
        """The number of HMM states of the phone with id `phone`."""
        silence = self.phones[phone - 1] in self.silence_phones
        return self.silence_states if silence else self.states

    def pdf(self, phone: int, state: int) -> int:
        """The pdf of one state of a phone: monophones number them phone by phone from 0."""
        return sum(self.num_states(p) for p in range(1, phone)) + state

    @property
    def num_pdfs(self) -> int:
        """The number of different pdfs."""
        return sum(self.num_states(p) for p in self.phone_ids())

    def phone_ids(self) -> range:
        """The phones' ids: 1, 2, ..."""
        return range(1, len(self.phones) + 1)

    def phone_of_pdf(self) -> list[int]:
        """For each pdf the id of its phone."""
        return [p for p in self.phone_ids() for _ in range(self.num_states(p))]

    def loops(self, phone: int) -> range:
        """The states that may last longer than a frame."""
        return range(1 if self.onset else 0, self.num_states(phone))

    def exits(self, phone: int) -> range:
        """The states from which the phone may be left."""
        states = self.num_states(phone)
        return range(0 if self.onset else states - 1, states)

    def min_frames(self, phone: int) -> int:
        """The fewest frames that the phone can last."""
        return 1 if self.onset else self.num_states(phone)

    def at_low_rate(self) -> "Topology":
        """The same phones for stacked 30 ms frames."""
        return replace(self, states=2, silence_states=2, onset=True)

    def low_rate_targets(self, pdfs: Tensor) -> Tensor:
        """The pdf in `at_low_rate` of every frame of an alignment with this topology.

        The first three frames of a phone are its onset, so that taking every third frame, from
        whatever offset, meets the onset of every phone once.

        Args:
          pdfs: [T] at 10 ms.

        Returns:
          [T] int64, still at 10 ms.
        """
        phones = torch.tensor(self.phone_of_pdf())[pdfs]
        entered = torch.ones(len(pdfs), dtype=torch.bool)
        entered[1:] = (phones[1:] != phones[:-1]) | (pdfs[1:] < pdfs[:-1])
        positions = torch.arange(len(pdfs))
        since = positions - torch.where(entered, positions, 0).cummax(0).values
        return 2 * (phones - 1) + (since >= LOW_RATE_FACTOR).long()

    def save(self, path: Path) -> None:
        """Write the topology as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Topology":
        """Read a topology that `save` wrote."""
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()})
