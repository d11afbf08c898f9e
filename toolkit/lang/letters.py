"""Normalisation of text in any alphabet: words of letters in upper case."""

import unicodedata

from toolkit.errors import ToolkitError
from toolkit.lang.text import FirstNormaliser, Normaliser, in_upper_case


class UnknownNormaliserError(ToolkitError):
    """The id of a normaliser that this version does not have."""


class LetterNormaliser(Normaliser):
    """Turns text into words of letters and marks (Unicode's categories L and M) in upper case.

    Accents are kept and composed (NFC). Punctuation separates words; apostrophes inside words are
    kept. Invisible format characters are dropped, and every other character (digits, symbols) is
    removed and counted in `removed`. Normalising twice changes nothing.
    """

    id = "letters-upper-1"

    def _unquoted(self, text: str) -> str:
        return text  # apostrophes around words are dropped below

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        kept = []
        for character in in_upper_case(text):
            kind = unicodedata.category(character)
            if character == "'" or kind[0] in "LM":
                kept.append(character)
            elif kind[0] in "PZ" or character.isspace():
                kept.append(" ")
            elif kind == "Cf":
                continue
            elif keep_foreign:
                kept.append(character)
            else:
                self.removed[character] += 1
        return [word for piece in "".join(kept).split() if (word := piece.strip("'"))]


NORMALISERS = {kind.id: kind for kind in (Normaliser, FirstNormaliser, LetterNormaliser)}
"""All normalisers by id."""


def normaliser(id: str) -> Normaliser:
    """Return a new normaliser, its count of removed characters empty.

    Raises:
      UnknownNormaliserError: there is none with this id.
    """
    if id not in NORMALISERS:
        known = " and ".join(map(repr, sorted(NORMALISERS)))
        raise UnknownNormaliserError(f"the normaliser {id!r} is unknown; this version has {known}")
    return NORMALISERS[id]()
