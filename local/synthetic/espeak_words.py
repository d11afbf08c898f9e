"""The times of the words of a synthesised text, from espeak-ng's word and phoneme events.

A word event alone does not give them:

- It comes before the pause that espeak-ng puts in front of many sounds. At a consonant between
  words that is the closure of a stop or about 10 ms, and belongs to the word; before a vowel it is
  a gap of about 40 ms; after silence it is more of the silence.
- An L, M, N or R before a vowel is spoken while the vowel begins. Where the two are of different
  words ("an apple") the word event comes before the consonant, and only the vowel's own event
  after both.
- Some pairs ("in the") are spoken as one word and have one event, and some words have a second
  event in their middle ("too much": after the T).
"""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.score.alignment import align

SONORANT_SHARE = 0.6
"""Share of the consonant in the time between the events of an L, M, N or R and of the vowel after
it: the spectrum changes most at 0.57 (N), 0.70 (M), 0.51 (NG), 0.55 (L), 0.52 (R) of
it, in the median over all voices of the demo corpus."""

_SONORANTS = frozenset({"l", "m", "n", "N", "r"})
_STRESS = "',%="
_VOWELS = frozenset("aeiouAEIOUV03@")


class WordTimesError(ToolkitError):
    """The events of a text do not give the times of all its words."""


@dataclass(frozen=True)
class Event:
    """A word event (with a position) or a phoneme event (with a phoneme) of espeak-ng."""

    sample: int
    """Index of the output sample."""
    position: int = -1
    """Index of the character in the text where the word begins."""
    phoneme: str = ""
    """espeak-ng's mnemonic; pauses begin with an underscore."""

    @property
    def is_sound(self) -> bool:
        """Whether this is a phoneme other than a pause."""
        return bool(self.phoneme) and not self.phoneme.startswith("_")

    @property
    def kind(self) -> str:
        """The consonant, or "V" for any vowel: vowels change where a word is not stressed."""
        plain = self.phoneme.lstrip(_STRESS)
        return "V" if plain[0] in _VOWELS else plain.rstrip("#2-")


@dataclass(frozen=True)
class SpokenWord:
    """A word of a text and its time."""

    text: str
    """As written, with adjacent punctuation."""
    start: int
    """First sample."""
    end: int
    """One past the last sample: where the next word or a pause begins. The echo of some voices
    (up to 70 ms) is not included."""


@dataclass
class _Group:
    """The sounds from one word event to the next: of one word, or of several spoken as one."""

    words: list[str]
    sounds: list[Event]
    start: int
    end: int


def locate(
    text: str, events: list[Event], phonemes_of: Callable[[str], list[str]]
) -> list[SpokenWord]:
    """Find the times of the words of `text`.

    A word starts with its first sound, which for a stop is its closure and after a pause its burst.
    It ends where the next word or a pause begins.

    Args:
      events: of the whole text in order.
      phonemes_of: the phonemes of a word spoken alone, to divide words that were spoken as one.

    Raises:
      WordTimesError: a word without a sound of its own.
    """
    words = []
    for group in _groups(text, events):
        starts = [group.start, *_inner_starts(group, phonemes_of)]
        for word, start, end in zip(group.words, starts, [*starts[1:], group.end], strict=True):
            words.append(SpokenWord(word, start, end))
    return words


def _groups(text: str, events: list[Event]) -> list[_Group]:
    heads = [
        index
        for index, event in enumerate(events)
        if event.position == 0 or (event.position > 0 and text[event.position - 1].isspace())
    ]
    groups: list[_Group] = []
    before = None  # the sound that the word follows without a pause
    for head, stop in zip(heads, [*heads[1:], len(events)], strict=True):
        phonemes = [event for event in events[head:stop] if event.phoneme]
        sounds = [event for event in phonemes if event.is_sound]
        until = events[stop].position if stop < len(events) else len(text)
        words = text[events[head].position : until].split()
        if not sounds:
            raise WordTimesError(f"{' '.join(words)!r} in {text!r} is not spoken")
        pauses = phonemes[phonemes.index(sounds[-1]) + 1 :]
        start, silence = _onset(events[head], sounds[0], before)
        if before is not None:
            groups[-1].end = silence
        groups.append(_Group(words, sounds, start, pauses[0].sample if pauses else start))
        before = None if pauses else sounds[-1]
    return groups


def _onset(word: Event, first: Event, before: Event | None) -> tuple[int, int]:
    """Return the samples where a word begins and where the sound before it ends."""
    if before is None:
        return first.sample, first.sample
    if first.kind != "V":
        return word.sample, word.sample
    if before.kind in _SONORANTS:
        shared = before.sample + round(SONORANT_SHARE * (first.sample - before.sample))
        return shared, shared
    return first.sample, word.sample


def _inner_starts(group: _Group, phonemes_of: Callable[[str], list[str]]) -> list[int]:
    """Find the starts of the later words of a group, by aligning it to the words spoken alone."""
    if len(group.words) == 1:
        return []
    alone = [[Event(0, phoneme=p).kind for p in phonemes_of(word)] for word in group.words]
    owners = iter([number for number, kinds in enumerate(alone) for _ in kinds])
    sounds = iter(zip(group.sounds, [None, *group.sounds], strict=False))
    starts: dict[int, int] = {}
    for expected, spoken in align(
        [kind for kinds in alone for kind in kinds], [sound.kind for sound in group.sounds]
    ):
        number = next(owners) if expected is not None else None
        sound, before = next(sounds) if spoken is not None else (None, None)
        if number is not None and sound is not None:
            starts.setdefault(number, _onset(sound, sound, before)[0])
    for number, word in enumerate(group.words[1:], start=1):
        if number not in starts:
            raise WordTimesError(f"{word!r} has no sound of its own in {' '.join(group.words)!r}")
    return [starts[number] for number in range(1, len(group.words))]
