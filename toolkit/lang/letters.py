"""Normalisation of text in any alphabet: words of letters in upper case."""

import unicodedata
from collections.abc import Collection

from toolkit.errors import ToolkitError
from toolkit.lang.text import FirstNormaliser, Normaliser, ThirdNormaliser, in_upper_case


class UnknownNormaliserError(ToolkitError):
    """The id of a normaliser that this version does not have."""


WHOLE_LETTERS = frozenset("\u0e33\u0eb3\u0edc\u0edd")
"""Letters that Unicode's compatibility forms would divide although they are typed and printed as
one: the vowel AM of Thai and Lao, and Lao's HO NO and HO MO."""
MIDDLE_DOT = "\u00b7"
"""Part of a word between two L in Catalan (COL\u00b7LEGI)."""
_ARMENIAN_MARKS = "\u055b\u055c\u055e"
"""Marks of stress, exclamation and question, which Armenian writes inside of words."""
_SPELLED_ALIKE = str.maketrans({"\u1e9e": "SS", **dict.fromkeys(_ARMENIAN_MARKS, "")})
"""The capital sharp s too, as the small one is SS in upper case."""


class _CompatibleForms(dict[int, str]):
    """The form of each character in `compatible`, by code point, looked up when it first occurs."""

    def __missing__(self, code: int) -> str:
        form = self[code] = _compatible_form(chr(code))
        return form


def _compatible_form(character: str) -> str:
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if character in WHOLE_LETTERS or kind in ("<super>", "<sub>"):
        return character
    if unicodedata.category(character)[0] == "L" or kind in ("<wide>", "<narrow>"):
        return unicodedata.normalize("NFKC", character).strip(" ") or " "
    return character


_COMPATIBLE_FORMS = _CompatibleForms()


def compatible(text: str) -> str:
    """Return a text with the ordinary forms of its letters, composed (NFC).

    These are Unicode's compatibility forms (NFKC) of ligatures, of full-width letters and
    half-width kana, of Arabic's presentation forms, of single Hangul jamo and of mathematical
    alphabets. `WHOLE_LETTERS` stay, as do raised and lowered letters, which some orthographies
    have, and all that are no letters.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text.translate(_COMPATIBLE_FORMS))


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
        pieces = self._pieces(in_upper_case(text), keep_foreign)
        return [word for piece in pieces if (word := piece.strip("'"))]

    def _pieces(self, text: str, keep_foreign: bool, inside: Collection[int] = ()) -> list[str]:
        """Divide a text in upper case where it has punctuation, except at the places `inside`."""
        kept = []
        for place, character in enumerate(text):
            kind = unicodedata.category(character)
            if character == "'" or kind[0] in "LM" or place in inside:
                kept.append(character)
            elif kind[0] in "PZ" or character.isspace():
                kept.append(" ")
            elif kind == "Cf":
                continue
            elif keep_foreign:
                kept.append(character)
            else:
                self.removed[character] += 1
        return "".join(kept).split()


class SecondLetterNormaliser(LetterNormaliser):
    """The rules of `LetterNormaliser`, for letters in their ordinary forms (`compatible`).

    - An apostrophe at the edge of a word stays if the lexicon has the word with it. Without a
      lexicon none stays.
    - Words are split at clitics if that is asked for, see `toolkit.lang.text.split_clitics`.
    - Catalan's middle dot between two L separates words only where the lexicon lacks the word.
    - The marks that Armenian writes inside of words are dropped. A capital sharp s is SS.
    """

    id = "letters-upper-2"
    uses_lexicon = True

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        text = in_upper_case(compatible(text)).translate(_SPELLED_ALIKE)
        dots: list[int] = []
        if MIDDLE_DOT in text:
            dots = [i for i in range(1, len(text)) if text[i - 1 : i + 2] == f"L{MIDDLE_DOT}L"]
        words = []
        for piece in self._pieces(text, keep_foreign, dots):
            for part in self._divided(piece) if MIDDLE_DOT in piece else [piece]:
                if inner := part.strip("'"):
                    words += self._as_in_lexicon(part) if self._lexicon else [inner]
        return words

    def _divided(self, piece: str) -> list[str]:
        """Divide a piece at its middle dots unless the lexicon has the words with them."""
        dotted = (word for word in piece.split("'") if MIDDLE_DOT in word)
        known = not self._lexicon or all(word in self._lexicon for word in dotted)
        return [piece] if known else piece.split(MIDDLE_DOT)


_ALL = (Normaliser, FirstNormaliser, ThirdNormaliser, LetterNormaliser, SecondLetterNormaliser)
NORMALISERS = {kind.id: kind for kind in _ALL}
"""All normalisers by id."""


def normaliser(
    id: str, lexicon: Collection[str] = frozenset(), split_clitics: bool = False
) -> Normaliser:
    """Return a new normaliser, its counts empty.

    Args:
      id: of the rules.
      lexicon: words that have pronunciations, see `Normaliser`.
      split_clitics: split words that the lexicon lacks at its clitics.

    Raises:
      UnknownNormaliserError: there is none with this id.
    """
    if id not in NORMALISERS:
        known = " and ".join(map(repr, sorted(NORMALISERS)))
        raise UnknownNormaliserError(f"the normaliser {id!r} is unknown; this version has {known}")
    return NORMALISERS[id](lexicon, split_clitics)
