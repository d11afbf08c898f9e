"""What language transcripts are in, as far as a recipe must know."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_uppercase

from toolkit.errors import ToolkitError
from toolkit.lang.letters import LetterNormaliser
from toolkit.lang.lexicon import Lexicon

ENGLISH_SHARE = 0.85
"""Share of word tokens in the English lexicon from which a text is taken for English. An English
novel has 0.97 of its words there, German, Spanish and Dutch stories 0.5 to 0.6, Italian verse 0.7:
cmudict has many names, and short words are alike."""
MOST_LETTERS = 200
"""More different letters than an alphabet or a syllabary has."""
LONGEST_WORDS = 20.0
"""Mean letters per word above which words are not parted by spaces."""


class LanguageError(ToolkitError):
    """Transcripts that no words can be made of."""


@dataclass(frozen=True)
class Language:
    """The words and letters of transcripts."""

    words: int
    """Word tokens."""
    known_share: float
    """Share of the tokens that the lexicon has."""
    letters: dict[str, int]
    """Letters and marks, in upper case, with their counts."""

    @property
    def english(self) -> bool:
        """Whether it is taken for English, if the lexicon is English."""
        return self.known_share >= ENGLISH_SHARE

    @property
    def alphabet(self) -> str:
        """The letters in order, all of A to Z where most are of these, and the apostrophe."""
        latin = sum(self.letters.get(letter, 0) for letter in ascii_uppercase)
        more = ascii_uppercase if 2 * latin > sum(self.letters.values()) else ""
        return "".join(sorted({*self.letters, *more})) + "'"


def survey_language(texts: Iterable[str], lexicon: Lexicon | None = None) -> Language:
    """Look through transcripts.

    Args:
      texts: as written.
      lexicon: in which words are looked up; by default cmudict.

    Raises:
      LanguageError: no words; words that are not parted by spaces; or more letters than words can
        be spelled with.
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
            f"the transcripts have {sum(letters.values()) / total:.0f} letters per word: part the "
            "words by spaces (a segmenter for your language does it)"
        )
    if len(letters) > MOST_LETTERS:
        raise LanguageError(
            f"the transcripts have {len(letters)} different letters, too many to spell words with: "
            "write them in an alphabet, or give a pronunciation lexicon with --lexicon FILE"
        )
    found = sum(count for word, count in tokens.items() if word in known)
    return Language(total, found / total, dict(sorted(letters.items())))


def show_letters(letters: dict[str, int], rare: float = 1e-4) -> str:
    """Return letters in a line, those that look like slips with their counts at the end."""
    limit = max(3, rare * sum(letters.values()))
    seldom = ", ".join(f"{letter} {count}" for letter, count in letters.items() if count < limit)
    return " ".join(letters) + (f" (seldom: {seldom})" if seldom else "")
