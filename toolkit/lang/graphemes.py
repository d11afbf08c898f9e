"""Words pronounced by their letters, for languages without a lexicon."""

import unicodedata
from collections.abc import Iterable

from toolkit.lang.letters import MIDDLE_DOT
from toolkit.lang.lexicon import Lexicon, Pronunciation

SILENT = f"'{MIDDLE_DOT}"
"""Characters inside of words without a sound."""


def spell(word: str) -> Pronunciation:
    """Return the letters of a word and their marks, one phone each; the characters `SILENT` none.

    Empty for a word without letters, or with other characters: a digit has no sound of its own.
    """
    letters = tuple(character for character in word if character not in SILENT)
    kinds = [unicodedata.category(letter)[0] for letter in letters]
    return letters if "L" in kinds and set(kinds) <= {"L", "M"} else ()


def grapheme_lexicon(words: Iterable[str]) -> Lexicon:
    """Return the words that can be spelled, each pronounced by its letters."""
    lexicon = Lexicon()
    for word in sorted(set(words)):
        if letters := spell(word):
            lexicon.add(word, letters)
    return lexicon
