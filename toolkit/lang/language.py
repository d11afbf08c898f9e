"""Survey of transcripts: whether their language is English, and their letters."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_uppercase

from toolkit.errors import ToolkitError
from toolkit.lang.letters import LetterNormaliser
from toolkit.lang.lexicon import Lexicon

ENGLISH_SHARE = 0.85
"""Share of word tokens in the English lexicon that makes a text English. An English
novel has 0.97 of its words there, German, Spanish and Dutch stories 0.5 to 0.6, Italian verse 0.7:
cmudict has many names, and languages share short words."""
MOST_LETTERS = 200
"""More different letters than an alphabet or a syllabary has."""
LONGEST_WORDS = 20.0
"""Mean letters per word above which words are taken to lack spaces between them."""


class LanguageError(ToolkitError):
    """Transcripts that cannot be divided into words or spelled with letters."""


@dataclass(frozen=True)
class Language:
    """The words and letters of transcripts."""

    words: int
    """Word tokens."""
    known_share: float
    """Share of the tokens that are in the lexicon."""
    letters: dict[str, int]
    """Letters and marks, in upper case, with their counts."""

    @property
    def english(self) -> bool:
        """Whether the text is taken as English, given an English lexicon."""
        return self.known_share >= ENGLISH_SHARE

    @property
    def alphabet(self) -> str:
        """The letters in order, all of A to Z if most are among these, and the apostrophe."""
        latin = sum(self.letters.get(letter, 0) for letter in ascii_uppercase)
        more = ascii_uppercase if 2 * latin > sum(self.letters.values()) else ""
        return "".join(sorted({*self.letters, *more})) + "'"


def survey_language(texts: Iterable[str], lexicon: Lexicon | None = None) -> Language:
    """Count the words and letters of transcripts.

    Args:
      texts: as written.
      lexicon: in which words are looked up; by default cmudict.

    Raises:
      LanguageError: no words; words that are not separated by spaces; or too many letters for an
        alphabet.
    """
    rules = LetterNormaliser()
    known = Lexicon.from_cmudict() if lexicon is None else lexicon
    tokens: Counter[str] = Counter()
    for text in texts:
        tokens.update(rules.words(text))
    total = sum(tokens.values())
    if not total:
        raise LanguageError("the transcripts have no word in them")
    letters: Counter[str] = Counter()
    for word, count in tokens.items():
        for letter in word.replace("'", ""):
            letters[letter] += count
    if sum(letters.values()) > LONGEST_WORDS * total:
        raise LanguageError(
            f"the transcripts have {sum(letters.values()) / total:.0f} letters per word: "
            "separate the words by spaces (a segmenter for your language does it)"
        )
    if len(letters) > MOST_LETTERS:
        raise LanguageError(
            f"the transcripts have {len(letters)} different letters, too many to spell words with: "
            "write them in an alphabet, or give a pronunciation lexicon with --lexicon FILE"
        )
    found = sum(count for word, count in tokens.items() if word in known)
    return Language(total, found / total, dict(sorted(letters.items())))


def show_letters(letters: dict[str, int], rare: float = 1e-4) -> str:
    """List letters in a line; at its end the rare ones, likely mistakes, with counts."""
    limit = max(3, rare * sum(letters.values()))
    shown = {letter: _on_a_circle(letter) for letter in letters}
    rare_ones = [f"{shown[letter]} {n}" for letter, n in letters.items() if n < limit]
    return " ".join(shown.values()) + (f" (rare: {', '.join(rare_ones)})" if rare_ones else "")


def _on_a_circle(letter: str) -> str:
    """Put a mark, which would sit on what stands before it, on a dotted circle."""
    return f"\u25cc{letter}" if unicodedata.category(letter)[0] == "M" else letter
