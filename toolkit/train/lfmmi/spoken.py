"""The phones of the training utterances, as aligned or as recognised."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from toolkit.fsa.numerator import PhoneSupervision, PhoneTimes
from toolkit.hmm.topology import Topology
from toolkit.train.corpus import Alignments, DataSplit, Features, split_by_speaker
from toolkit.train.errors import TrainingDataError


class Phones(Protocol):
    """The phones of a store's utterances, such as `AlignedPhones`."""

    transcribed: bool
    """Whether they are those of transcripts, on which a network can be validated."""

    @property
    def ids(self) -> Sequence[str]:
        """The utterances whose phones are known."""

    def load(self, name: str) -> PhoneSupervision:
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


def split_transcribed(
    features: Sequence[Features], phones: Sequence[Phones], number: int, seed: int = 0
) -> DataSplit:
    """Hold out transcribed utterances; of recognised ones, leave out those of the same speakers.

    How well a network does on recognised speech tells how much it agrees with the recogniser.

    Args:
      features: stores of raw features.
      phones: as many, of what was said.
      number: utterances to hold out, see `toolkit.train.corpus.split_by_speaker`.
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
    speakers = {
        name: store.speaker(name)
        for store, of_store in pairs
        if of_store.transcribed
        for shard in store.shards
        for name in shard
    }
    split = split_by_speaker(speakers, number, seed)
    recognised = {
        name
        for store, of_store in pairs
        if not of_store.transcribed
        for name in of_store.ids
        if store.speaker(name) not in split.speakers
    }
    return replace(split, train=split.train | recognised)
