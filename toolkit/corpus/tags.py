"""Finds tags, words that mix alphabets, and wrongly decoded text in transcripts."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

Tags = Literal["drop", "noise", "keep"]
"""Treatment of tags: they are dropped, trained as the noise phone, or read as words."""

_EVENTS = (
    "APPLAUSE BACKGROUND BEEP BREATH BREATHING BREATHS BREATHY CLAP CLAPPING CLAPS CLICK CLICKS"
    " COUGH COUGHING COUGHS CROSSTALK CRYING EXHALE EXHALES GASP GASPS HESITATION INAUDIBLE INHALE"
    " INHALES LAUGH LAUGHING LAUGHS LAUGHTER LIPSMACK MUSIC NOISE NOISES NOISY PAUSE PAUSES SIGH"
    " SIGHS SIL SILENCE SLAM SLAMS SMACK SNEEZE SNEEZES SNIFF SNIFFS STATIC THROAT UNINTELLIGIBLE"
    " UNK WHISPER WHISPERS YAWN YAWNS"
)
EVENTS = frozenset(_EVENTS.split())
"""Words that name events. Round brackets with one of them are a tag; others enclose spoken words.
After %, such a word is a tag too, as in some telephone corpora."""

# The number of opening brackets is bounded: otherwise a run of n brackets would take n^2 steps.
_BRACKETS = re.compile(
    r"""(?<![^\W_])(?:
      \[{1,8} (?!\s) [^][<>{}]{1,80} (?<!\s) \]+ | < (?!\s) [^][<>{}]{1,80} (?<!\s) >
      | \{{1,8} (?!\s) [^][<>{}]{1,80} (?<!\s) \}+ | \({1,8} (?!\s) [^()]{1,80} (?<!\s) \)+
      | (?<!\S)!SIL | (?<!\S)%[^\W\d_]+
    )(?![^\W_])""",
    re.VERBOSE | re.IGNORECASE,
)
_OPENING = re.compile(r"[\[<{(!%]")
_WORDS = re.compile(r"[^\W\d_]+")


def tags_in(text: str, round_brackets: bool | None = None) -> Iterator[re.Match[str]]:
    """Yield the tags in a text, such as [background noise], <unk>, {breath}, !SIL, %hesitation.

    Args:
      text: as written.
      round_brackets: whether text in round brackets is a tag; None: it is one if it has a word of
        `EVENTS` and at most three words, such as (coughs).
    """
    if _OPENING.search(text) is None:
        return
    for match in _BRACKETS.finditer(text):
        tag = match.group()
        if tag[0] == "(" and round_brackets is not None:
            is_event = round_brackets
        elif tag[0] in "(%":
            is_event = len(_WORDS.findall(tag)) <= 3 and names_event(tag)
        else:
            is_event = True
        if is_event:
            yield match


def names_event(tag: str) -> bool:
    """Return whether a tag has a word of `EVENTS`, in any letter case."""
    return not EVENTS.isdisjoint(word.upper() for word in _WORDS.findall(tag))


def is_event_tag(text: str) -> bool:
    """Whether a text is exactly one tag; see `tags_in`."""
    return any(match.group() == text for match in tags_in(text))


_LETTERS = re.compile(r"[^\W\d_]+")
_ALIKE = frozenset({"LATIN", "GREEK", "CYRILLIC"})
"""Alphabets with letters that look alike, such as A, O and i."""


def word_of_two_alphabets(text: str) -> str | None:
    """Return the first word that mixes letters of similar alphabets; None without one.

    A Cyrillic word with a Latin i looks like the correct word, but programs take it for another.
    """
    return next((word for word in _LETTERS.findall(text) if len(_alphabets(word)) > 1), None)


def _alphabets(word: str) -> set[str]:
    """Return which of the similar alphabets a word uses."""
    if word.isascii():
        return set()
    return {unicodedata.name(letter, "").partition(" ")[0] for letter in word} & _ALIKE


def is_garbled(text: str) -> bool:
    """Whether a text looks like UTF-8 decoded as cp1252 or Latin-1, such as MÃ¤dchen."""
    if text.isascii():
        return False
    for encoding in ("cp1252", "latin-1"):
        try:
            text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        return True
    return False
