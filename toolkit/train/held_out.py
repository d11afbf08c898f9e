"""Choice of the training data that are set aside for validation: speakers, or utterances."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolkit.features.augment import original_id
from toolkit.storage.digests import digest_bytes

MIN_SPEAKERS = 8
"""Speakers from which on whole speakers are set aside. With fewer, each is too much of the data."""
MAX_SHARE = 1 / 8
"""Largest share of the utterances that is set aside with their speakers; of 8 speakers, the one
with the fewest utterances always fits."""
ENOUGH_SPEAKERS = 10
"""Speakers to set aside where they fit, also if fewer have utterances enough."""


@dataclass(frozen=True)
class Division:
    """Utterances to train on, and others to validate on."""

    train: set[str]
    held_out: set[str]
    speakers: tuple[str, ...]
    """Speakers of whom no utterance is in `train`, in order; empty: only utterances are set
    aside."""
    all_speakers: int
    """Number of speakers of both."""

    def describe(self) -> str:
        """Return in words what is set aside, and why no speakers are."""
        number = len(self.held_out)
        if not number:
            return "no utterances are held out"
        if self.speakers:
            return (
                f"{number} utterances held out, all of {len(self.speakers)} of"
                f" {self.all_speakers} speakers: {', '.join(self.speakers)}"
            )
        return (
            f"{number} utterances held out, of speakers who are trained on ({self.all_speakers}"
            f" speakers; from {MIN_SPEAKERS} on whole ones are held out): the accuracy on them does"
            " not show how the network does on other speakers"
        )


def divide(speakers: Mapping[str, str], number: int, seed: int = 0) -> Division:
    """Hold out speakers where there are enough of them, else utterances.

    Speakers are taken in the order of a checksum of their ids until they have `number` utterances
    and are `ENOUGH_SPEAKERS`; one that would raise the share above `MAX_SHARE` is passed over.

    Args:
      speakers: speaker by utterance; augmented copies belong to the speakers of their originals.
      number: utterances to hold out; 0: none.
      seed: of the checksums.
    """
    by_speaker: dict[str, list[str]] = {}
    for original, members in _families(speakers).items():
        suffix = members[0][len(original) :]  # the speaker of a copy has it too
        by_speaker.setdefault(speakers[members[0]].removesuffix(suffix), []).extend(members)
    held: dict[str, set[str]] = {}
    if number and len(by_speaker) >= MIN_SPEAKERS:
        held = _choose(by_speaker, number, seed)
    if not held:
        return Division(*split_held_out(speakers, number, seed), (), len(by_speaker))
    aside = {name for names in held.values() for name in names}
    train = {name for speaker, names in by_speaker.items() if speaker not in held for name in names}
    return Division(train, aside, tuple(sorted(held)), len(by_speaker))


def _choose(by_speaker: Mapping[str, list[str]], number: int, seed: int) -> dict[str, set[str]]:
    """Return the speakers to hold out, each with one utterance of every family."""
    own = {
        speaker: {members[0] for members in _families(names).values()}
        for speaker, names in by_speaker.items()
    }
    room = MAX_SHARE * sum(map(len, own.values()))
    held: dict[str, set[str]] = {}
    taken = 0
    for speaker in _ranked(own, seed):
        if taken >= number and len(held) >= ENOUGH_SPEAKERS:
            break
        if taken + len(own[speaker]) <= room:
            held[speaker] = own[speaker]
            taken += len(own[speaker])
    return held


def held_out(names: Iterable[str], number: int, seed: int = 0) -> set[str]:
    """Select utterances for validation by a checksum of their ids, at most a tenth of all.

    The choice of an utterance hardly depends on the other utterances, and not on their order.
    """
    ranked = _ranked(names, seed)
    return set(ranked[: min(number, len(ranked) // 10)])


def split_held_out(names: Iterable[str], number: int, seed: int = 0) -> tuple[set[str], set[str]]:
    """Hold out utterances together with their augmented copies.

    Returns:
      The utterances to train on, and those to validate on, chosen by `held_out`: originals, or
      one copy where the original is not among `names`. Other copies of these are in neither.
    """
    families = _families(names)
    chosen = held_out(families, number, seed)
    training = {n for family, members in families.items() if family not in chosen for n in members}
    return training, {families[family][0] for family in chosen}


def _families(names: Iterable[str]) -> dict[str, list[str]]:
    """Group utterances with their copies; the original, or else one copy, comes first."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(original_id(name), []).append(name)
    return {
        original: sorted(members, key=lambda n: (len(n), n))
        for original, members in families.items()
    }


def _ranked(names: Iterable[str], seed: int) -> list[str]:
    def place(name: str) -> tuple[int, str]:
        # CRC-32 is linear: with another start or prefix, names of a length that were together stay.
        shuffled = digest_bytes(f"{seed} {name}".encode()) if seed else name
        return zlib.crc32(shuffled.encode()), name

    return sorted(names, key=place)
