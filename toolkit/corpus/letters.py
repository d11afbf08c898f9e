"""Signs of transcripts whose letters are not what they look like."""

import re
import unicodedata

_LETTERS = re.compile(r"[^\W\d_]+")
_ALIKE = frozenset({"LATIN", "GREEK", "CYRILLIC"})
"""Alphabets that share the looks of letters such as A, O and i."""


def word_of_two_alphabets(text: str) -> str | None:
    """Return the first word with letters of two alphabets that look alike; None: there is none.

    To programs a Cyrillic word with a Latin i is another word than the one it looks like.
    """
    return next((word for word in _LETTERS.findall(text) if len(_alphabets(word)) > 1), None)


def _alphabets(word: str) -> set[str]:
    if word.isascii():
        return set()
    return {unicodedata.name(letter, "").partition(" ")[0] for letter in word} & _ALIKE


def is_garbled(text: str) -> bool:
    """Whether a text is UTF-8 that was read as cp1252 or Latin-1, such as MÃ¤dchen."""
    if text.isascii():
        return False
    for encoding in ("cp1252", "latin-1"):
        try:
            text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        return True
    return False
