"""HMM topologies: the states of each phone and their order."""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from toolkit.config.fields import Range, Settings, read_plain
from toolkit.errors import ToolkitError
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.storage.files import write_atomically

NumStates = Annotated[int, Range(1, 100)]
"""HMM states of a phone."""


class TopologyError(ToolkitError):
    """Raised when a file does not hold a topology."""


@dataclass(frozen=True)
class Topology(Settings):
    """Left-to-right phone HMMs without transition probabilities.

    At 10 ms every state loops on itself and is followed by the next. A phone is entered at its
    first state and left from its last, so that it lasts at least as many frames as it has states.
    The five states of silence and noise are Kaldi's: the middle ones may follow each other in any
    order, since a pause has no fixed course. At 30 ms (`at_low_rate`, C3) a phone is an onset of
    exactly one frame and a rest of zero or more frames, as in Kaldi's chain models. The onset
    distinguishes one long phone from two equal phones, which the paper's single-state phones
    cannot.

    Transitions have no weights, so all paths of the same length cost the same. Durations follow
    from the acoustics only, and training and decoding graphs agree about them. Kaldi trains
    transition probabilities, which also matter little (its self-loop scale is 0.1).
    """

    phones: tuple[str, ...]
    """Phone symbols in id order: the phone at index i has id i + 1, as id 0 is epsilon."""
    silence_phones: tuple[str, ...] = ("SIL", "SPN")
    """The phones that are not speech: silence and noise."""
    states: NumStates = 3
    """HMM states of a speech phone."""
    silence_states: NumStates = 5
    """HMM states of a silence phone (Kaldi: 5)."""
    onset: bool = False
    """Whether each phone's first state lasts one frame and its second may be left out."""

    def check(self) -> None:
        """Check that phones with an onset have two states and that silence phones exist."""
        if self.onset and (self.states, self.silence_states) != (2, 2):
            raise ValueError("with `onset`, `states` and `silence_states` must be 2")
        unknown = set(self.silence_phones) - set(self.phones)
        if unknown:
            raise ValueError(f"silence phones {sorted(unknown)} are not among the phones")

    def num_states(self, phone: int) -> int:
        """Return the number of HMM states of a phone."""
        silence = self.is_silence(phone)
        return self.silence_states if silence else self.states

    def state_id(self, phone: int, state: int) -> int:
        """Return the id of a phone's state; ids count phone by phone from 0."""
        return self.first_state_ids[phone - 1] + state

    @cached_property
    def first_state_ids(self) -> list[int]:
        """Id of each phone's first state."""
        return list(accumulate((self.num_states(p) for p in self.phone_ids()), initial=0))[:-1]

    @property
    def num_state_ids(self) -> int:
        """Total number of states of all phones."""
        return sum(self.num_states(p) for p in self.phone_ids())

    @property
    def silence(self) -> int:
        """Id of the silence phone (pauses), the first of `silence_phones`."""
        return self.phones.index(self.silence_phones[0]) + 1

    def is_silence(self, phone: int) -> bool:
        """Whether a phone is one of `silence_phones`."""
        return self.phones[phone - 1] in self.silence_phones

    def phone_ids(self) -> range:
        """Ids of the phones: 1, 2, ..."""
        return range(1, len(self.phones) + 1)

    @cached_property
    def phone_of_state_id(self) -> list[int]:
        """Phone id of each state id."""
        return [p for p in self.phone_ids() for _ in range(self.num_states(p))]

    def successors(self, phone: int, state: int) -> range:
        """Return a state's successors within the phone, including itself if it loops."""
        states = self.num_states(phone)
        if self.onset:
            return range(1, 2)
        if states > 3 and self.is_silence(phone) and state < states - 1:
            return range(min(state, 1), states if state else states - 1)
        return range(state, min(state + 2, states))

    def exit_states(self, phone: int) -> range:
        """Return the states from which a phone may be left."""
        states = self.num_states(phone)
        return range(0 if self.onset else states - 1, states)

    def min_frames(self, phone: int) -> int:
        """Return the fewest frames that a phone can last."""
        if self.onset:
            return 1
        silence = self.is_silence(phone)
        return min(3, self.num_states(phone)) if silence else self.num_states(phone)

    def at_low_rate(self) -> "Topology":
        """Return the topology of the same phones for stacked 30 ms frames."""
        return replace(self, states=2, silence_states=2, onset=True)

    def phone_starts(self, states: Tensor) -> Tensor:
        """Return which frames begin a phone in an alignment: state ids [T] to bool [T].

        Two equal phones in a row are distinguished unless they have a single looping state.
        """
        phones = torch.tensor(self.phone_of_state_id)[states]
        first = states == torch.tensor(self.first_state_ids)[phones - 1]
        entered = torch.ones(len(states), dtype=torch.bool)
        entered[1:] = (phones[1:] != phones[:-1]) | first[1:] & (~first[:-1] | self.onset)
        return entered

    def low_rate_targets(self, states: Tensor) -> Tensor:
        """Convert an alignment's frames to states of `at_low_rate`.

        The first three frames of a phone are its onset, so that taking every third frame, from
        whatever offset, meets the onset of every phone once.

        Args:
          states: [T] state ids at 10 ms.

        Returns:
          [T] int64 state ids, still at 10 ms.
        """
        phones = torch.tensor(self.phone_of_state_id)[states]
        positions = torch.arange(len(states))
        since = positions - torch.where(self.phone_starts(states), positions, 0).cummax(0).values
        return 2 * (phones - 1) + (since >= LOW_RATE_FACTOR).long()

    def save(self, path: Path) -> None:
        """Write the topology as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Topology":
        """Read a topology that `save` wrote.

        Raises:
          TopologyError: the file cannot be read, or holds no topology; names the file.
        """
        return read_plain(path, cls, TopologyError, "is it the topology.json of a model?")


def phone_contexts(topology: Topology, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the left and right neighbour of each frame's phone.

    The first phone's left neighbour and the last one's right neighbour are silence: the edge of a
    recording is a pause, not a sound of its own.

    Args:
      topology: the HMMs of the alignment.
      states: [T] state ids, T at least 1.

    Returns:
      The phones [T] before and [T] after the frame's phone, int64.
    """
    starts = topology.phone_starts(states)
    instance = starts.long().cumsum(0) - 1
    phones = torch.tensor(topology.phone_of_state_id)[states[starts]]
    edge = torch.tensor([topology.silence])
    return torch.cat([edge, phones[:-1]])[instance], torch.cat([phones[1:], edge])[instance]
