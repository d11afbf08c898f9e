"""Written language of any alphabet to words: letters in upper case, whatever the script."""

import unicodedata

from toolkit.errors import ToolkitError
from toolkit.lang.text import QUOTES, Normaliser


class UnknownRulesError(ToolkitError):
    """The name of a rule set that this version does not have."""


class LetterNormaliser(Normaliser):
    """Words of letters and their marks (Unicode's categories L and M) in upper case.

    Accents stay and are composed (NFC). Punctuation parts words; an apostrophe stays inside one.
    Invisible format characters fall away, and every other character (digits, symbols) is removed
    and counted in `removed`. Normalising twice changes nothing.
    """

    id = "letters-upper-1"

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        text = unicodedata.normalize("NFC", text.translate(QUOTES)).upper()
        kept = []
        for character in unicodedata.normalize("NFC", text):
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


RULES = {rules.id: rules for rules in (Normaliser, LetterNormaliser)}
"""Every rule set by its name."""


def normaliser(id: str) -> Normaliser:
    """Return the rules of a name, with nothing counted yet.

    Raises:
      UnknownRulesError: there are none.
    """
    if id not in RULES:
        known = " and ".join(map(repr, sorted(RULES)))
        raise UnknownRulesError(f"the rules {id!r} for words are unknown; this version has {known}")
    return RULES[id]()
