"""What was said in the training utterances: phones, as aligned or as recognised."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from toolkit.fsa.numerator import PhoneTimes, Spoken
from toolkit.hmm.topology import Topology
from toolkit.train.corpus import Alignments, Features, split_stores
from toolkit.train.errors import TrainingDataError
from toolkit.train.held_out import Division


class Phones(Protocol):
    """The phones of a store's utterances, such as `AlignedPhones`."""

    transcribed: bool
    """Whether they are those of transcripts, on which a network can be validated."""

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

    transcribed = True

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


def divide_spoken(
    features: Sequence[Features], phones: Sequence[Phones], number: int, seed: int = 0
) -> Division:
    """Hold out transcribed utterances; of recognised ones, leave out those of the same speakers.

    How well a network does on recognised speech tells how much it agrees with the recogniser.

    Args:
      features: stores of raw features.
      phones: as many, of what was said.
      number: utterances to hold out, see `toolkit.train.held_out.divide`.
      seed: of the choice.

    Raises:
      TrainingDataError: two stores have an utterance of the same id.
    """
    times = Counter(name for store in features for shard in store.shards for name in shard)
    if twice := sorted(name for name, count in times.items() if count > 1):
        raise TrainingDataError(
            f"{len(twice)} utterances, such as {twice[0]}, have ids that are in two stores of"
            " features: utterances that are trained on together need ids of their own"
        )
    pairs = list(zip(features, phones, strict=True))
    division = split_stores([store for store, own in pairs if own.transcribed], number, seed)
    recognised = {
        name
        for store, own in pairs
        if not own.transcribed
        for name in own.ids
        if store.speaker(name) not in division.speakers
    }
    return replace(division, train=division.train | recognised)


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
